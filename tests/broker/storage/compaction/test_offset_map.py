import tracemalloc

import numpy as np
import pytest

from seglog_broker.storage.compaction.offset_map import ENTRY_BYTES, OffsetMap


def _keys(first: int, last: int, size: int) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(first, last)]


@pytest.mark.parametrize("size", [8, 16, 100])
def test_an_entry_never_takes_more_than_it_is_counted_for(size: int) -> None:
    offset_map = OffsetMap(1 << 30, 1000)
    tracemalloc.start()
    try:
        for first in range(0, 50_000, 1000):
            offset_map.put(_keys(first, first + 1000, size), list(range(1000 + first, 2000 + first)))
            peak = tracemalloc.get_traced_memory()[1]
            if first >= 10_000:  # below it the lists of this test, and small tables, count for more than the entries
                assert peak <= offset_map.size
        assert offset_map.size == len(offset_map) * (ENTRY_BYTES + size)
        offset_map.are_last(np.arange(1000, 51_000))
        assert tracemalloc.get_traced_memory()[0] <= offset_map.size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("piece", [1, 7, 5000])
def test_the_map_is_full_at_the_same_record_however_they_come(piece: int) -> None:
    keys = [b"key %d" % (number % 3000) for number in range(9000)]
    limit = 2500 * (ENTRY_BYTES + 8)
    offset_map, done = OffsetMap(limit, 0), 0
    while not offset_map.is_full:
        done += offset_map.put(keys[done : done + piece], range(done, min(done + piece, len(keys))))
    fit, size = 0, 0
    while size + ENTRY_BYTES + len(keys[fit]) <= limit:
        size += ENTRY_BYTES + len(keys[fit])
        fit += 1
    assert done == fit
    assert offset_map.size == size <= limit


def test_the_first_key_always_fits() -> None:
    offset_map = OffsetMap(0, 0)
    assert offset_map.put([b"a" * 1000, b"b"], [0, 1]) == 1
    assert offset_map.is_full


def test_only_equal_bytes_are_one_key() -> None:
    offset_map = OffsetMap(1 << 20, 0)
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0"]
    assert offset_map.put([*keys, b"a"], range(6)) == 6
    assert offset_map.are_last(np.arange(6)).tolist() == [True, True, True, False, True, True]
    assert offset_map.are_absent([*keys, b"b"]).tolist() == [False] * 5 + [True]
