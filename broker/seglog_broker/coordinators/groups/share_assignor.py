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
    held: dict[str, dict[bytes, set[int]]] = {}
    for member in members:
        read, assigned = subscribers[member].topics, subscribers[member].assigned
        held[member] = kept = {}
        for topic in sorted(assigned):  # which it mostly is already
            if topic in read and topic in partitions:
                kept[topic] = set(assigned[topic] & partitions[topic])
            if pace.is_due(1 + len(assigned[topic])):
                yield
    read = frozenset[bytes]().union(*(subscriber.topics for subscriber in subscribers.values()))
    if pace.is_due(len(read)):
        yield
    topics = sorted(topic for topic in read if partitions.get(topic))
    if len({subscriber.topics for subscriber in subscribers.values()}) == 1:
        yield from _share_out(topics, partitions, members, held)
        topics = []
    for topic in topics:
        readers = [member for member in members if topic in subscribers[member].topics]
        yield from _share_out([topic], partitions, readers, held)
        if pace.is_due(len(members)):
            yield
    made: dict[str, Assignment] = {}
    for member in members:
        given: dict[bytes, frozenset[int]] = {}
        for topic in sorted(held[member]):
            if held[member][topic]:
                given[topic] = frozenset(held[member][topic])
            if pace.is_due(1 + len(held[member][topic])):
                yield
        made[member] = given
    return made


def _share_out(
    topics: Sequence[bytes],
    partitions: Mapping[bytes, frozenset[int]],
    members: Sequence[str],
    held: Mapping[str, dict[bytes, set[int]]],
) -> Steps[None]:
    """Change what ``members`` hold of topics, so that all partitions are held, and by about equally many."""
    holders: dict[_Partition, list[int]] = {}  # numbers of members
    pace = Pace()
    for topic in topics:
        for number in sorted(partitions[topic]):
            holders[topic, number] = []
        if pace.is_due(len(partitions[topic])):
            yield
    sharing = -(-len(members) // len(holders)) if holders else 0  # how many members each partition is to have
    total = sharing * len(holders)
    hungry: list[int] = []
    wanted: list[int] = []
    for place, member in enumerate(members):
        wanted.append(-(-total * (place + 1) // len(members)) + (-total * place // len(members)))
        kept = held[member]
        for topic in topics if len(topics) == 1 else list(kept):
            for number in sorted(kept.get(topic, ())):
                places = holders[topic, number]
                if wanted[place] and len(places) < sharing:
                    places.append(place)
                    wanted[place] -= 1
                else:
                    kept[topic].remove(number)
            if pace.is_due(1 + len(kept.get(topic, ()))):
                yield
        if wanted[place]:
            hungry.append(place)
    turn = 0
    for (topic, number), places in holders.items():
        passed = 0
        while len(places) < sharing and passed < len(hungry):
            turn %= len(hungry)
            place = hungry[turn]
            if place in places:
                turn, passed = turn + 1, passed + 1
                continue
            places.append(place)
            held[members[place]].setdefault(topic, set()).add(number)
            wanted[place] -= 1
            passed = 0
            if wanted[place]:
                turn += 1
            else:
                hungry.pop(turn)
        if pace.is_due(1 + len(places)):
            yield
