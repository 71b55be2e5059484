"""Assignors of groups: held against kafka-python's on random groups, and against what Kafka's documentation shows."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer.group import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from seglog.core import assignors
from seglog.core.assignors import (
    ASSIGNORS,
    COOPERATIVE,
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from seglog_protocol.kafka import Malformed
from tests.support import each_case

TOPICS = ["a", "b", "c"]
NAMES = st.sets(st.sampled_from(TOPICS), min_size=1)
COUNTS = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})
IDS = st.sets(st.text("xyz-1", min_size=1, max_size=5), min_size=1, max_size=6).map(sorted)


@st.composite
def groups(draw: st.DrawFn, *, static: bool = False) -> dict[str, Subscription]:
    members = {
        member_id: Subscription(
            frozenset(draw(NAMES)), instance_id=f"i{number}" if static and draw(st.booleans()) else None
        )
        for number, member_id in enumerate(draw(IDS))
    }
    # kafka-python wants static members first
    return dict(sorted(members.items(), key=lambda member: member[1].instance_id is None))


class Cluster:
    """The topics as kafka-python's assignors ask for them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if self._counts.get(topic) else None


def kafka_pythons(assignor: Any, members: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    joined = []
    for member_id, member in members.items():
        kind = JoinGroupResponse.JoinGroupResponseMember
        one = kind(member_id=member_id, group_instance_id=member.instance_id, metadata=b"")
        one.metadata = ConsumerProtocolSubscription(0, sorted(member.topics), b"")
        joined.append(one)
    found = assignor.assign(Cluster(counts), joined)
    return {
        member_id: {(topic, partition) for topic, partitions in value.assigned_partitions for partition in partitions}
        for member_id, value in found.items()
    }


@given(groups(static=True), COUNTS)
def test_range_assigns_as_kafka_pythons(members: dict[str, Subscription], counts: dict[str, int]) -> None:
    assert ASSIGNORS["range"](members, counts) == kafka_pythons(RangePartitionAssignor, members, counts)


@given(groups(static=True), NAMES, COUNTS)
def test_round_robin_assigns_as_kafka_pythons(
    members: dict[str, Subscription], topics: set[str], counts: dict[str, int]
) -> None:
    # kafka-python fails where a member has to be passed over
    members = {member_id: member._replace(topics=frozenset(topics)) for member_id, member in members.items()}
    assert ASSIGNORS["roundrobin"](members, counts) == kafka_pythons(RoundRobinPartitionAssignor, members, counts)


def both() -> dict[str, Subscription]:
    return {"C0": Subscription(frozenset({"t0", "t1"})), "C1": Subscription(frozenset({"t0", "t1"}))}


def test_the_examples_of_kafkas_documentation() -> None:
    counts = {"t0": 3, "t1": 3}
    assert ASSIGNORS["range"](both(), counts) == {
        "C0": {("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)},
        "C1": {("t0", 2), ("t1", 2)},
    }
    assert ASSIGNORS["roundrobin"](both(), counts) == {
        "C0": {("t0", 0), ("t0", 2), ("t1", 1)},
        "C1": {("t0", 1), ("t1", 0), ("t1", 2)},
    }
    uneven = {name: Subscription(frozenset(f"t{n}" for n in range(number + 1))) for number, name in enumerate("ABC")}
    assert ASSIGNORS["roundrobin"](uneven, {"t0": 1, "t1": 2, "t2": 3}) == {
        "A": {("t0", 0)},
        "B": {("t1", 0)},
        "C": {("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)},
    }


@given(st.sampled_from(sorted(ASSIGNORS)), groups(static=True), COUNTS)
def test_every_partition_that_somebody_reads_has_one_reader(
    name: str, members: dict[str, Subscription], counts: dict[str, int]
) -> None:
    assigned = ASSIGNORS[name](members, counts)
    assert assigned.keys() == members.keys()
    given_out = Counter(pair for partitions in assigned.values() for pair in partitions)
    read = {topic for member in members.values() for topic in member.topics}
    assert given_out == Counter((topic, number) for topic in read for number in range(counts[topic]))
    for member_id, partitions in assigned.items():
        assert {topic for topic, _ in partitions} <= members[member_id].topics


# --- Cooperative ------------------------------------------------------------------------------------------------------


def loads(assigned: Assignment) -> list[int]:
    return sorted(len(partitions) for partitions in assigned.values())


def settled(members: dict[str, Subscription], counts: Mapping[str, int]) -> tuple[Assignment, int, int]:
    """What generation after generation comes to, with the number of generations and of partitions that moved."""
    moved = 0
    for generation in range(10):
        assigned = ASSIGNORS[COOPERATIVE](members, counts)
        owners = {pair: member_id for member_id, member in members.items() for pair in member.owned}
        given_out = [pair for partitions in assigned.values() for pair in partitions]
        assert len(given_out) == len(set(given_out))
        for member_id, partitions in assigned.items():
            assert all(owners.get(pair, member_id) == member_id for pair in partitions), "only when it is given up"
        moved += sum(len(member.owned - assigned[member_id]) for member_id, member in members.items())
        if all(member.owned == assigned[member_id] for member_id, member in members.items()):
            return assigned, generation, moved
        members = {
            member_id: member._replace(owned=frozenset(assigned[member_id]), generation=generation)
            for member_id, member in members.items()
        }
    raise AssertionError("it goes on and on")


@given(groups(), groups(), COUNTS)
def test_cooperative_groups_settle_balanced_and_only_what_must_move_moves(
    before: dict[str, Subscription], after: dict[str, Subscription], counts: dict[str, int]
) -> None:
    held, _, _ = settled(before, counts)
    members = {
        member_id: member._replace(
            owned=frozenset(pair for pair in held.get(member_id, ()) if pair[0] in member.topics), generation=10
        )
        for member_id, member in after.items()
    }
    assigned, generations, moved = settled(members, counts)
    # Where subscriptions differ, who gets what was given up may have to give up something else for it.
    if len({member.topics for member in members.values()}) == 1:
        assert generations <= 2
        spread = loads(assigned)
        assert spread[-1] - spread[0] <= 1
        least = sum(spread) // len(spread)
        assert moved <= sum(max(0, len(member.owned) - least) for member in members.values())


def test_of_two_claims_that_of_the_newer_generation_counts() -> None:
    topics, mine = frozenset({"t"}), frozenset({("t", 0)})
    members = {"a": Subscription(topics, mine, 4), "b": Subscription(topics, mine, 5)}
    assert ASSIGNORS[COOPERATIVE](members, {"t": 2})["a"] == {("t", 1)}
    disputed = {"a": Subscription(topics, mine, 5), "b": Subscription(topics, mine, 5)}
    assert loads(ASSIGNORS[COOPERATIVE](disputed, {"t": 2})) == [0, 1], "it is nobody's until both have given it up"


# --- Messages ---------------------------------------------------------------------------------------------------------

PAIRS = st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 9)))


@given(NAMES, PAIRS, st.integers(-1, 99))
def test_subscriptions_are_read_as_they_were_written_also_by_kafka_python(
    topics: set[str], owned: set[tuple[str, int]], generation: int
) -> None:
    data = write_subscription(topics, owned, generation)
    wanted = Subscription(frozenset(topics), frozenset(owned), generation if owned else -1, "i")
    assert read_subscription(data, "i") == wanted
    theirs = ConsumerProtocolSubscription.decode(data)
    assert sorted(theirs.topics) == sorted(topics)
    assert {(pair.topic, number) for pair in theirs.owned_partitions or [] for number in pair.partitions} == owned


@given(PAIRS)
def test_assignments_are_read_as_they_were_written_also_by_kafka_python(partitions: set[tuple[str, int]]) -> None:
    data = write_assignment(partitions)
    assert read_assignment(data) == partitions
    theirs = ConsumerProtocolAssignment.decode(data)
    assert {(pair.topic, number) for pair in theirs.assigned_partitions for number in pair.partitions} == partitions
    assert read_assignment(theirs.encode()) == partitions


@each_case("version", range(4))
def test_subscriptions_of_kafka_python_are_read_in_every_version(version: int) -> None:
    kind = ConsumerProtocolSubscription
    pair = kind.TopicPartition(topic="a", partitions=[1, 2])
    theirs = kind(topics=["a"], user_data=b"\0\0\0\7", owned_partitions=[pair], generation_id=7, rack_id="r")
    found = read_subscription(theirs.encode(version=version))
    owned = {("a", 1), ("a", 2)} if version else set()
    assert found == Subscription(frozenset({"a"}), frozenset(owned), 7)


def test_messages_of_newer_versions_are_read_as_the_newest_known() -> None:
    newer = b"\0\x09" + write_subscription({"a"}, {("a", 1)}, 3)[2:] + b"\xff\xff" + b"what is to come"
    assert read_subscription(newer) == Subscription(frozenset({"a"}), frozenset({("a", 1)}), 3)
    assert read_assignment(b"\0\x09" + write_assignment({("a", 1)})[2:] + b"more") == {("a", 1)}


@each_case("data", [b"\0", b"\xff\xff", b"\0\0", b"\0\0\0\0\0\1", b"\0\0\x7f\xff\xff\xff"])
def test_malformed_messages_say_so(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_subscription(data)
    with pytest.raises(Malformed):
        read_assignment(data)


def test_no_bytes_are_no_assignment() -> None:
    assert read_assignment(b"") == set()


def test_the_names_are_kafkas() -> None:
    assert list(assignors.ASSIGNORS) == ["range", "roundrobin", "cooperative-sticky"]
