"""Kafka's partition assignors, and the messages of subscriptions and assignments between members.

The leader of a group assigns for all members, which may be clients of Kafka. An assignor is a function of their
subscriptions and of the topics' partitions alone.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, groupby
from typing import Final, NamedTuple

from seglog_protocol.kafka import Malformed, messages, read_message, write_message

TopicPartition = tuple[str, int]
"""A topic and the number of a partition."""

Assignment = dict[str, set[TopicPartition]]
"""The partitions of each member, by member id."""

COOPERATIVE: Final = "cooperative-sticky"
"""The assignor whose members keep their partitions while they join."""

_NEWEST: Final = 3
"""The newest version of both messages."""
_VERSION: Final = struct.Struct(">h")
_GENERATION: Final = struct.Struct(">i")


class Subscription(NamedTuple):
    """The topics that a member subscribes to, and the partitions that it owned in ``generation``."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    instance_id: str | None = None


def write_subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = (), generation: int = -1) -> bytes:
    """A ConsumerProtocolSubscription: in version 0, or in version 2 where partitions are owned."""
    owned = list(owned)
    kind = messages.ConsumerProtocolSubscription
    value = kind(
        topics=sorted(topics),
        owned_partitions=[kind.TopicPartition(topic=t, partitions=p) for t, p in _by_topic(owned)],
        generation_id=generation,
    )
    version = 2 if owned else 0
    return _VERSION.pack(version) + write_message(value, version)


def read_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """A member's subscription, of any version. Raises Malformed."""
    version = _version_of(data, "ConsumerProtocolSubscription")
    value = read_message(messages.ConsumerProtocolSubscription, version, memoryview(data)[_VERSION.size :])
    generation = value.generation_id if version >= 2 else -1
    if version < 2 and value.user_data is not None and len(value.user_data) == _GENERATION.size:
        (generation,) = _GENERATION.unpack(value.user_data)  # where Kafka's cooperative-sticky puts it before version 2
    owned = _pairs((owned.topic, owned.partitions) for owned in value.owned_partitions) if version >= 1 else []
    return Subscription(frozenset(value.topics), frozenset(owned), generation, instance_id)


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """A ConsumerProtocolAssignment, in version 0, which all clients read."""
    kind = messages.ConsumerProtocolAssignment
    value = kind(assigned_partitions=[kind.TopicPartition(topic=t, partitions=p) for t, p in _by_topic(partitions)])
    return _VERSION.pack(0) + write_message(value, 0)


def read_assignment(data: bytes) -> set[TopicPartition]:
    """The partitions of an assignment, of any version; none for no bytes. Raises Malformed."""
    if not data:
        return set()
    version = _version_of(data, "ConsumerProtocolAssignment")
    value = read_message(messages.ConsumerProtocolAssignment, version, memoryview(data)[_VERSION.size :])
    return set(_pairs((assigned.topic, assigned.partitions) for assigned in value.assigned_partitions))


