"""The offset map of compaction: of every key the offset of its last record, within a bound of memory.

Exact where Kafka's SkimpyOffsetMap goes by a hash: two keys are one key only if their bytes are equal.
"""

from typing import Final

import numpy as np

from seglog_broker.storage.compaction.key_table import ABSENT, KeyTable, grow
from seglog_broker.storage.compaction.key_table import ENTRY_BYTES as _TABLE_BYTES
from seglog_broker.storage.compaction.keys import Keys
from seglog_protocol.batch_columns import Bools, Int64s

ENTRY_BYTES: Final = _TABLE_BYTES + 8
"""What an entry takes besides the bytes of its key, at most. A test measures it."""

_BLOCK: Final = 32 * 1024
"""Keys put at a time: enough for arrays to pay off, and all about them stays in the processor's cache."""

_NO_OFFSET: Final = -1


class OffsetMap:
    """Offsets by key; ``latest_offset`` is the last offset that the map covers."""

    def __init__(self, bytes_max: int, first_dirty: int) -> None:
        self.bytes_max = bytes_max
        self.first_dirty = first_dirty
        self.latest_offset = first_dirty - 1
        self.is_full = False
        self.is_complete = True
        """Whether every record of the dirty batches up to the latest offset could be read and has a key."""
        self._table = KeyTable()
        self._offsets = np.empty(0, np.int64)  # by entry of the table
        self._survivors: Int64s | None = None

    def __len__(self) -> int:
        """Keys."""
        return len(self._table)

    @property
    def size(self) -> int:
        """Bytes, as ENTRY_BYTES counts them."""
        return len(self._table) * ENTRY_BYTES + self._table.key_bytes

    def put(self, keys: Keys, offsets: Int64s) -> int:
        """Note records in the order of their offsets; how many were noted before the map was full.

        Full means that the next key might not fit: then even one that is there already is not noted, and no later one
        either. The first key of all always fits, so that every round gets somewhere.
        """
        done = 0
        while done < len(keys) and not self.is_full:
            block = keys[done : done + _BLOCK]
            count = self._count_fitting(block)
            if count:
                self._put(block[:count], offsets[done : done + count])
                done += count
            else:
                self.is_full = True
        return done

    def _count_fitting(self, keys: Keys) -> int:
        """How many may be put now, at least; 0 when the next one might not fit."""
        size, cost = self.size, ENTRY_BYTES + keys.length
        if size + int(cost.sum()) <= self.bytes_max:
            return len(keys)
        new = np.where(self.are_absent(keys), cost, 0)  # at most: keys may come twice
        fits = size + np.cumsum(new) - new + cost <= self.bytes_max
        if not len(self):
            fits[0] = True
        return len(keys) if fits.all() else int(np.argmin(fits))

    def _put(self, keys: Keys, offsets: Int64s) -> None:
        entries = self._table.find_or_add(keys)
        known, count = len(self._offsets), len(self._table)
        if count > known:
            grow(self._offsets, count + count // 32)
            self._offsets[known:] = _NO_OFFSET
        np.maximum.at(self._offsets, entries, offsets)
        self._survivors = None

    def last_offsets(self, first: int, last: int) -> Int64s:
        """The offsets in [first, last] of records that are the last of their keys, ascending; the map is finished."""
        if self._survivors is None:
            self._survivors = np.sort(self._offsets[: len(self)])
        return self._survivors[slice(*np.searchsorted(self._survivors, (first, last + 1)).tolist())]

    def are_last(self, offsets: Int64s) -> Bools:
        """Which of these dirty records, ascending and noted here, are the last of their keys."""
        found = np.zeros(len(offsets), np.bool_)
        if len(offsets):
            wanted = self.last_offsets(int(offsets[0]), int(offsets[-1]))
            places = np.searchsorted(offsets, wanted)
            found[places[offsets.take(places, mode="clip") == wanted]] = True
        return found

    def are_absent(self, keys: Keys) -> Bools:
        """Which of these keys, of clean records, have no dirty record."""
        absent = np.ones(len(keys), np.bool_)
        for first in range(0, len(keys), _BLOCK):
            block = slice(first, first + _BLOCK)
            absent[block] = self._table.find(keys[block]) == ABSENT
        return absent
