import json
import random

from hypothesis import given
from hypothesis import strategies as st

from seglog_spark.offsets import OffsetRange, TopicPartition, from_spark, shown, to_spark

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "b-1", "é"]), st.integers(0, 200))


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1)), st.randoms())
def test_the_same_offsets_are_the_same_text_in_whatever_order_they_were_found(
    offsets: dict[TopicPartition, int], shuffle: random.Random
) -> None:
    items = list(offsets.items())
    shuffle.shuffle(items)
    text = json.dumps(to_spark(dict(items)))
    assert text == json.dumps(to_spark(offsets))
    assert from_spark(json.loads(text)) == offsets


def test_partitions_are_in_the_order_of_numbers_and_topics_in_that_of_names() -> None:
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    assert json.dumps(to_spark(offsets)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


def test_ranges_and_partitions_read_well_in_a_sentence() -> None:
    assert str(OffsetRange("commits", 2, 5, 9)) == "commits-2 from 5 to 9"
    assert shown([TopicPartition("a", number) for number in range(5)]) == "a-0, a-1, a-2 and 2 more"
