"""Walks over the headers of a ``.log``, over any file that can be read at a position: checksums are not verified.

Stops where the bytes no longer form a batch; what comes then is for the caller to say.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, why_implausible

SEEK_WINDOW: Final = 4096
"""Bytes read at a time while looking for a header: one default index interval."""


class Readable(Protocol):
    """As much of an open file as a walk needs."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        ...


class Windowed:
    """A Readable over another one that reads at least SEEK_WINDOW bytes at a time, for reads that follow each other.

    The bytes must not change meanwhile, but for more at the end.
    """

    __slots__ = ("_data", "_file", "_start")

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._data, self._start = b"", 0

    def pread(self, size: int, position: int) -> bytes:
        """As ``Readable.pread``."""
        first = position - self._start
        if first < 0 or first + size > len(self._data):
            self._data, self._start, first = self._file.pread(max(size, SEEK_WINDOW), position), position, 0
        return self._data[first : first + size]


class LocatedBatch(NamedTuple):
    """A batch header and the position (bytes) where its batch begins."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """The position after the batch."""
        return self.position + self.header.size


def scan_headers(file: Readable, position: int, end: int, window_bytes: int = SEEK_WINDOW) -> Iterator[LocatedBatch]:
    """Headers of the batches in [position, end), which both lie on batch boundaries, until one is implausible.

    Reads ``window_bytes`` at a time where batches are smaller than that, and only headers where they are larger.
    """
    window, window_start = b"", position
    wanted = window_bytes
    while position + HEADER_SIZE <= end:
        offset_in_window = position - window_start
        if offset_in_window < 0 or offset_in_window + HEADER_SIZE > len(window):
            window, window_start, offset_in_window = file.pread(min(wanted, end - position), position), position, 0
            if len(window) < HEADER_SIZE:
                return
        header = parse_header(window, offset_in_window)
        if why_implausible(header) is not None or position + header.size > end:
            return
        yield LocatedBatch(position, header)
        wanted = window_bytes if header.size < window_bytes else HEADER_SIZE
        position += header.size
