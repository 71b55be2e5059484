"""The assignors: examples whose results are Kafka's, and what holds for every group."""

import random
from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.coordinators.groups.assignors import ASSIGNORS, Assignment, Subscriber
from seglog_protocol.steps import finished
from tests.support import calls_of, each_case

T1, T2, T3 = (bytes([number]) * 16 for number in (1, 2, 3))

Assigned = dict[str, dict[bytes, set[int]]]
Sizes = dict[bytes, int]
Group = tuple[dict[str, Subscriber], Sizes]
"""Members, and how many partitions each topic has."""


def assign(
    assignor: str, subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]
) -> dict[str, Assignment]:
    return finished(ASSIGNORS[assignor](subscribers, partitions))


def subscriber(
    topics: list[bytes], had: Mapping[bytes, set[int]] | None = None, instance: str | None = None
) -> Subscriber:
    return Subscriber(
        frozenset(topics), {topic: frozenset(numbers) for topic, numbers in (had or {}).items()}, instance
    )


def plain(assignments: Mapping[str, Assignment]) -> Assigned:
    return {
        member: {topic: set(numbers) for topic, numbers in assignment.items()}
        for member, assignment in assignments.items()
    }


# --- range, on the examples of Kafka's tests --------------------------------------------------------------------------


@each_case(
    ("members", "partitions", "expected"),
    [
        (
            {"A": subscriber([T1, T3]), "B": subscriber([T1, T3])},
            {T1: 3, T3: 2},
            {"A": {T1: {0, 1}, T3: {0}}, "B": {T1: {2}, T3: {1}}},
        ),
        (
            {"A": subscriber([T1, T2]), "B": subscriber([T3]), "C": subscriber([T2, T3])},
            {T1: 3, T2: 3, T3: 2},
            {"A": {T1: {0, 1, 2}, T2: {0, 1}}, "B": {T3: {0}}, "C": {T2: {2}, T3: {1}}},
        ),
        (
            {name: subscriber([T1, T3]) for name in "ABC"},
            {T1: 3, T3: 2},
            {"A": {T1: {0}, T3: {0}}, "B": {T1: {1}, T3: {1}}, "C": {T1: {2}}},
        ),
        (
            {
                "A": subscriber([T1], {T1: {0, 1, 2}, T2: {0}}),
                "B": subscriber([T1, T2, T3], {T2: {1}}),
                "C": subscriber([T2], {T2: {2}, T3: {0, 1}}),
            },
            {T1: 3, T2: 3, T3: 2},
            {"A": {T1: {0, 1}}, "B": {T1: {2}, T2: {0, 1}, T3: {0, 1}}, "C": {T2: {2}}},
        ),
    ],
    ids=["the first are larger", "subscribers alone", "some without a range", "whatever members had"],
)
def test_a_topic_is_divided_into_ranges(members: dict[str, Subscriber], partitions: Sizes, expected: Assigned) -> None:
    assert plain(assign("range", members, partitions)) == expected


def test_static_members_have_the_same_ranges_when_they_return_with_another_id() -> None:
    before = {
        "A": subscriber([T1], instance="instanceA"),
        "B": subscriber([T1]),
        "C": subscriber([T1], instance="instanceC"),
    }
    after = {"zzz": before["A"], "B": before["B"], "C": before["C"]}
    was, now = plain(assign("range", before, {T1: 5})), plain(assign("range", after, {T1: 5}))
    assert was == {"A": {T1: {0, 1}}, "C": {T1: {2, 3}}, "B": {T1: {4}}}
    assert now == {"zzz": was["A"], "B": was["B"], "C": was["C"]}


# --- uniform, likewise ------------------------------------------------------------------------------------------------


def sizes(assigned: Assigned) -> dict[str, int]:
    return {member: sum(map(len, topics.values())) for member, topics in assigned.items()}


