import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.compaction.keys import LONG_BYTES, Keys
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.batch_columns import read_batches
from seglog_protocol.record_columns import open_batches

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
