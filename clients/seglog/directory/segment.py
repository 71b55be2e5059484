"""One segment: its open ``.log`` and its index files.

Indexes are only hints here: those of the active segment lag behind, Kafka's are padded with zeros while it runs, and
none has a checksum. An entry is used only if its batch is found at its position; else the segment is walked from its
start.

What a valid batch is, and how the next one behind damage is found, is ``seglog_protocol.batch_scan``, as in the broker.
A walk over headers (``walk``) has a rule of its own for where they end: the broker may be writing there, so damage is
not measured; the walk goes on where known damage ends, or where an index entry points whose batch is found.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.header_scan import HeaderScan, LocatedBatch
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, verify_crc, why_implausible

_WALK_BYTES: Final = 64 * 1024
"""Bytes read at a time while batches are walked: a few hundred of the smallest ones, or one of the usual size."""


class SegmentFile:
    """A segment open for reading; holds a descriptor until it is closed. Raises FileNotFoundError.

    ``damaged`` maps start to end positions of known damaged bytes.
    """

    def __init__(self, path: Path, base_offset: int, damaged: Mapping[int, int]) -> None:
        self.base_offset = base_offset
        self.path = str(path)
        self._damaged = damaged
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def size(self) -> int:
        """Current size of the file in bytes."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def pread(self, size: int, position: int) -> bytes:
        """At most ``size`` bytes from ``position`` on, fewer at the end of the file."""
        data = os.pread(self._file, size, position)
        while len(data) < size and (more := os.pread(self._file, size - len(data), position + len(data))):
            data += more  # Linux reads at most 2 GiB at a time, and network file systems may read less
        return data

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill ``buffer`` from ``position`` on; the number of bytes, fewer at the end of the file."""
        size = 0
        while size < len(buffer) and (more := os.preadv(self._file, [buffer[size:]], position + size)):
            size += more
        return size

    def is_intact(self, found: LocatedBatch) -> bool:
        """Whether the batch matches its checksum."""
        return verify_crc(self.pread(found.header.size, found.position), 0, found.header)

    def walk(self, position: int) -> Iterator[LocatedBatch]:
        """Batches from ``position`` on by their headers; checksums are not verified.

        Damaged bytes are skipped where their end is known; otherwise the iteration ends.
        """
        size = self.size
        while True:
            for found in HeaderScan(self, position, size, _WALK_BYTES):
                yield found
                position = found.end
            following = self._behind(position) if position + HEADER_SIZE <= size else None
            if following is None:
                return
            position = following

    def is_old_format(self, position: int) -> bool:
        """Whether a message of magic 0 or 1 begins there, as Kafka wrote them before 0.11."""
        return BatchScan(self, self.size, window_bytes=HEADER_SIZE).old_message_at(position) is not None

    def intact(self, position: int) -> Iterator[LocatedBatch]:
        """Batches from ``position`` on that match their checksums; bytes between them are damaged."""
        scan = BatchScan(self, self.size, window_bytes=_WALK_BYTES)
        while (found := scan.at_or_after(position)) is not None:
            yield found
            position = found.end

    def floor(self, offset: int = names.OFFSET_MAX) -> int:
        """The position of a batch at or before the one with ``offset``; by default of the last indexed one."""
        data, count = self._offset_index()
        number = names.find_offset_floor(data, count, offset - self.base_offset)
        if number < 0:
            return 0
        entry = names.offset_entry(data, number)
        return entry.position if self._is_at(entry) else 0

    def _behind(self, position: int) -> int | None:
        """The next position above ``position`` where a batch begins, from known damage or a confirmed index entry."""
        if position in self._damaged:
            return max(position + 1, self._damaged[position])
        data, count = self._offset_index()
        following = range(names.find_position_floor(data, count, position) + 1, count)
        entries = (names.offset_entry(data, number) for number in following)
        return next((entry.position for entry in entries if self._is_at(entry)), None)

    def _is_at(self, entry: names.OffsetEntry) -> bool:
        data = self.pread(HEADER_SIZE, entry.position)
        if len(data) < HEADER_SIZE:
            return False
        header = parse_header(data)
        return why_implausible(header) is None and header.last_offset == self.base_offset + entry.relative_offset

    def largest_time(self) -> int | None:
        """The largest timestamp (ms) of a closed segment, from its time index; None if it is not confirmed."""
        times = self._times()
        if not times or not self._bears_out(times, len(times) - 1):
            return None
        largest = times[-1].timestamp
        is_youngest = all(found.header.max_timestamp <= largest for found in self.walk(self.floor()))
        return largest if is_youngest else None

    def before_time(self, timestamp: int) -> int:
        """An offset below which no record has a timestamp at or above ``timestamp`` (ms)."""
        times = self._times()
        # An entry (t, o) is about timestamps above t: a record with t itself may be before o.
        number = bisect_left(times, timestamp, key=lambda entry: entry.timestamp) - 1
        if number < 0 or not self._bears_out(times, number):
            return self.base_offset
        return self.base_offset + times[number].relative_offset

    def _bears_out(self, times: list[names.TimeEntry], number: int) -> bool:
        """Whether the log and the adjacent entries confirm an entry.

        It must be the earliest batch with its timestamp after the preceding offset entry, with no newer one between.
        """
        entry = times[number]
        before, after = times[max(0, number - 1)], times[min(number + 1, len(times) - 1)]
        if not before.relative_offset <= entry.relative_offset <= after.relative_offset:
            return False
        if not before.timestamp <= entry.timestamp <= after.timestamp:
            return False
        offset = self.base_offset + entry.relative_offset
        for found in self.walk(self.floor(max(self.base_offset, offset - 1))):
            header = found.header
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == entry.timestamp
            if header.max_timestamp >= entry.timestamp:
                return False
        return False

    def _offset_index(self) -> tuple[bytes, int]:
        """The offset index and its number of entries; empty if it is invalid."""
        data = self._index(names.OFFSET_INDEX_SUFFIX, names.OFFSET_ENTRY.size)
        is_valid = names.offset_index_problem(data, self.size) is None
        return (data, len(data) // names.OFFSET_ENTRY.size) if is_valid else (b"", 0)

    def _times(self) -> list[names.TimeEntry]:
        """The entries of the time index; empty if it is invalid."""
        data = self._index(names.TIME_INDEX_SUFFIX, names.TIME_ENTRY.size)
        return [] if names.time_index_problem(data) is not None else list(names.time_entries(data))

    def _index(self, suffix: str, entry_size: int) -> bytes:
        """The bytes of an index without zero padding; empty if the file is missing or truncated."""
        log = Path(self.path)
        try:
            content = log.with_name(log.name.replace(names.LOG_SUFFIX, suffix, 1)).read_bytes()
        except FileNotFoundError:
            return b""
        if len(content) % entry_size:
            return b""
        # An entry may end in zeros, but none is all zeros: the first batch of a log is never indexed.
        filled = -(-len(content.rstrip(b"\0")) // entry_size)
        return content[: filled * entry_size]
