"""The offset map of compaction, over a hash table of keys: of every key the offset of its last record.

Its memory is bounded. Exact where Kafka's SkimpyOffsetMap goes by a hash: two keys are one key only if their bytes are
equal.
"""

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seglog_broker.storage.compaction.keys import LONG_BYTES, WORD_BYTES, Keys, Words
from seglog_protocol.batch_columns import Bools, Int64s

Entries: TypeAlias = npt.NDArray[np.int32]

ABSENT: Final = -1
"""Instead of an entry: there is none."""

TABLE_ENTRY_BYTES: Final = 56
"""What an entry takes besides the bytes of its key, at most: its columns, filling its key up to whole words, its share
of the slots, of which there are two tables while they grow, and the room for more."""

_SLOTS_MIN: Final = 1024
_SLOTS_A_KEY: Final = 2  # at least
_HEAP_STEP: Final = 1 << 13
_MOVED_AT_A_TIME: Final = 4096
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
_MIX: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))  # of MurmurHash3
_MIX_SHIFT: Final = np.uint64(33)


class KeyHash:
    """Hashes of 64 bits, by secret numbers: keys cannot be chosen so that their hashes collide.

    NH, the universal hash of UMAC (RFC 4418): of 2**32 secrets one gives two keys of the same length the same hash.
    What is done to it then spreads the bits.
    """

    def __init__(self) -> None:
        self._secrets = [
            (np.uint64(secrets.randbits(32)), np.uint64(secrets.randbits(32))) for _ in range(0, LONG_BYTES, WORD_BYTES)
        ]
        self._of_length = np.uint64(secrets.randbits(64) | 1)

    def of(self, keys: Keys, words: Sequence[Words]) -> Words:
        """The hash of each key; ``words`` are theirs."""
        hashes = keys.length.astype(np.uint64) * self._of_length
        for row, (of_low, of_high) in zip(words, self._secrets, strict=False):
            hashes += (row + of_low & _LOW_HALF) * ((row >> _HALF) + of_high & _LOW_HALF)
            hashes -= (
                of_low * of_high
            )  # so that rows behind a key's end, of which there are more or less, count nothing
        for number in np.flatnonzero(keys.length > LONG_BYTES).tolist():
            hashes[number] = hash(keys.bytes_of(number)) & 0xFFFFFFFFFFFFFFFF
        for factor in _MIX:
            hashes ^= hashes >> _MIX_SHIFT
            hashes *= factor
        return hashes


class _Asked(NamedTuple):
    """Keys, and what is needed of them at every slot."""

    keys: Keys
    words: list[Words]
    hashes: Words


