"""The assignors of groups of the consumer protocol: which member is to have which partitions.

Both give every partition of a topic to exactly one of the topic's subscribers, and answer equal input with equal
output, whatever the order in which members and topics come. Time is proportional to what goes in, but for a logarithm.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeVar

Assignment = Mapping[bytes, frozenset[int]]
"""Numbers of partitions by topic id (16 bytes); no topic without a partition."""

NOTHING: Final[Assignment] = {}


def merged(one: Assignment, other: Assignment) -> Assignment:
    """What either of the two has."""
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in (*one, *other)}


_Member = TypeVar("_Member", str, int)

_BALANCING_ROUNDS: Final = 16
"""Over all topics. Each about halves what is left of the imbalance where subscriptions overlap."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[bytes]
    """Ids of the topics that it reads."""
    assigned: Assignment = NOTHING
    """What the last assignment gave it."""
    instance_id: str | None = None


def assign(
    assignor: str, subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """The assignment of each member, by ``assignor``; KeyError if there is no such assignor.

    ``partitions`` are the numbers of partitions of the topics that there are; others are not assigned.
    """
    return ASSIGNORS[assignor](subscribers, partitions)


# --- range ------------------------------------------------------------------------------------------------------------


def assign_range(subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> dict[str, Assignment]:
    """A range of each topic for each of its subscribers.

    Topics with equally many partitions and the same subscribers are divided equally, so that partitions with the same
    number go together. Static members come first, by instance id, since theirs does not change when they return.
    """
    order = sorted(subscribers, key=lambda member: _range_rank(member, subscribers[member]))
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in order}
    for topic, readers in _readers(order, subscribers, partitions).items():
        least, larger = divmod(partitions[topic], len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + least + (place < larger)
            if end > start:
                assigned[member][topic] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _range_rank(member: str, subscriber: Subscriber) -> tuple[bool, str, str]:
    return (subscriber.instance_id is None, subscriber.instance_id or "", member)


# --- uniform ----------------------------------------------------------------------------------------------------------


def assign_uniform(subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> dict[str, Assignment]:
    """As many partitions for one member as for another, as far as subscriptions allow.

    Members keep what they have, as far as balance allows.
    """
    if len({subscriber.topics for subscriber in subscribers.values()}) <= 1:
        balancer = _fill_quotas(_Uniform(subscribers, partitions))
    else:
        balancer = _even_out(_Uniform(subscribers, partitions))
    return balancer.assignments()


class _Uniform:
    """An assignment in the making. Members are numbers, in the order of their ids."""

    def __init__(self, subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> None:
        self.members: Final = sorted(subscribers)
        self.partitions: Final = partitions
        in_order = [subscribers[member] for member in self.members]
        self.readers: Final = _readers(range(len(self.members)), dict(enumerate(in_order)), partitions)
        """Members by topic."""
        self.owned: Final[list[dict[bytes, list[int]]]] = [{} for _ in self.members]
        """Partitions by member and topic, ascending at first; partitions are taken from the end."""
        self.loads: Final = [0] * len(self.members)
        self.free: Final[dict[bytes, list[int]]] = {}
        taken: dict[bytes, set[int]] = {topic: set() for topic in self.readers}
        for member, subscriber in enumerate(in_order):
            for topic in sorted(subscriber.assigned.keys() & subscriber.topics & taken.keys()):
                kept = sorted(n for n in subscriber.assigned[topic] - taken[topic] if n < partitions[topic])
                if kept:
                    taken[topic].update(kept)
                    self.owned[member][topic] = kept
                    self.loads[member] += len(kept)
        for topic, there in taken.items():
            self.free[topic] = [number for number in range(partitions[topic]) if number not in there]

    def give(self, topic: bytes, number: int, member: int) -> None:
        """Assign a free partition to ``member``."""
        self.owned[member].setdefault(topic, []).append(number)
        self.loads[member] += 1

    def take(self, topic: bytes, member: int) -> int:
        """Take a topic's last partition from ``member``."""
        self.loads[member] -= 1
        return self.owned[member][topic].pop()

    def assignments(self) -> dict[str, Assignment]:
        """What each member has now."""
        return {
            member: {topic: frozenset(numbers) for topic, numbers in owned.items() if numbers}
            for member, owned in zip(self.members, self.owned, strict=True)
        }


def _fill_quotas(state: _Uniform) -> _Uniform:
    """For equal subscriptions: numbers of partitions differ by one at most, and no move is unnecessary."""
    if not state.members:
        return state
    least, larger = divmod(sum(state.partitions[topic] for topic in state.readers), len(state.members))
    # The larger quotas go to those who have most, since they lose least by them.
    order = sorted(range(len(state.members)), key=lambda member: -state.loads[member])
    quotas = [least] * len(state.members)
    for member in order[:larger]:
        quotas[member] += 1
    waiting = [(topic, number) for topic, numbers in state.free.items() for number in numbers]
    for member, quota in enumerate(quotas):
        for topic in reversed(state.owned[member]):
            while state.loads[member] > quota and state.owned[member][topic]:
                waiting.append((topic, state.take(topic, member)))
    hungry = [member for member, quota in enumerate(quotas) for _ in range(quota - state.loads[member])]
    for member, (topic, number) in zip(hungry, sorted(waiting), strict=True):
        state.give(topic, number, member)
    return state


def _even_out(state: _Uniform) -> _Uniform:
    """For subscriptions that differ: free partitions first, those of topics with the least choice of readers foremost.

    Then partitions move from readers with more to readers with less, topic by topic, until none helps.
    """
    order = sorted(
        state.readers, key=lambda t: (-state.partitions[t] / len(state.readers[t]), len(state.readers[t]), t)
    )
    for topic in order:
        loads = [(state.loads[member], member) for member in state.readers[topic]]
        heapify(loads)
        for number in state.free[topic]:
            load, member = heappop(loads)
            state.give(topic, number, member)
            heappush(loads, (load + 1, member))
    shared = [topic for topic in order if len(state.readers[topic]) > 1]
    for _ in range(_BALANCING_ROUNDS):
        if not sum(_balance_topic(state, topic) for topic in shared):
            break
    return state


def _balance_topic(state: _Uniform, topic: bytes) -> int:
    """Move partitions of ``topic`` until its owners have at most one partition more than any reader; how many moved."""
    least = [(state.loads[member], member) for member in state.readers[topic]]
    most = [(-state.loads[member], member) for member in state.readers[topic] if state.owned[member].get(topic)]
    heapify(least)
    heapify(most)
    moved = 0
    while most:
        load, giver = heappop(most)
        if -load != state.loads[giver] or not state.owned[giver][topic]:
            continue  # an entry from before a move
        while least[0][0] != state.loads[least[0][1]]:
            heappop(least)
        taker = least[0][1]
        if state.loads[giver] - state.loads[taker] <= 1:
            break
        state.give(topic, state.take(topic, giver), taker)
        moved += 1
        for member in (giver, taker):
            heappush(least, (state.loads[member], member))
            heappush(most, (-state.loads[member], member))
    return moved


def _readers(
    members: Iterable[_Member], subscribers: Mapping[_Member, Subscriber], partitions: Mapping[bytes, int]
) -> dict[bytes, list[_Member]]:
    """The subscribers of each topic that there is and that has any, in the order of ``members``."""
    members = list(members)
    by_topics: dict[frozenset[bytes], list[_Member]] = {}
    for member in members:
        by_topics.setdefault(subscribers[member].topics, []).append(member)
    if len(by_topics) == 1:  # as a rule, and then one list is that of all topics
        [(topics, readers)] = by_topics.items()
        return {topic: readers for topic in topics if topic in partitions}
    found: dict[bytes, list[_Member]] = {}
    for member in members:
        for topic in subscribers[member].topics:
            if topic in partitions:
                found.setdefault(topic, []).append(member)
    return found


ASSIGNORS: Final[Mapping[str, Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], dict[str, Assignment]]]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}
"""By the names that members ask for."""
