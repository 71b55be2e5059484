"""The offset map of compaction: of every key the offset of its last record, within a bound of memory.

Exact where Kafka's SkimpyOffsetMap goes by a hash: two keys are one key only if their bytes are equal.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np

from seglog_protocol.batch_columns import Bools, Int64s

ENTRY_BYTES: Final = 33 + 15 + 32 + 90
"""What an entry takes besides the bytes of its key, at most: the key's object, its rounding up, the offset's object,
and its share of the dict, whose table has 30 to 60 bytes for each entry and both while it grows. A test measures it."""

_BLOCK: Final = 1024
"""Keys put at a time where not all of a piece fit."""


class OffsetMap:
    """Offsets by key; ``latest_offset`` is the last offset that the map covers."""

    def __init__(self, bytes_max: int, first_dirty: int) -> None:
        self.bytes_max = bytes_max
        self.first_dirty = first_dirty
        self.latest_offset = first_dirty - 1
        self.is_full = False
        self.is_complete = True
        """Whether every record of the dirty batches up to the latest offset could be read and has a key."""
        self.size = 0
        """Bytes, as ENTRY_BYTES counts them."""
        self._offsets: dict[bytes, int] = {}
        self._survivors: Int64s | None = None

    def __len__(self) -> int:
        """Keys."""
        return len(self._offsets)

    def put(self, keys: Sequence[bytes], offsets: Sequence[int]) -> int:
        """Note records in the order of their offsets; how many were noted before the map was full.

        Full means that the next key might not fit: then even one that is there already is not noted, and no later one
        either. The first key of all always fits, so that every round gets somewhere.
        """
        most = len(keys) * ENTRY_BYTES + sum(map(len, keys))
        if self.size + most <= self.bytes_max:
            self._put_all(keys, offsets)
            return len(keys)
        if len(keys) > _BLOCK:
            done = 0
            while done < len(keys) and not self.is_full:
                done += self.put(keys[done : done + _BLOCK], offsets[done : done + _BLOCK])
            return done
        for number, (key, offset) in enumerate(zip(keys, offsets, strict=True)):
            if self._offsets and self.size + ENTRY_BYTES + len(key) > self.bytes_max:
                self.is_full = True
                return number
            self._put_all((key,), (offset,))
        return len(keys)

    def _put_all(self, keys: Sequence[bytes], offsets: Sequence[int]) -> None:
        before = len(self._offsets)
        # By way of a small dict, which finds those that come twice in a piece without leaving the processor's cache.
        self._offsets |= dict(zip(keys, offsets, strict=True))
        added = len(self._offsets) - before
        # A dict keeps the order of insertion: the new ones are its last.
        self.size += added * ENTRY_BYTES + sum(map(len, islice(reversed(self._offsets), added)))

    def last_offsets(self, first: int, last: int) -> Int64s:
        """The offsets in [first, last] of records that are the last of their keys, ascending; the map is finished."""
        if self._survivors is None:
            self._survivors = np.fromiter(self._offsets.values(), np.int64, len(self._offsets))
            self._survivors.sort()
        return self._survivors[slice(*np.searchsorted(self._survivors, (first, last + 1)).tolist())]

    def are_last(self, offsets: Int64s) -> Bools:
        """Which of these dirty records, ascending and noted here, are the last of their keys."""
        found = np.zeros(len(offsets), np.bool_)
        if len(offsets):
            wanted = self.last_offsets(int(offsets[0]), int(offsets[-1]))
            places = np.searchsorted(offsets, wanted)
            found[places[offsets.take(places, mode="clip") == wanted]] = True
        return found

    def are_absent(self, keys: Sequence[bytes]) -> Bools:
        """Which of these keys of clean records have no dirty record."""
        return np.fromiter((key not in self._offsets for key in keys), np.bool_, len(keys))
