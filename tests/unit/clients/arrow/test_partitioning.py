import random
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seglog.arrow.encoding import StickyPartitions, murmur2_of, partitions_for_keys
from seglog.core.partitioner import murmur2, partition_for_key
from tests.support import each_case


def _laid_out(keys: list[bytes], between: bytes = b"") -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.cumsum(lengths + len(between)) - lengths
    return b"".join(between + key for key in keys), starts, lengths


@given(st.lists(st.binary(max_size=30), max_size=60), st.binary(max_size=3))
def test_many_keys_are_hashed_like_one(keys: list[bytes], between: bytes) -> None:
    assert murmur2_of(*_laid_out(keys, between)).tolist() == [murmur2(key) for key in keys]


@given(st.lists(st.binary(max_size=12), max_size=20), st.integers(1, 1000))
def test_many_keys_go_where_the_producer_puts_them(keys: list[bytes], partitions: int) -> None:
    found = partitions_for_keys(*_laid_out(keys), partitions)
    assert found.tolist() == [partition_for_key(key, partitions) for key in keys]


@each_case("lengths", [[0], [1, 2, 3], [5000], [12] * 100 + [70_001], list(range(100)), [8] * 40_000])
def test_keys_of_any_length_in_any_number(lengths: list[int]) -> None:
    source = random.Random(1)
    keys = [source.randbytes(length) for length in lengths]
    assert murmur2_of(*_laid_out(keys)).tolist() == [murmur2(key) for key in keys]
    assert partitions_for_keys(*_laid_out(keys), 7).tolist() == [partition_for_key(key, 7) for key in keys]


@given(st.lists(st.lists(st.integers(1, 300), max_size=20), max_size=5), st.integers(1, 4))
def test_records_without_a_key_stay_with_a_partition_until_a_batch_is_full(
    sizes: list[list[int]], partitions: int
) -> None:
    sticky = StickyPartitions(partitions, 500, random.Random(3).randrange)
    placed = [
        place for some in sizes for place in zip(some, sticky.place(np.array(some, np.int64)).tolist(), strict=True)
    ]
    filled = 0
    for (size, partition), (next_size, following) in pairwise(placed):
        assert 0 <= partition < partitions
        filled += size
        if (filled + next_size) // 500 == filled // 500:
            assert following == partition
        elif partitions > 1 and next_size <= 500:
            assert following != partition
