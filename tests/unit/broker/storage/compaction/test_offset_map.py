import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.storage.compaction.keys import Keys
from seglog_broker.storage.compaction.offset_map import ENTRY_BYTES, OffsetMap
from tests.support import examples


def _put(offset_map: OffsetMap, keys: list[bytes], first: int = 0) -> int:
    return offset_map.put(Keys.of(keys), np.arange(first, first + len(keys)))


@pytest.mark.parametrize("size", [8, 17, *(pytest.param(size, marks=pytest.mark.soak) for size in (16, 100, 1000))])
def test_an_entry_never_takes_more_than_it_is_counted_for(size: int) -> None:
    offset_map = OffsetMap(1 << 30, 1000)
    pieces = [
        Keys.of([b"%0*d" % (size, number) for number in range(first, first + 100)]) for first in range(0, 20_000, 100)
    ]
    tracemalloc.start()
    try:
        for first, piece in zip(range(0, 20_000, 100), pieces, strict=True):
            offset_map.put(piece, np.arange(1000 + first, 1100 + first))
            peak = tracemalloc.get_traced_memory()[1]
            if first >= 10_000:  # below it arrays of a piece, and small tables, count for more than the entries
                assert peak <= offset_map.size
        assert offset_map.size == len(offset_map) * (ENTRY_BYTES + size)
        offset_map.are_last(np.arange(1000, 21_000))
        assert tracemalloc.get_traced_memory()[0] <= offset_map.size
    finally:
        tracemalloc.stop()


def test_only_equal_bytes_are_one_key() -> None:
    offset_map = OffsetMap(1 << 20, 0)
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0"]
    assert _put(offset_map, [*keys, b"a"]) == 6
    assert offset_map.are_last(np.arange(6)).tolist() == [True, True, True, False, True, True]
    assert offset_map.are_absent(Keys.of([*keys, b"b"])).tolist() == [False] * 5 + [True]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.text("ab", max_size=20).map(str.encode), min_size=1, max_size=60),
    st.integers(1, 60),
    st.sampled_from([0, 300, 1000, 2000, 1 << 20]),
)
def test_the_map_is_what_a_dict_would_be(keys: list[bytes], piece: int, bytes_max: int) -> None:
    offsets, size, noted = dict[bytes, int](), 0, 0
    for key in keys:
        if offsets and size + ENTRY_BYTES + len(key) > bytes_max:
            break
        size += 0 if key in offsets else ENTRY_BYTES + len(key)
        offsets[key] = noted
        noted += 1
    offset_map, done = OffsetMap(bytes_max, 0), 0
    while done < len(keys) and not offset_map.is_full:
        done += _put(offset_map, keys[done : done + piece], done)
    assert (done, offset_map.is_full, offset_map.size) == (noted, noted < len(keys), size)
    assert offset_map.last_offsets(0, len(keys)).tolist() == sorted(offsets.values())
    assert offset_map.are_absent(Keys.of(keys)).tolist() == [key not in offsets for key in keys]