class KeyTable:
    """Entry n has the hash and the place of the n-th key; ``_heap`` has the keys, each filled up to whole words.

    Slots have numbers of entries. A key's is in the first slot that is free or has it, of those that its hash names one
    after the other.
    """

    def __init__(self, key_hash: KeyHash | None = None) -> None:
        self.key_bytes = 0
        """Of all keys."""
        self._count = 0
        self._key_hash = key_hash or KeyHash()
        self._slots = np.full(_SLOTS_MIN, ABSENT, np.int32)
        self._hash = np.empty(0, np.uint64)
        self._start = np.empty(0, np.int64)  # counts words
        self._length = np.empty(0, np.int32)
        self._heap = np.zeros(_HEAP_STEP, np.uint64)
        self._heap_end = 0

    def __len__(self) -> int:
        """Keys."""
        return self._count

    def find(self, keys: Keys) -> Entries:
        """The entry of each key, or ABSENT."""
        return self._look_up(keys, add=False)

    def find_or_add(self, keys: Keys) -> Entries:
        """The entry of each key; those without one get it."""
        self._grow_slots(self._count + len(keys))
        return self._look_up(keys, add=True)

    def _look_up(self, keys: Keys, *, add: bool) -> Entries:
        words = keys.words()
        asked = _Asked(keys, words, self._key_hash.of(keys, words))
        found = np.full(len(keys), ABSENT, np.int32)
        left, slot, step = np.arange(len(keys)), self._first_slot(asked.hashes), 1
        while left.size:
            entry = self._slots.take(slot)
            free = np.flatnonzero(entry == ABSENT)
            if free.size and add:
                entry[free] = self._claim(slot[free], asked, left[free])
            elif free.size:
                taken = entry != ABSENT
                left, slot, entry = left[taken], slot[taken], entry[taken]
            is_it = self._are_at(entry, asked, left)
            found[left[is_it]] = entry[is_it]
            left, slot = left[~is_it], self._next_slot(slot[~is_it], step)
            step += 1
        return found

    def _first_slot(self, hashes: Words) -> Int64s:
        return (hashes & np.uint64(len(self._slots) - 1)).astype(np.int64)

    def _next_slot(self, slot: Int64s, step: int) -> Int64s:
        """Steps that grow by one meet every slot of a table whose size is a power of two."""
        return slot + step & len(self._slots) - 1

    def _are_at(self, entry: Entries, asked: _Asked, which: Int64s) -> Bools:
        """For each of some keys whether it is that of its entry."""
        is_it: Bools = self._hash.take(entry) == asked.hashes.take(which)
        is_it &= self._length.take(entry) == asked.keys.length.take(which)
        alike = np.flatnonzero(is_it)
        start, which = self._start.take(entry[alike]), which.take(alike)
        length = asked.keys.length.take(which)
        shortest, longest = int(length.min(initial=LONG_BYTES)), int(length.max(initial=0))
        equal = np.ones(len(alike), np.bool_)
        for number, row in enumerate(asked.words):
            known = self._heap.take(start + number, mode="clip")
            same = known == row.take(which)
            if shortest <= number * WORD_BYTES:
                same |= length <= number * WORD_BYTES
            equal &= same
        if longest > LONG_BYTES:
            for number in np.flatnonzero(length > LONG_BYTES).tolist():
                first = int(start[number]) * WORD_BYTES
                octets = self._heap.view(np.uint8)[first : first + int(length[number])]
                equal[number] = octets.tobytes() == asked.keys.bytes_of(int(which[number]))
        is_it[alike] = equal
        return is_it

    # --- New keys -----------------------------------------------------------------------------------------------------

    def _claim(self, slot: Int64s, asked: _Asked, which: Int64s) -> Entries:
        """Give each of these free slots to one of the keys that would have it; what the slots have then."""
        # Each key writes its number into its slot. The one that is found there has it.
        number = which.astype(np.int32)
        self._slots[slot] = number
        has_it = self._slots.take(slot) == number
        self._slots[slot[has_it]] = self._add(asked, which[has_it])
        return self._slots.take(slot)

    def _add(self, asked: _Asked, which: Int64s) -> Entries:
        """Entries for some new keys."""
        first, last = self._count, self._count + len(which)
        if last > len(self._hash):
            for column in (self._hash, self._start, self._length):
                grow(column, last + last // 32)
        length = asked.keys.length[which]
        ends = self._heap_end + np.cumsum(-(-length // WORD_BYTES))
        start = np.append(self._heap_end, ends[:-1])
        self._hash[first:last], self._start[first:last], self._length[first:last] = asked.hashes[which], start, length
        if int(ends[-1]) > len(self._heap):
            grow(self._heap, -(-int(ends[-1]) // _HEAP_STEP) * _HEAP_STEP)
        shortest = int(length.min())
        for number, row in enumerate(asked.words):
            if shortest > number * WORD_BYTES:
                self._heap[start + number] = row[which]
            else:
                having = np.flatnonzero((length > number * WORD_BYTES) & (length <= LONG_BYTES))
                self._heap[start[having] + number] = row[which[having]]
        for number in np.flatnonzero(length > LONG_BYTES).tolist():
            key = asked.keys.bytes_of(int(which[number]))
            first_byte = int(start[number]) * WORD_BYTES
            self._heap.view(np.uint8)[first_byte : first_byte + len(key)] = np.frombuffer(key, np.uint8)
        self.key_bytes += int(length.sum())
        self._count, self._heap_end = last, int(ends[-1])
        return np.arange(first, last, dtype=np.int32)

    def _grow_slots(self, keys: int) -> None:
        """Have room for so many."""
        size = len(self._slots)
        while size < _SLOTS_A_KEY * keys:
            size *= 2
        if size == len(self._slots):
            return
        self._slots = np.full(size, ABSENT, np.int32)
        for first in range(0, self._count, _MOVED_AT_A_TIME):
            number = np.arange(first, min(first + _MOVED_AT_A_TIME, self._count), dtype=np.int32)
            slot, step = self._first_slot(self._hash[number]), 1
            while number.size:
                free = self._slots.take(slot) == ABSENT
                self._slots[slot[free]] = number[free]
                is_left = self._slots.take(slot) != number
                number, slot = number[is_left], self._next_slot(slot[is_left], step)
                step += 1


def grow(column: npt.NDArray[np.generic], size: int) -> None:
    """Make an array larger in place, where a copy would need the memory twice; nothing else may have a view of it."""
    column.resize(size, refcheck=False)


ENTRY_BYTES: Final = TABLE_ENTRY_BYTES + 8
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
