"""Adds entries to both indexes of a segment when they are due, batch by batch as they are appended."""

from collections.abc import Iterable

from seglog_broker.storage.segment.offset_index import OffsetIndex
from seglog_broker.storage.segment.time_index import TimeIndex, TimestampOffset
from seglog_protocol.record_batch import INT64_MIN

WrittenBatch = tuple[int, int, int]
"""(size in bytes, last offset, largest timestamp in ms) of a batch."""


class IndexWriter:
    """Writes to both indexes and knows what the next entry depends on.

    ``largest`` is (largest timestamp, last offset of the earliest batch that has it), None while it is not known.
    ``bytes_since_entry`` counts from where the batch of the last entry begins.
    """

    def __init__(self, offset_index: OffsetIndex, time_index: TimeIndex, interval: int) -> None:
        """An entry is due behind ``interval`` bytes without one."""
        self.interval = interval
        self.largest: TimestampOffset | None = None
        self.bytes_since_entry = 0
        self._offset_index = offset_index
        self._time_index = time_index

    @property
    def is_full(self) -> bool:
        """Whether the next append might not fit one of the indexes."""
        return self._offset_index.is_full or self._time_index.is_full

    def create(self) -> None:
        """Make both files, if they are not there."""
        self._offset_index.create()
        self._time_index.create()

    def add(self, position: int, batches: Iterable[WrittenBatch]) -> int | None:
        """Count batches that lie one behind the other from ``position`` on, and add the index entries that are due.

        Returns the position of the last batch that got entries, None where none did.
        """
        largest, since, indexed = self.largest, self.bytes_since_entry, None
        highest = INT64_MIN - 1 if largest is None else largest.timestamp
        interval = self.interval
        for size, last_offset, max_timestamp in batches:
            if max_timestamp > highest:
                highest = max_timestamp
                largest = TimestampOffset(max_timestamp, last_offset)
            if since > interval and not self.is_full:
                assert largest is not None
                self._offset_index.append(last_offset, position)
                self._time_index.offer(*largest)
                since, indexed = 0, position
            since += size
            position += size
        self.largest, self.bytes_since_entry = largest, since
        return indexed

    def resume(self, largest: TimestampOffset, bytes_since_entry: int) -> None:
        """Go on where an earlier writer of these files has stopped."""
        self.largest, self.bytes_since_entry = largest, bytes_since_entry

    def save(self) -> None:
        """Write the entries that are still in memory, and trim the files; after an OSError they stay there."""
        self._offset_index.trim()
        self._time_index.trim()

    def close(self, largest: TimestampOffset) -> None:
        """Add the closing time entry of a segment."""
        self._time_index.offer(*largest, closing=True)

    def reset(self) -> None:
        """Drop every entry."""
        self._offset_index.reset()
        self._time_index.reset()

    def beside(self) -> "IndexWriter":
        """A writer of empty indexes in files of their own."""
        return IndexWriter(self._offset_index.beside(), self._time_index.beside(), self.interval)

    def take_over(self, made: "IndexWriter") -> None:
        """Replace both indexes by those of ``made``, a writer from ``beside``, atomically and once they are synced."""
        self._offset_index.take_over(made._offset_index)  # noqa: SLF001 - it is one of these
        self._time_index.take_over(made._time_index)  # noqa: SLF001
        self.largest, self.bytes_since_entry = made.largest, made.bytes_since_entry

    def remove(self) -> None:
        """Remove both files and every entry."""
        self._offset_index.remove()
        self._time_index.remove()
