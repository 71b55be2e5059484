"""Which partition a record goes to: Kafka's default, so that both put a key in the same place.

A record with a key goes to murmur2(key) of the number of partitions; one without sticks to one partition until that
partition's batch is closed, and then to another. Source: Kafka's Utils.murmur2 and BuiltInPartitioner.
"""

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Final

KEYS_CACHED_MAX: Final = 16_384
"""Hashing costs a microsecond for every ten bytes, and keys come again."""

KEY_BYTES_CACHED_MAX: Final = 256
"""Longer keys are hashed every time, so that the cache holds a few megabytes at most."""

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit MurmurHash2, as an unsigned number."""
    size = len(data)
    value = _SEED ^ size
    whole = size & ~3
    for position in range(0, whole, 4):
        block = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
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
    """Kafka's default placement for one topic. ``choose`` is ``random.randrange`` or a stand-in for it."""

    def __init__(self, partitions: int, choose: Callable[[int], int] = random.randrange) -> None:
        self.partitions = partitions
        self._choose = choose
        self._sticky = choose(partitions)

        # Of this object, not of the module: it goes with the producer, and needs no number of partitions in its keys.
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
        """A batch of that partition takes no more records: keyless ones that went there go elsewhere from now on."""
        if partition == self._sticky and self.partitions > 1:
            other = self._choose(self.partitions - 1)
            self._sticky = other + (other >= partition)