@each_case(
    ("members", "partitions", "expected"),
    [
        (
            {
                "A": subscriber([T1, T2], {T1: {0, 2}, T2: {0}}),
                "B": subscriber([T1, T2], {T1: {1}, T2: {1, 2}}),
                "C": subscriber([T1, T2]),
            },
            {T1: 3, T2: 3},
            {"A": {T1: {0, 2}}, "B": {T1: {1}, T2: {1}}, "C": {T2: {0, 2}}},
        ),
        (
            {"A": subscriber([T1, T2], {T1: {0}, T2: {0}}), "B": subscriber([T1, T2], {T1: {1}, T2: {1}})},
            {T1: 3, T2: 3},
            {"A": {T1: {0, 2}, T2: {0}}, "B": {T1: {1}, T2: {1, 2}}},
        ),
        (
            {"A": subscriber([T1], {T1: {0}}), "B": subscriber([T1], {T1: {1, 2}})},
            {T1: 3},
            {"A": {T1: {0}}, "B": {T1: {1, 2}}},
        ),
        (
            {"A": subscriber([T1, T2], {T1: {0, 1}}), "B": subscriber([T1, T2], {T2: {0, 1}})},
            {T2: 2},
            {"A": {T2: {1}}, "B": {T2: {0}}},
        ),
        (
            {"A": subscriber([T1], {T1: set(range(6))}), "B": subscriber([T1]), "C": subscriber([T1])},
            {T1: 6},
            {"A": {T1: {0, 1}}, "B": {T1: {2, 3}}, "C": {T1: {4, 5}}},
        ),
    ],
    ids=["a member more", "a member less", "the larger share stays", "a topic that is gone", "moves are in order"],
)
def test_shares_are_equal(members: dict[str, Subscriber], partitions: Sizes, expected: Assigned) -> None:
    assert plain(assign("uniform", members, partitions)) == expected


def test_new_partitions_go_to_whoever_has_less() -> None:
    members = {"A": subscriber([T1, T2], {T1: {0, 2}, T2: {0}}), "B": subscriber([T1, T2], {T1: {1}, T2: {1, 2}})}
    now = plain(assign("uniform", members, {T1: 6, T2: 5}))
    assert sizes(now) == {"A": 6, "B": 5}
    assert now["A"][T1] >= {0, 2}
    assert now["B"][T2] >= {1, 2}


def test_partitions_move_until_they_are_balanced() -> None:
    """Partitions move until no topic has owners with two more than its other readers."""
    members = {
        "A": subscriber([T1], {T1: set(range(6))}),
        "B": subscriber([T1, T2], {T1: set(range(6, 18))}),
        "C": subscriber([T2], {T2: set(range(12))}),
    }
    now = plain(assign("uniform", members, {T1: 18, T2: 12}))
    assert sizes(now) == {"A": 9, "B": 10, "C": 11}
    assert now["A"][T1] >= set(range(6))


# --- What holds for every group ---------------------------------------------------------------------------------------

TOPICS: Final = [bytes([number]) * 16 for number in range(5)]
PARTITIONS: Final = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12))
MEMBERS: Final = st.lists(st.sampled_from([f"m{number}" for number in range(8)]), unique=True)
SUBSCRIPTIONS: Final = st.frozensets(st.sampled_from(TOPICS))


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False) -> Group:
    """Members with an assignment from before, in which two may have the same partition, and some are not there."""
    members = draw(MEMBERS)
    same = draw(SUBSCRIPTIONS)
    held = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 14), min_size=1), max_size=3)
    subscribers = {
        member: Subscriber(
            same if equal else draw(SUBSCRIPTIONS),
            draw(held),
            draw(st.none() | st.just(f"instance-{member}")),
        )
        for member in members
    }
    return subscribers, draw(PARTITIONS)


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(group=groups())
def test_every_partition_has_one_owner_who_reads_the_topic(assignor: str, group: Group) -> None:
    subscribers, partitions = group
    assigned = assign(assignor, subscribers, partitions)
    assert assigned.keys() == subscribers.keys()
    owned = [(t, n) for topics in assigned.values() for t, numbers in topics.items() for n in numbers]
    read = {topic for member in subscribers.values() for topic in member.topics}
    assert sorted(owned) == sorted((t, n) for t in partitions.keys() & read for n in range(partitions[t]))
    for member, topics in assigned.items():
        assert topics.keys() <= subscribers[member].topics
        assert all(topics.values())


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(group=groups(), seed=st.integers())
def test_order_does_not_matter(assignor: str, group: Group, seed: int) -> None:
    subscribers, partitions = group
    members, topics = list(subscribers), list(partitions)
    random.Random(seed).shuffle(members)
    random.Random(seed).shuffle(topics)
    shuffled = assign(assignor, {m: subscribers[m] for m in members}, {t: partitions[t] for t in topics})
    assert shuffled == assign(assignor, subscribers, partitions)


