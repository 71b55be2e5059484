"""One segment: its ``.log`` opened, its indexes as they stand in their files.

Indexes are only ever hints here: of a segment that is written to they lag behind, Kafka's are filled up with zeros
while it runs, and none has a checksum. What an entry says is believed when the batch it names is found there; else the
segment is walked from its beginning.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from seglog_protocol import segment_files as names
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, verify_crc, why_implausible

_WALK_BYTES: Final = 64 * 1024
"""Read at a time while headers are walked: a few hundred of the smallest batches, and no more than one of the usual."""


class LocatedBatch(NamedTuple):
    """A batch by its header. ``behind_damage``: between it and the one before are bytes that are no batch."""

    position: int
    header: BatchHeader
    behind_damage: bool

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.position + self.header.size


class SegmentFile:
    """A segment that is being read; holds a descriptor until it is closed. FileNotFoundError when it is gone.

    ``damaged``: where bytes begin and end that are known to be no batches.
    """

    def __init__(self, path: Path, base_offset: int, damaged: Mapping[int, int]) -> None:
        self.base_offset = base_offset
        self._path = path
        self._damaged = damaged
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        """Of the ``.log``, for messages."""
        return str(self._path)

    @property
    def size(self) -> int:
        """Bytes that are in the file now."""
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Let go of the descriptor; twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def pread(self, size: int, position: int) -> bytes:
        """At most ``size`` bytes from ``position`` on, fewer at the end of the file."""
        data = os.pread(self._file, size, position)
        while len(data) < size and (more := os.pread(self._file, size - len(data), position + len(data))):
            data += more  # Linux reads at most 2 GiB at a time, and network file systems may read less
        return data

    def is_intact(self, found: LocatedBatch) -> bool:
        """Whether the batch matches its checksum."""
        return verify_crc(self.pread(found.header.size, found.position), 0, found.header)

    # --- Walking ------------------------------------------------------------------------------------------------------

    def walk(self, position: int) -> Iterator[LocatedBatch]:
        """Batches from ``position`` on by their headers, checksums not looked at.

        Bytes that are no batch are stepped over where something leads behind them; it ends where nothing does.
        """
        size = self.size
        data, start = b"", position
        behind_damage = False
        while position + HEADER_SIZE <= size:
            if not start <= position <= start + len(data) - HEADER_SIZE:
                data, start = self.pread(_WALK_BYTES, position), position
                if len(data) < HEADER_SIZE:
                    return  # it has become shorter
            header = parse_header(data, position - start)
            if why_implausible(header) is None and position + header.size <= size:
                yield LocatedBatch(position, header, behind_damage)
                behind_damage = False
                position += header.size
                continue
            following = self._behind(position)
            if following is None:
                return
            position, behind_damage = following, True

    def find(self, offset: int) -> LocatedBatch | None:
        """The first batch whose last offset is at or above ``offset``."""
        for found in self.walk(self.floor(offset)):
            if found.header.last_offset >= offset:
                return found
        return None

    # --- Indexes ------------------------------------------------------------------------------------------------------

    def floor(self, offset: int = names.OFFSET_MAX) -> int:
        """The position of a batch at or before the one that holds ``offset``, or of the last one that is indexed."""
        data = self._index(names.OFFSET_INDEX_SUFFIX, names.OFFSET_ENTRY.size)
        if names.offset_index_problem(data, self.size) is not None:
            return 0
        number = names.find_offset_floor(data, len(data) // names.OFFSET_ENTRY.size, offset - self.base_offset)
        if number < 0:
            return 0
        entry = names.offset_entry(data, number)
        return entry.position if self._is_at(entry) else 0

    def _behind(self, position: int) -> int | None:
        """The next position above ``position`` where it is known, or index and log agree, that a batch begins."""
        if position in self._damaged:
            return max(position + 1, self._damaged[position])
        data = self._index(names.OFFSET_INDEX_SUFFIX, names.OFFSET_ENTRY.size)
        if names.offset_index_problem(data, self.size) is not None:
            return None
        count = len(data) // names.OFFSET_ENTRY.size
        for number in range(names.find_position_floor(data, count, position) + 1, count):
            entry = names.offset_entry(data, number)
            if self._is_at(entry):
                return entry.position
        return None

    def _is_at(self, entry: names.OffsetEntry) -> bool:
        data = self.pread(HEADER_SIZE, entry.position)
        if len(data) < HEADER_SIZE:
            return False
        header = parse_header(data)
        return why_implausible(header) is None and header.last_offset == self.base_offset + entry.relative_offset

    def times(self) -> "Times":
        """What the time index says."""
        data = self._index(names.TIME_INDEX_SUFFIX, names.TIME_ENTRY.size)
        return Times(b"" if names.time_index_problem(data) is not None else data, self.base_offset)

    def _index(self, suffix: str, entry_size: int) -> bytes:
        """The entries of an index; nothing where there is no such file, or one that was cut."""
        path = self._path.with_name(self._path.name.replace(names.LOG_SUFFIX, suffix, 1))
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return b""
        if len(content) % entry_size:
            return b""
        # An entry may end in zeros too, but none consists of them: the first batch of a log is never indexed.
        filled = -(-len(content.rstrip(b"\0")) // entry_size)
        return content[: filled * entry_size]


class Times(NamedTuple):
    """The entries of a time index."""

    data: bytes
    base_offset: int

    @property
    def largest(self) -> int | None:
        """The largest timestamp there is an entry for, None without entries."""
        count = len(self.data) // names.TIME_ENTRY.size
        return names.time_entry(self.data, count - 1).timestamp if count else None

    def floor(self, timestamp: int) -> int:
        """An offset below which no record has a timestamp at or above ``timestamp`` (ms)."""
        count = len(self.data) // names.TIME_ENTRY.size
        # An entry (t, o) speaks of timestamps above t: one that is equal may lie before o.
        number = names.find_time_floor(self.data, count, timestamp - 1)
        return self.base_offset + (names.time_entry(self.data, number).relative_offset if number >= 0 else 0)
