"""The partitioner: Kafka's default, so that both put a key into the same partition.

A record with a key goes to partition murmur2(key) modulo the number of partitions. Records without a key go to one
sticky partition until its batch is closed, then to another. Source: Kafka's Utils.murmur2 and BuiltInPartitioner.
"""

import random
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final

KEYS_CACHED_MAX: Final = 16_384
"""Hashing costs a tenth of a microsecond for every byte, and keys repeat."""

KEY_BYTES_CACHED_MAX: Final = 256
"""Longer keys are hashed every time, so that the cache holds a few megabytes at most."""

_BLOCKS: Final = Struct("<I")
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit MurmurHash2, as an unsigned number."""
    size = len(data)
    value = _SEED ^ size
    whole = size & ~3
    for (number,) in _BLOCKS.iter_unpack(data[:whole]):
        block = number * _MULTIPLIER & _MASK
        block = (block ^ (block >> 24)) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ block
    if size != whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ (value >> 13)) * _MULTIPLIER & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of ``key`` among ``partitions``."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner:
    """Kafka's default partitioner for one topic. ``choose`` is ``random.randrange`` or a replacement in tests."""

    def __init__(self, partitions: int, choose: Callable[[int], int] = random.randrange) -> None:
        self.partitions = partitions
        self._choose = choose
        self._sticky = choose(partitions)

        # Per object: it is freed with the producer, and its keys need no number of partitions.
        @lru_cache(maxsize=KEYS_CACHED_MAX)
        def for_key(key: bytes) -> int:
            return partition_for_key(key, partitions)

        self.for_key = for_key

    def place(self, key: bytes | None) -> int:
        """The partition of a record with this key."""
        if key is None:
            return self._sticky
        return self.for_key(key) if len(key) <= KEY_BYTES_CACHED_MAX else partition_for_key(key, self.partitions)

    def batch_closed(self, partition: int) -> None:
        """Choose another sticky partition if a batch of the current one was closed."""
        if partition == self._sticky and self.partitions > 1:
            other = self._choose(self.partitions - 1)
            self._sticky = other + (other >= partition)
