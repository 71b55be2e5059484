"""Keys go where Java's client puts them."""

import base64
import json
from collections.abc import Iterator
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from seglog.core.partitioner import Partitioner, murmur2, partition_for_key
from tests.support import shared_data


def test_two_hundred_keys_go_where_kafkas_java_client_put_them() -> None:
    facts = json.loads(shared_data("kafka-golden", "plain.json").read_text())["key_partitions"]
    placed = facts["base64_key_to_partition"]
    assert len(placed) == 200
    partitioner = Partitioner(facts["partitions"])
    for key, partition in placed.items():
        assert partition_for_key(base64.b64decode(key), facts["partitions"]) == partition
        assert partitioner.place(base64.b64decode(key)) == partition


def test_murmur2_is_what_kafkas_own_test_expects() -> None:
    """The vectors of Kafka's UtilsTest, which has them as signed numbers."""
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert {key: murmur2(key) for key in expected} == {key: value & 0xFFFFFFFF for key, value in expected.items()}


@given(st.binary(max_size=600), st.integers(1, 1000))
def test_a_key_always_goes_to_the_same_existing_partition(key: bytes, partitions: int) -> None:
    partitioner = Partitioner(partitions)
    place = partitioner.place(key)
    assert 0 <= place < partitions
    assert partitioner.place(key) == place == partition_for_key(key, partitions)


def test_a_keyless_record_sticks_until_its_batch_is_closed() -> None:
    choices: Iterator[int] = cycle([1, 0, 1])
    partitioner = Partitioner(3, lambda count: next(choices) % count)
    assert partitioner.place(None) == 1
    partitioner.batch_closed(2)
    assert partitioner.place(None) == 1, "another partition's batch changes nothing"
    partitioner.batch_closed(1)
    assert partitioner.place(None) == 0
    partitioner.batch_closed(0)
    assert partitioner.place(None) == 2, "never the same partition twice in a row"


def test_one_partition_is_always_the_one() -> None:
    partitioner = Partitioner(1)
    partitioner.batch_closed(0)
    assert partitioner.place(None) == 0
