"""The offset index: from an offset to a position in the ``.log`` from which a short scan finds it.

Same contract as Kafka's OffsetIndex; entries are 8 bytes, see docs/STORAGE.md.
"""

from typing import NamedTuple

from seglog_broker.storage.segment.sparse_index import FloorSearch, IndexOrderError, SparseIndex
from seglog_protocol import segment_files as files


class OffsetPosition(NamedTuple):
    """A batch's last offset (absolute) and the position (bytes) where that batch begins."""

    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """Entries (last offset of a batch, position where the batch begins), both rising."""

    entry_size = files.OFFSET_ENTRY.size
    _last: OffsetPosition | None = None  # the newest entry, None for none; valid while ``_last_known``

    @property
    def last(self) -> OffsetPosition | None:
        """The newest entry, or None when there is none."""
        if not self._last_known:
            self._last = self._decode(self.read_last())
            self._last_known = True
        return self._last

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Raises IndexOrderError unless it is above the last one and in the segment's range."""
        relative = offset - self.base_offset
        last = self.last
        if not 0 <= relative <= files.RELATIVE_OFFSET_MAX:
            raise IndexOrderError(f"offset {offset} does not fit a segment with base {self.base_offset}")
        if last is not None and offset <= last.offset:
            raise IndexOrderError(f"offset {offset} is not above the last entry's {last.offset}")
        if self.is_full:
            raise IndexOrderError(f"{self.path} is full with {self.count} entries")
        self._append(files.encode_offset_entry(relative, position))
        self._last = OffsetPosition(offset, position)

    def lookup(self, offset: int, floor: FloorSearch = files.find_offset_floor) -> OffsetPosition:
        """Where a scan for ``offset`` may safely start: the last entry at or below it.

        The index is sparse, so when every entry lies above, the answer is (base offset, position 0): a half-empty index
        is slow but never wrong. ``floor`` may be one that counts what it reads.
        """
        return self._decode(self.search(floor, offset - self.base_offset)) or OffsetPosition(self.base_offset, 0)

    def lookup_position(self, position: int) -> OffsetPosition | None:
        """The last entry whose batch begins at or below ``position``, or None: a batch boundary without a scan."""
        return self._decode(self.search(files.find_position_floor, position))

    def problem(self, log_size: int) -> str | None:
        """Why this cannot be the index of a log of ``log_size`` bytes, or None; looks at both ends only."""
        if size := self.file_size() % self.entry_size:
            return f"it ends with {size} bytes of half an entry"
        return files.offset_index_problem(self.read_ends(), log_size)

    def _decode(self, entry: bytes | None) -> OffsetPosition | None:
        if entry is None:
            return None
        relative, position = files.OFFSET_ENTRY.unpack(entry)
        return OffsetPosition(self.base_offset + relative, position)
