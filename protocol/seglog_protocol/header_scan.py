"""Walks over the headers of a ``.log``, over any file that can be read at a position: checksums are not verified.

Stops where the bytes no longer form a batch; what comes then is for the caller to say.
"""

from typing import Final, NamedTuple, Protocol, Self

from seglog_protocol.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header, why_implausible

SEEK_WINDOW: Final = 4096
"""Bytes read at a time while looking for a header: one default index interval."""


ReadBytes = bytes | bytearray
"""What a read of a file gives; it is not changed."""


class Readable(Protocol):
    """As much of an open file as a walk needs."""

    def pread(self, size: int, position: int) -> ReadBytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...


class Windowed:
    """A Readable over another one that reads at least ``window_bytes`` at a time, for reads that follow each other.

    The bytes must not change meanwhile, but for more at the end.
    """

    __slots__ = ("_data", "_file", "_start", "window_bytes")

    def __init__(self, file: Readable, window_bytes: int = SEEK_WINDOW) -> None:
        self.window_bytes = window_bytes
        self._file = file
        self._data: ReadBytes = b""
        self._start = 0

    def pread(self, size: int, position: int) -> ReadBytes:
        """As ``Readable.pread``."""
        first = position - self._start
        if first < 0 or first + size > len(self._data):
            self._data, self._start, first = self._file.pread(max(size, self.window_bytes), position), position, 0
        return self._data[first : first + size]


class LocatedBatch(NamedTuple):
    """A batch header and the position (bytes) where its batch begins."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """The position after the batch."""
        return self.position + self.header.size


class BatchWalk:
    """Batches of a file in their order: one a call of ``next``, or as an iterator."""

    __slots__ = ()

    def next(self) -> LocatedBatch | None:
        """The next batch; None at the end."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LocatedBatch:
        found = self.next()
        if found is None:
            raise StopIteration
        return found


class HeaderScan(BatchWalk):
    """Headers of the batches in [position, end), which both lie on batch boundaries, until one is implausible.

    Reads ``window_bytes`` at a time where batches are smaller than that, and only headers where they are larger.
    ``position`` is where the next header lies, or where the scan ended.
    """

    __slots__ = ("_end", "_file", "_wanted", "_window", "_window_bytes", "_window_start", "position")

    def __init__(self, file: Readable, position: int, end: int, window_bytes: int = SEEK_WINDOW) -> None:
        self.position = position
        self._file = file
        self._end = end
        self._window_bytes = self._wanted = window_bytes
        self._window: ReadBytes = b""
        self._window_start = position

    def next(self) -> LocatedBatch | None:
        """The next header; None at the end."""
        position = self.position
        if position + HEADER_SIZE > self._end:
            return None
        at = position - self._window_start
        if at < 0 or at + HEADER_SIZE > len(self._window):
            self._window = self._file.pread(min(self._wanted, self._end - position), position)
            self._window_start, at = position, 0
            if len(self._window) < HEADER_SIZE:
                return None
        header = parse_header(self._window, at)
        size = header.batch_length + LOG_OVERHEAD
        if why_implausible(header) is not None or position + size > self._end:
            return None
        self._wanted = self._window_bytes if size < self._window_bytes else HEADER_SIZE
        self.position = position + size
        return LocatedBatch(position, header)
