"""The keys of records, the table that numbers them, and the map of their last offsets, beside plain ones."""

import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.storage.compaction.keys import LONG_BYTES, Keys, Words
from seglog_broker.storage.compaction.offset_map import ABSENT, ENTRY_BYTES, KeyHash, KeyTable, OffsetMap
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.batch_columns import read_batches
from seglog_protocol.record_columns import open_batches
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


_KEYS = st.lists(
    st.binary(max_size=20) | st.integers(LONG_BYTES - 9, LONG_BYTES + 9).map(lambda size: b"\xee" * size), max_size=40
)


@given(st.lists(st.binary(max_size=4), max_size=300), st.booleans())
def test_keys_are_those_bytes_whatever_their_lengths(keys: list[bytes], same: bool) -> None:
    keys = [key.ljust(4, b"\0") for key in keys] if same else keys * 40
    batches = read_batches(encode_batch([(0, key, b"", ()) for key in [*keys, b"end"]]))
    (opened,) = open_batches(batches)
    found = Keys.of_records(opened.records, np.arange(len(keys)))
    assert [found.bytes_of(number) for number in range(len(found))] == keys


@given(_KEYS)
def test_the_words_of_a_key_are_its_bytes_and_zeros(keys: list[bytes]) -> None:
    rows = Keys.of(keys).words()
    for number, key in enumerate(keys):
        octets = b"".join(int(row[number]).to_bytes(8, "little") for row in rows)
        assert octets == (key if len(key) <= LONG_BYTES else b"").ljust(len(octets), b"\0")


@given(_KEYS, st.integers(0, 40), st.integers(0, 40))
def test_some_keys_are_those_alone(keys: list[bytes], first: int, last: int) -> None:
    some = Keys.of(keys)[first:last]
    assert [some.bytes_of(number) for number in range(len(some))] == keys[first:last]


# --- The table beside a dict, with good hashes and with ones of which nearly all are the same -------------------------


class _FewHashes(KeyHash):
    """Two keys in three share theirs with others."""

    def of(self, keys: Keys, words: Sequence[Words]) -> Words:
        return super().of(keys, words) & np.uint64(3)


_SHORT = st.text(st.sampled_from("\0a"), max_size=18).map(str.encode)
_LONG = st.integers(LONG_BYTES, LONG_BYTES + 2).flatmap(
    lambda size: st.sampled_from([b"a" * size, b"a" * (size - 1) + b"b"])
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(_SHORT | _LONG, max_size=30), max_size=6), st.sampled_from([KeyHash, _FewHashes]))
def test_keys_are_numbered_as_they_come_and_found_again(blocks: list[list[bytes]], key_hash: type[KeyHash]) -> None:
    table, known = KeyTable(key_hash()), dict[bytes, int]()
    for block in blocks:
        asked = Keys.of([*block, b"never put"])
        expected = [known.get(key, ABSENT) for key in block]
        assert table.find(asked).tolist() == [*expected, ABSENT]
        entries = table.find_or_add(asked[: len(block)]).tolist()
        for key, entry in zip(block, entries, strict=True):
            assert known.setdefault(key, entry) == entry
        assert sorted(known.values()) == list(range(len(known))) == list(range(len(table)))
        assert table.key_bytes == sum(map(len, known))


@pytest.mark.parametrize("sizes", [[16], [3, 8, 9, 30], [LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1]])
def test_a_table_that_grows_loses_nothing(sizes: list[int]) -> None:
    source = random.Random(5)
    keys = [source.randbytes(source.choice(sizes)) for _ in range(9000)]
    table = KeyTable()
    entries = np.concatenate([table.find_or_add(Keys.of(keys[at : at + 700])) for at in range(0, len(keys), 700)])
    numbers = dict(zip(keys, entries.tolist(), strict=True))
    assert len(table) == len(set(keys)) == len(numbers)
    assert table.find(Keys.of(keys)).tolist() == entries.tolist()
    assert table.find(Keys.of([key[:-1] + b"?" for key in keys if key[-1:] != b"?"])).max() == ABSENT


def test_a_hash_does_not_depend_on_the_keys_beside_it() -> None:
    key_hash = KeyHash()
    alone, beside = (Keys.of(keys) for keys in ([b"key"], [b"key", b"a much longer one", b""]))
    assert key_hash.of(alone, alone.words())[0] == key_hash.of(beside, beside.words())[0]


def test_hashes_are_secret() -> None:
    keys = Keys.of([b"key", b"k" * LONG_BYTES])
    assert not set(KeyHash().of(keys, keys.words()).tolist()) & set(KeyHash().of(keys, keys.words()).tolist())
