"""The time index: from a timestamp to an offset; no record at or below that offset has a later timestamp.

Same contract as Kafka's TimeIndex; entries are 12 bytes, see docs/STORAGE.md. A lookup takes the *floor* entry: the
first entry with a timestamp at or above the wanted one would skip the records before it that qualify too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from seglog_broker.storage.segment.sparse_index import FloorSearch, IndexOrderError, SparseIndex
from seglog_protocol import segment_files as files


class TimestampOffset(NamedTuple):
    """No record at or below ``offset`` has a timestamp (ms) above ``timestamp``."""

    timestamp: int
    offset: int


class TimeEntries(NamedTuple):
    """An entry and its neighbours, None where there is none."""

    before: TimestampOffset | None
    entry: TimestampOffset
    after: TimestampOffset | None

    @property
    def is_in_order(self) -> bool:
        """Whether the entry is possible between its neighbours."""
        before, entry, after = self
        return (before is None or (before.timestamp < entry.timestamp and before.offset <= entry.offset)) and (
            after is None or (entry.timestamp < after.timestamp and entry.offset <= after.offset)
        )


class TimeIndex(SparseIndex):
    """Entries (timestamp, offset); timestamps rise strictly, offsets never fall."""

    entry_size = files.TIME_ENTRY.size
    reserved = 1  # for the closing entry
    _last: TimestampOffset | None = None  # the newest entry, None for none; valid while ``_last_known``

    @property
    def last(self) -> TimestampOffset:
        """The newest entry; (-1, base offset) when there is none."""
        if not self._last_known:
            self._last = self._decode(self.read_last())
            self._last_known = True
        return self._last or TimestampOffset(-1, self.base_offset)

    def offer(self, timestamp: int, offset: int, *, closing: bool = False) -> None:
        """Add (timestamp, offset) unless the timestamp is not above the last one; ``closing`` may use the last slot.

        Raises IndexOrderError when the index is full, when offset or timestamp are below those of the last entry, or
        when they do not fit an entry.
        """
        if self.is_full and not closing:
            raise IndexOrderError(f"{self.path} is full with {self.count} entries")
        last = self.last
        if self.count:
            if offset < last.offset:
                raise IndexOrderError(f"offset {offset} is below the last entry's {last.offset}")
            if timestamp < last.timestamp:
                raise IndexOrderError(f"timestamp {timestamp} is below the last entry's {last.timestamp}")
        if timestamp > last.timestamp:
            if not 0 <= offset - self.base_offset <= files.RELATIVE_OFFSET_MAX or timestamp > files.TIMESTAMP_MAX:
                raise IndexOrderError(f"({timestamp}, {offset}) does not fit a segment with base {self.base_offset}")
            self._append(files.encode_time_entry(timestamp, offset - self.base_offset))
            self._last = TimestampOffset(timestamp, offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or below ``timestamp``; (-1, base offset) when every entry lies above."""
        return self._decode(self.search(files.find_time_floor, timestamp)) or TimestampOffset(-1, self.base_offset)

    def below(self, timestamp: int, floor: FloorSearch = files.find_time_floor) -> TimeEntries | None:
        """The last entry below ``timestamp``, None when there is none.

        With equal timestamps only this entry is certain: an entry that was moved to a later batch with the same largest
        timestamp looks like the right one. ``floor`` may be one that counts what it reads.
        """
        return self._decode_around(self.search_around(floor, timestamp - 1))

    def around_last(self) -> TimeEntries | None:
        """The newest entry."""
        return self._decode_around(self._entries_around(self.count - 1))

    def _decode_around(self, entries: Sequence[bytes | None]) -> TimeEntries | None:
        before, entry, after = map(self._decode, entries)
        return None if entry is None else TimeEntries(before, entry, after)

    def problem(self) -> str | None:
        """Why this cannot be a time index, or None; looks at both ends only."""
        if size := self.file_size() % self.entry_size:
            return f"it ends with {size} bytes of half an entry"
        return files.time_index_problem(self.read_ends())

    def _decode(self, entry: bytes | None) -> TimestampOffset | None:
        if entry is None:
            return None
        timestamp, relative = files.TIME_ENTRY.unpack(entry)
        return TimestampOffset(timestamp, self.base_offset + relative)
