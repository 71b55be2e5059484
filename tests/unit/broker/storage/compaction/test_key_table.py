"""The table beside a dict, with good hashes and with ones of which nearly all are the same."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.storage.compaction.keys import LONG_BYTES, Keys, Words
from seglog_broker.storage.compaction.offset_map import ABSENT, KeyHash, KeyTable
from tests.support import examples


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
