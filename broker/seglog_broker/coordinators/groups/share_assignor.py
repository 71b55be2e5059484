"""The assignor of share groups, Kafka's ``simple``, which makes target assignments.

A partition may have several members: as many as it takes for each member to have one. Members keep their partitions as
far as balance allows. Where all read the same topics the partitions of all are balanced together, else topic by topic.
"""

from collections.abc import Mapping, Sequence

from seglog_broker.coordinators.groups.assignors import Assignment, Subscriber
from seglog_protocol.steps import Pace, Steps

_Partition = tuple[bytes, int]


def assign_simple(
    subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, frozenset[int]]
) -> Steps[dict[str, Assignment]]:
    """Partitions for each member, of the topics that it reads; ``partitions`` are those that may be assigned."""
    members = sorted(subscribers)
    pace = Pace()
    held: dict[str, set[_Partition]] = {}
    for member in members:
        read, assigned = subscribers[member].topics, subscribers[member].assigned
        kept = read & assigned.keys() & partitions.keys()
        held[member] = {(topic, number) for topic in kept for number in assigned[topic] & partitions[topic]}
        if pace.is_due(1 + len(held[member])):
            yield
    read = frozenset[bytes]().union(*(subscriber.topics for subscriber in subscribers.values()))
    topics = sorted(topic for topic in read if partitions.get(topic))
    if len({subscriber.topics for subscriber in subscribers.values()}) == 1:
        yield from _share_out(
            [(topic, number) for topic in topics for number in sorted(partitions[topic])], members, held
        )
        topics = []
    for topic in topics:
        readers = [member for member in members if topic in subscribers[member].topics]
        yield from _share_out([(topic, number) for number in sorted(partitions[topic])], readers, held)
        if pace.is_due(len(members)):
            yield
    made: dict[str, Assignment] = {}
    for member in members:
        numbers: dict[bytes, set[int]] = {}
        for topic, number in held[member]:
            numbers.setdefault(topic, set()).add(number)
        made[member] = {topic: frozenset(numbers[topic]) for topic in sorted(numbers)}
        if pace.is_due(1 + len(held[member])):
            yield
    return made


def _share_out(
    targets: Sequence[_Partition], members: Sequence[str], held: Mapping[str, set[_Partition]]
) -> Steps[None]:
    """Change what ``members`` hold of ``targets``, so that all of these are held, and by about equally many."""
    sharing = -(-len(members) // len(targets)) if targets else 0  # how many members each partition is to have
    total = sharing * len(targets)
    holders: dict[_Partition, set[int]] = {target: set() for target in targets}
    wanted: list[int] = []
    counts: list[int] = []
    pace = Pace()
    for place, member in enumerate(members):
        wanted.append(-(-total * (place + 1) // len(members)) + (-total * place // len(members)))
        own = sorted(held[member] & holders.keys())
        held[member].difference_update(own[wanted[place] :])
        for target in own[: wanted[place]]:
            holders[target].add(place)
        counts.append(min(len(own), wanted[place]))
        if pace.is_due(1 + len(own)):
            yield
    for target, places in holders.items():
        for place in sorted(places)[sharing:]:
            places.discard(place)
            held[members[place]].discard(target)
            counts[place] -= 1
        if pace.is_due(1 + len(places)):
            yield
    hungry = [place for place in range(len(members)) if counts[place] < wanted[place]]
    turn = 0
    for target, places in holders.items():
        passed = 0
        while len(places) < sharing and passed < len(hungry):
            turn %= len(hungry)
            place = hungry[turn]
            if place in places:
                turn, passed = turn + 1, passed + 1
                continue
            places.add(place)
            held[members[place]].add(target)
            counts[place] += 1
            passed = 0
            if counts[place] < wanted[place]:
                turn += 1
            else:
                hungry.pop(turn)
        if pace.is_due(1 + len(places)):
            yield
