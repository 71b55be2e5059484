"""The partitions of many records at once: the vectorised form of ``partitioner``."""

import random
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from seglog.core.partitioner import murmur2
from seglog_protocol.batch_columns import Int64s

LOCKSTEP_MIN: Final = 16
"""Number of keys from which hashing four bytes of each at a time is cheaper than plain Python."""

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_BLOCK_BYTES: Final = 4
_BLOCK_KEYS: Final = 32 * 1024  # whose arrays stay in the processor's cache
_POSITIVE: Final = np.uint32(0x7FFFFFFF)

Hashes = npt.NDArray[np.uint32]


def murmur2_of(data: bytes | memoryview, starts: Int64s, lengths: Int64s) -> Hashes:
    """``partitioner.murmur2`` of each key ``data[start : start + length]``; lengths must not be negative."""
    octets = np.frombuffer(data, np.uint8)
    blocks = np.ndarray((max(0, len(octets) - 3),), np.dtype("<u4"), data, strides=(1,))
    hashes: Hashes = _SEED ^ lengths.astype(np.uint32)
    whole = lengths // _BLOCK_BYTES
    active, position, step = np.flatnonzero(whole), starts[whole > 0], 0
    while active.size >= LOCKSTEP_MIN:
        block = blocks[position] * _MULTIPLIER
        block = (block ^ (block >> np.uint32(24))) * _MULTIPLIER
        hashes[active] = hashes[active] * _MULTIPLIER ^ block
        step += 1
        left = whole[active] > step
        active, position = active[left], position[left] + _BLOCK_BYTES
    tails = lengths & (_BLOCK_BYTES - 1)
    for count in range(1, _BLOCK_BYTES):
        which = np.flatnonzero(tails == count)
        at = starts[which] + lengths[which] - count
        tail = np.zeros(len(which), np.uint32)
        for place in range(count):
            tail |= octets[at + place].astype(np.uint32) << np.uint32(8 * place)
        hashes[which] = (hashes[which] ^ tail) * _MULTIPLIER
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    for number in active.tolist():  # few, and longer than all others
        start = int(starts[number])
        hashes[number] = murmur2(bytes(octets[start : start + int(lengths[number])]))
    return hashes


def partitions_for_keys(data: bytes | memoryview, starts: Int64s, lengths: Int64s, partitions: int) -> Int64s:
    """``partitioner.partition_for_key`` of each key."""
    found = np.empty(len(starts), np.int64)
    for first in range(0, len(starts), _BLOCK_KEYS):
        block = slice(first, first + _BLOCK_KEYS)
        found[block] = (murmur2_of(data, starts[block], lengths[block]) & _POSITIVE) % np.uint32(partitions)
    return found


class StickyPartitions:
    """Partitions of records without a key: one until a batch of it is full, then another.

    ``choose`` is ``random.randrange`` or a replacement in tests.
    """

    def __init__(self, partitions: int, batch_bytes: int, choose: Callable[[int], int] = random.randrange) -> None:
        self._partitions = partitions
        self._batch_bytes = batch_bytes
        self._choose = choose
        self._sticky = choose(partitions)
        self._filled = 0

    def place(self, sizes: Int64s) -> Int64s:
        """The partitions of records with these sizes in bytes, in order."""
        filled = self._filled + np.cumsum(sizes)
        which = filled // self._batch_bytes
        batches = [self._sticky]
        for _ in range(int(which[-1]) if len(which) else 0):
            batches.append(self._another(batches[-1]))
        if len(which):
            self._sticky, self._filled = batches[-1], int(filled[-1]) % self._batch_bytes
        return np.array(batches, np.int64)[which]

    def _another(self, partition: int) -> int:
        if self._partitions == 1:
            return partition
        other = self._choose(self._partitions - 1)
        return other + (other >= partition)
