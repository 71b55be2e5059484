"""Walking a ``.log`` file batch by batch: headers only for a seek, whole batches with their checksums for recovery.

Both stop where the bytes no longer form a batch and say where that was, instead of skipping in silence.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from seglog_broker.storage.filesystem import File, Readable
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    parse_header,
    verify_crc,
    why_implausible,
)
from seglog_protocol.segment_files import OFFSET_MAX

SEEK_WINDOW: Final = 4096
"""Bytes read at a time while looking for a header: one default index interval."""

RECOVERY_WINDOW: Final = 1024 * 1024
"""Bytes read at a time while verifying whole batches."""


class LocatedBatch(NamedTuple):
    """A batch header and the position (bytes) where its batch begins."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Position behind the batch."""
        return self.position + self.header.size


def scan_headers(file: Readable, position: int, end: int) -> Iterator[LocatedBatch]:
    """Headers of the batches in [position, end), which both lie on batch boundaries, until one is implausible.

    Reads windows where batches are small, and only headers where they are large.
    """
    window, window_start = b"", position
    wanted = SEEK_WINDOW
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
        wanted = SEEK_WINDOW if header.size < SEEK_WINDOW else HEADER_SIZE
        position += header.size


class BatchVerifier:
    """Reads whole batches of one file and judges them: plausible, within the file, checksum right."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._window = b""
        self._window_start = 0

    def batch_at(self, position: int, offset_min: int = 0, offset_max: int = OFFSET_MAX) -> LocatedBatch | None:
        """The valid batch that begins at ``position`` with all its offsets in that range, or None when none does.

        The offset is looked at first: where the bytes are no header, their length would often ask for a checksum over
        everything that follows.
        """
        head = self._bytes(position, HEADER_SIZE)
        if head is None:
            return None
        header = parse_header(head)
        if why_implausible(header) is not None:
            return None
        if header.base_offset < offset_min or header.last_offset > offset_max:
            return None
        body = self._bytes(position, header.size)
        if body is None or not verify_crc(body, 0, header):
            return None
        return LocatedBatch(position, header)

    def next_batch(self, position: int, offset_min: int, offset_max: int) -> LocatedBatch | None:
        """The first valid batch at or behind ``position`` with all its offsets in [offset_min, offset_max].

        Where the header at ``position`` still gives a length that leads to a valid batch, that one is taken, so that a
        batch stored inside a damaged batch's value is not mistaken for one of the log.
        """
        head = self._bytes(position, HEADER_SIZE)
        if head is not None:
            header = parse_header(head)
            if why_implausible(header) is None:
                found = self.batch_at(position + header.size, offset_min, offset_max)
                if found is not None:
                    return found
        candidate = self._next_magic(position)
        while candidate is not None:
            found = self.batch_at(candidate, offset_min, offset_max)
            if found is not None:
                return found
            candidate = self._next_magic(candidate + 1)
        return None

    def at_or_behind(self, position: int, offset_min: int, offset_max: int) -> LocatedBatch | None:
        """The valid batch at ``position``, else the first behind it, as ``next_batch``."""
        return self.batch_at(position, offset_min, offset_max) or self.next_batch(position, offset_min, offset_max)

    def going_on(self, position: int, offset_min: int, offset_max: int) -> LocatedBatch | None:
        """The batch with which a log goes on at or behind ``position`` when ``offset_min`` is the next offset due.

        Checksums leave out the offset. When the next batch lies below the one found, it is that one that is wrong;
        believed, it would make everything behind it look like a tail.
        """
        found = self.at_or_behind(position, offset_min, offset_max)
        while found is not None and found.header.base_offset > offset_min:
            after = self.at_or_behind(found.end, offset_min, offset_max)
            if after is None or after.header.base_offset > found.header.last_offset:
                break
            found = after
        return found

    def _next_magic(self, position: int) -> int | None:
        """Where a batch could begin at or behind ``position``: sixteen bytes before a byte of value 2."""
        while position + HEADER_SIZE <= self.size:
            size = min(RECOVERY_WINDOW // 2, self.size - position)
            if self._bytes(position, size) is None:
                return None
            start = position - self._window_start
            found = self._window.find(b"\x02", start + MAGIC_POSITION, start + size)
            if found >= 0:
                return self._window_start + found - MAGIC_POSITION
            position += size - MAGIC_POSITION
        return None

    def _bytes(self, position: int, size: int) -> memoryview | None:
        """``size`` bytes at ``position``, or None when the file ends before them."""
        if position + size > self.size:
            return None
        start = position - self._window_start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, RECOVERY_WINDOW), self.size - position)
            self._window, self._window_start, start = self._file.pread(wanted, position), position, 0
            if len(self._window) < size:
                return None
        return memoryview(self._window)[start : start + size]
