"""The expected bytes of a segment's two indexes, built from its batches by the rule that the broker writes them by.

Indexes have no checksum, but can be computed from the log, so comparing bytes checks every entry. The
``index.interval.bytes`` that an index was written with is in no file: if the configured one does not give the same
bytes, the only other possible one is derived from the entries.
"""

from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple

from seglog_protocol import segment_files as names
from seglog_protocol.record_batch import NO_TIMESTAMP, BatchHeader


class IndexBytes(NamedTuple):
    """The bytes of both index files of a segment."""

    offsets: bytes
    times: bytes


class ExpectedIndexes:
    """The indexes of a segment with the batches added so far, with an entry every ``interval`` bytes."""

    def __init__(self, base_offset: int, interval: int, bytes_max: int) -> None:
        self.interval = interval
        self._base_offset = base_offset
        self._offsets_max = bytes_max // names.OFFSET_ENTRY.size
        self._times_max = bytes_max // names.TIME_ENTRY.size
        self._offsets = bytearray()
        self._times = bytearray()
        self._indexed = 0
        self._largest = (NO_TIMESTAMP, base_offset)
        self._last_time = NO_TIMESTAMP

    def add(self, position: int, header: BatchHeader) -> None:
        """Add the batch at ``position``."""
        if header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, header.last_offset)
        if position - self._indexed > self.interval and not self._is_full:
            self._offsets += names.encode_offset_entry(header.last_offset - self._base_offset, position)
            self._times += self._time_entry()
            self._last_time = max(self._last_time, self._largest[0])
            self._indexed = position

    def copy(self) -> "ExpectedIndexes":
        """A copy with the same batches."""
        return deepcopy(self)

    def live(self) -> IndexBytes:
        """The files of a segment that is appended to."""
        return IndexBytes(bytes(self._offsets), bytes(self._times))

    def closed(self) -> IndexBytes:
        """The files of a closed segment: the time index ends with the largest timestamp."""
        return IndexBytes(bytes(self._offsets), bytes(self._times) + self._time_entry())

    @property
    def _is_full(self) -> bool:
        """Whether an index is full; one slot of the time index is kept for the last entry."""
        return (
            len(self._offsets) // names.OFFSET_ENTRY.size >= self._offsets_max
            or len(self._times) // names.TIME_ENTRY.size >= self._times_max - 1
        )

    def _time_entry(self) -> bytes:
        timestamp, offset = self._largest
        if timestamp <= self._last_time:
            return b""
        return names.encode_time_entry(timestamp, offset - self._base_offset)


class TrueTimes:
    """Checks the entries of a time index, wherever they were added: each must be true of the batches.

    Kafka also adds the largest timestamp at every stop, so its indexes have entries between those of the interval.
    ``found`` is the content of the index.
    """

    def __init__(self, found: bytes, base_offset: int) -> None:
        size = names.TIME_ENTRY.size
        self._entries = [found[at : at + size] for at in range(0, len(found), size)]
        self._wanted = frozenset(self._entries)
        self._true: set[bytes] = set()
        self._base_offset = base_offset
        self._largest = NO_TIMESTAMP

    def add(self, header: BatchHeader) -> None:
        """Add the next batch."""
        if self._wanted and header.max_timestamp > self._largest:
            self._largest = header.max_timestamp
            entry = names.encode_time_entry(header.max_timestamp, header.last_offset - self._base_offset)
            if entry in self._wanted:
                self._true.add(entry)

    def are_all(self, least: bytes, *, is_complete: bool) -> bool:
        """Whether every entry of the index is true and in order, and the entries in ``least`` are among them.

        If the index is not ``is_complete``, it may end before the last entry of ``least``.
        """
        size = names.TIME_ENTRY.size
        if self._entries and len(self._entries[-1]) < size:
            return False
        timestamps = [names.TIME_ENTRY.unpack(entry)[0] for entry in self._entries]
        wanted = [least[at : at + size] for at in range(0, len(least), size)]
        if not is_complete:
            wanted = [entry for entry in wanted if timestamps and names.TIME_ENTRY.unpack(entry)[0] <= timestamps[-1]]
        is_rising = all(one < following for one, following in pairwise(timestamps))
        return is_rising and self._wanted == self._true and self._wanted >= set(wanted)


def interval_of(offsets: bytes) -> int | None:
    """The largest ``index.interval.bytes`` that gives these entries of an offset index; None if none does."""
    before, smallest = 0, None
    for entry in names.offset_entries(offsets):
        gap = entry.position - before
        if gap <= 0:
            return None
        smallest = gap if smallest is None else min(smallest, gap)
        before = entry.position
    return None if smallest is None else smallest - 1
