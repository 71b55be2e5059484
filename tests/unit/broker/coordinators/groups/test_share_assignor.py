"""Kafka's assignor of share groups: every partition has as many members as it takes for each of these to have one."""

from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.coordinators.groups.assignors import Assignment, Subscriber
from seglog_broker.coordinators.groups.share_assignor import assign_simple
from seglog_protocol.steps import finished
from tests.support import each_case


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def assigned(
    read: Mapping[str, Collection[int]], partitions: Mapping[int, int], before: Mapping[str, Assignment] = {}
) -> dict[str, Assignment]:
    subscribers = {
        member: Subscriber(frozenset(map(topic, topics)), before.get(member, {})) for member, topics in read.items()
    }
    return finished(assign_simple(subscribers, {topic(t): frozenset(range(n)) for t, n in partitions.items()}))


def counts(made: Mapping[str, Assignment]) -> list[int]:
    return [sum(map(len, made[member].values())) for member in sorted(made)]


@each_case(
    ("members", "partitions", "wanted"),
    [
        (1, 4, [4]),
        (2, 4, [2, 2]),
        (3, 4, [2, 1, 1]),
        (4, 4, [1] * 4),
        (5, 4, [2, 2, 1, 2, 1]),  # each partition has two
        (8, 4, [1] * 8),
        (9, 1, [1] * 9),
        (2, 0, [0, 0]),
    ],
)
def test_members_of_one_topic_have_as_many_as_kafka_gives_them(
    members: int, partitions: int, wanted: list[int]
) -> None:
    assert counts(assigned({f"{number}": [1] for number in range(members)}, {1: partitions})) == wanted


def test_partitions_of_all_topics_are_balanced_together_where_all_read_the_same() -> None:
    made = assigned({"a": [1, 2, 3], "b": [1, 2, 3]}, {1: 1, 2: 1, 3: 2})
    assert counts(made) == [2, 2]
    assert counts(assigned({"a": [1, 2, 3], "b": [1, 2]}, {1: 1, 2: 1, 3: 2})) == [4, 2], "else each by itself"


def test_members_keep_what_they_have() -> None:
    before = assigned({"a": [1], "b": [1]}, {1: 4})
    after = assigned({"a": [1], "b": [1], "c": [1]}, {1: 4}, before)
    assert all(after[member].get(topic(1), frozenset()) <= before[member][topic(1)] for member in "ab")
    assert assigned({"a": [1]}, {1: 4}, after) == {"a": {topic(1): frozenset(range(4))}}


def test_what_is_not_read_or_has_no_state_any_more_is_taken_away() -> None:
    before = {"a": {topic(1): frozenset([0, 1]), topic(2): frozenset([0]), topic(3): frozenset([0])}}
    assert assigned({"a": [1, 3]}, {1: 1, 2: 1}, before) == {"a": {topic(1): frozenset([0])}}


groups = st.dictionaries(st.sampled_from("abcdefgh"), st.frozensets(st.integers(1, 4), min_size=1), min_size=1)


@given(groups, groups, st.dictionaries(st.integers(1, 4), st.integers(0, 5)))
def test_every_partition_that_is_read_has_a_member_and_none_has_too_many(
    first: Mapping[str, frozenset[int]], read: Mapping[str, frozenset[int]], partitions: Mapping[int, int]
) -> None:
    before = assigned(first, partitions)
    made = assigned(read, partitions, before)
    assert made == assigned(dict(sorted(read.items(), reverse=True)), partitions, before)
    assert made.keys() == read.keys()
    alike = len(set(read.values())) == 1
    for number, count in partitions.items():
        readers = [member for member, topics in read.items() if number in topics]
        holders = {
            partition: [member for member in made if partition in made[member].get(topic(number), ())]
            for partition in range(count)
        }
        assert all(set(each) <= set(readers) for each in holders.values())
        total = sum(partitions.get(each, 0) for each in next(iter(read.values()))) if alike else count
        most = -(-len(readers) // total) if total else 0
        assert all(1 <= len(each) <= most for each in holders.values()) or not readers
    assert all(count > 0 for count in counts(made)) or not all(any(map(partitions.get, t)) for t in read.values())