@given(groups(equal=True))
def test_equal_subscriptions_get_equally_many_with_no_move_too_many(group: Group) -> None:
    subscribers, partitions = group
    assigned = assign("uniform", subscribers, partitions)
    loads = [sum(map(len, topics.values())) for topics in assigned.values()]
    assert max(loads, default=0) - min(loads, default=0) <= 1
    assert assign("uniform", _with(subscribers, assigned), partitions) == assigned


@given(groups())
def test_an_assignment_is_not_changed_without_a_reason(group: Group) -> None:
    subscribers, partitions = group
    assigned = assign("uniform", subscribers, partitions)
    assert assign("uniform", _with(subscribers, assigned), partitions) == assigned


@given(groups())
def test_no_reader_of_a_topic_has_two_partitions_less_than_an_owner(group: Group) -> None:
    subscribers, partitions = group
    assigned = assign("uniform", subscribers, partitions)
    if len({subscriber.topics for subscriber in subscribers.values()}) > 1:
        loads = {member: sum(map(len, topics.values())) for member, topics in assigned.items()}
        for owner, topics in assigned.items():
            for topic in topics:
                assert loads[owner] <= 1 + min(loads[m] for m in subscribers if topic in subscribers[m].topics)


@given(groups(equal=True), st.data())
def test_whoever_leaves_or_joins_moves_nothing_between_others(group: Group, data: st.DataObject) -> None:
    subscribers, partitions = group
    before = assign("uniform", subscribers, partitions)
    settled = _with(subscribers, before)
    for member in data.draw(st.just([]) | st.lists(st.sampled_from(sorted(subscribers) or ["-"]), max_size=3)):
        settled.pop(member, None)
    after = assign("uniform", settled, partitions)
    for member, had in after.items():
        assert all(before[member][topic] <= had[topic] for topic in before[member])
    some = next(iter(subscribers.values()), None)
    if some is not None:
        joined = assign("uniform", {**_with(subscribers, before), "new": Subscriber(some.topics)}, partitions)
        for member, had in before.items():
            assert all(joined[member][topic] <= had[topic] for topic in joined[member])


def _with(subscribers: Mapping[str, Subscriber], assigned: Mapping[str, Assignment]) -> dict[str, Subscriber]:
    return {member: subscriber._replace(assigned=assigned[member]) for member, subscriber in subscribers.items()}


@each_case("assignor", ASSIGNORS)
@each_case("equal", [True, False])
def test_work_grows_with_what_goes_in(assignor: str, equal: bool) -> None:
    """Ten times the members and partitions cost at most fifteen times the calls of functions."""
    done = []
    for members in (100, 1_000):
        topics = {number.to_bytes(16): members if equal else 100 for number in range(members // 10)}
        chosen = random.Random(0)
        subscribers = {
            f"m{number}": Subscriber(frozenset(chosen.sample(sorted(topics), 5) if not equal else sorted(topics)[:5]))
            for number in range(members)
        }
        done.append(calls_of(lambda s=subscribers, t=topics: assign(assignor, s, t)))  # type: ignore[misc]
    assert done[1] < 15 * done[0]