def _version_of(data: bytes, name: str) -> int:
    if len(data) < _VERSION.size:
        raise Malformed(name, 0, "", f"{len(data)} bytes have no version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise Malformed(name, 0, "", f"version {version}")
    return min(int(version), _NEWEST)


def _pairs(listed: Iterable[tuple[str, Sequence[int]]]) -> list[TopicPartition]:
    return [(topic, partition) for topic, partitions in listed for partition in partitions]


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    grouped = groupby(sorted(partitions), key=lambda pair: pair[0])
    return [(topic, [partition for _, partition in pairs]) for topic, pairs in grouped]


def _in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members by instance id, then the others by member id: static ones keep their places."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def _topics(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> list[str]:
    return sorted({topic for member in members.values() for topic in member.topics if counts.get(topic, 0) > 0})


def assign_range(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    """Each topic by itself: to each of its members a range of partitions, the longer ones first."""
    assigned: Assignment = {member_id: set() for member_id in members}
    for topic in _topics(members, counts):
        readers = [member_id for member_id in _in_order(members) if topic in members[member_id].topics]
        size, longer = divmod(counts[topic], len(readers))
        start = 0
        for number, member_id in enumerate(readers):
            end = start + size + (number < longer)
            assigned[member_id].update((topic, partition) for partition in range(start, end))
            start = end
    return assigned


def assign_round_robin(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    """All partitions of all topics in order, one to each member in turn that reads the topic."""
    assigned: Assignment = {member_id: set() for member_id in members}
    turn = cycle(_in_order(members))
    for topic in _topics(members, counts):
        for partition in range(counts[topic]):
            reader = next(member_id for member_id in turn if topic in members[member_id].topics)
            assigned[reader].add((topic, partition))
    return assigned


def assign_cooperatively(members: Mapping[str, Subscription], counts: Mapping[str, int]) -> Assignment:
    """As balanced as subscriptions allow by moving single partitions, and as few of them moved as that takes.

    A partition that moves is left out: its owner revokes it first, and the next generation assigns it.
    """
    owners = _owners(members)
    held = {pair for member in members.values() for pair in member.owned}
    return {
        member_id: {pair for pair in partitions if pair not in held or owners.get(pair) == member_id}
        for member_id, partitions in _balanced(members, counts, owners).items()
    }


def _balanced(
    members: Mapping[str, Subscription], counts: Mapping[str, int], owners: Mapping[TopicPartition, str]
) -> Assignment:
    """An assignment that keeps what its owners have as far as the loads differ by one at most."""
    order = _in_order(members)
    topics = _topics(members, counts)
    readers = {topic: [member_id for member_id in order if topic in members[member_id].topics] for topic in topics}
    loads = dict.fromkeys(order, 0)
    assigned: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in order}

    def give(member_id: str, topic: str, partition: int) -> None:
        assigned[member_id].setdefault(topic, []).append(partition)
        loads[member_id] += 1

    free: list[TopicPartition] = []
    for topic in topics:
        for partition in range(counts[topic]):
            owner = owners.get((topic, partition))
            if owner is not None and topic in members[owner].topics:
                give(owner, topic, partition)
            else:
                free.append((topic, partition))
    for topic, partition in sorted(free, key=lambda pair: (len(readers[pair[0]]), pair)):  # the least choice first
        give(min(readers[topic], key=loads.__getitem__), topic, partition)
    while (move := _move(assigned, loads, readers)) is not None:
        owner, topic, least = move
        give(least, topic, assigned[owner][topic].pop())
        loads[owner] -= 1
        if not assigned[owner][topic]:
            del assigned[owner][topic]
    return {member_id: set(_pairs(held.items())) for member_id, held in assigned.items()}


def _move(
    assigned: Mapping[str, Mapping[str, object]], loads: Mapping[str, int], readers: Mapping[str, Sequence[str]]
) -> tuple[str, str, str] | None:
    """An owner, a topic, and a member with at least two partitions less that could have one of its partitions."""
    for owner in sorted(assigned, key=lambda member_id: -loads[member_id]):
        for topic in sorted(assigned[owner]):
            least = min(readers[topic], key=loads.__getitem__)
            if loads[owner] - loads[least] > 1:
                return owner, topic, least
    return None


def _owners(members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """The owner of each partition, by the newest generation; none if two members of one generation claim it."""
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, member in members.items():
        for pair in member.owned:
            generation, _ = claims.get(pair, (-2, None))
            if member.generation > generation:
                claims[pair] = member.generation, member_id
            elif member.generation == generation:
                claims[pair] = generation, None
    return {pair: owner for pair, (_, owner) in claims.items() if owner is not None}


ASSIGNORS: Final[Mapping[str, Callable[[Mapping[str, Subscription], Mapping[str, int]], Assignment]]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    COOPERATIVE: assign_cooperatively,
}
"""By the names of Kafka's clients. The second argument has the number of partitions of every topic that exists."""


def check_assignors(names: object) -> None:
    """Raises TypeError and ValueError for what is not a sequence of assignors that go together."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f"assignors is a sequence of names, such as ('range', 'roundrobin'), not {names!r}")
    known = ", ".join(ASSIGNORS)
    if not names:
        raise ValueError(f"assignors must not be empty; known are {known}")
    for name in names:
        if not isinstance(name, str) or name not in ASSIGNORS:
            raise ValueError(f"assignors: there is no {name!r}; known are {known}")
    if COOPERATIVE in names and len(names) > 1:
        raise ValueError(
            f"assignors: {COOPERATIVE} is given alone, not in {list(names)!r}: its members keep partitions while the "
            "group makes a new generation, and those of the others give them up"
        )
