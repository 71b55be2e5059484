"""The assignors of groups of the consumer protocol, which make target assignments.

Both give every partition of a topic to exactly one of the topic's subscribers, and answer equal input with equal
output, whatever the order in which members and topics come. Time is proportional to what goes in, but for a logarithm,
and passes in steps.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeVar

from seglog_protocol.steps import Pace, Steps

Assignment = Mapping[bytes, frozenset[int]]
"""Numbers of partitions by topic id (16 bytes); no topic without a partition."""

NOTHING: Final[Assignment] = {}


def merged(one: Assignment, other: Assignment) -> Assignment:
    """The partitions of either assignment."""
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in (*one, *other)}


_Member = TypeVar("_Member", str, int)

_BALANCING_ROUNDS: Final = 16
"""Over all topics. Each about halves what is left of the imbalance where subscriptions overlap."""


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[bytes]
    """Ids of the topics that it reads."""
    assigned: Assignment = NOTHING
    """Its last target assignment."""
    instance_id: str | None = None


# --- range ------------------------------------------------------------------------------------------------------------


def assign_range(
    subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]
) -> Steps[dict[str, Assignment]]:
    """A range of each topic for each of its subscribers.

    Topics with equally many partitions and the same subscribers are divided equally, so that partitions with the same
    number go together. Static members come first, by instance id, since theirs does not change when they return.
    """
    instances = {member: subscriber.instance_id for member, subscriber in subscribers.items()}
    order = sorted(instances, key=lambda member: (instances[member] is None, instances[member] or "", member))
    assigned: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in order}
    pace = Pace()
    for topic, readers in (yield from _readers(order, subscribers, partitions)).items():
        least, larger = divmod(partitions[topic], len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + least + (place < larger)
            if end == start:
                break  # there are none left
            assigned[member][topic] = frozenset(range(start, end))
            start = end
        if pace.is_due(1 + partitions[topic]):
            yield
    return dict(assigned)


# --- uniform ----------------------------------------------------------------------------------------------------------


def assign_uniform(
    subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]
) -> Steps[dict[str, Assignment]]:
    """As many partitions for each member as subscriptions allow; members keep theirs as far as balance allows."""
    state = _Uniform(subscribers, partitions)
    yield from state.keep(subscribers)
    if len({subscriber.topics for subscriber in subscribers.values()}) <= 1:
        yield from _fill_quotas(state)
    else:
        yield from _even_out(state)
    return (yield from state.assignments())


class _Uniform:
    """An assignment in the making. Members are numbers, in the order of their ids."""

    def __init__(self, subscribers: Mapping[str, Subscriber], partitions: Mapping[bytes, int]) -> None:
        self.members: Final = sorted(subscribers)
        self.partitions: Final = partitions
        self.readers: dict[bytes, list[int]] = {}
        """Members by topic."""
        self.owned: Final[list[dict[bytes, list[int]]]] = [{} for _ in self.members]
        """Partitions by member and topic, ascending at first; partitions are taken from the end."""
        self.loads: Final = [0] * len(self.members)
        self.free: Final[dict[bytes, list[int]]] = {}
        """Partitions that are not assigned, ascending, by topic, of topics that have some."""

    def keep(self, subscribers: Mapping[str, Subscriber]) -> Steps[None]:
        """Keep partitions with their members, of topics that these still read."""
        in_order = [subscribers[member] for member in self.members]
        self.readers = yield from _readers(range(len(self.members)), dict(enumerate(in_order)), self.partitions)
        taken: set[tuple[bytes, int]] = set()
        pace = Pace()
        for member, subscriber in enumerate(in_order):
            topics = subscriber.topics
            for topic in sorted(subscriber.assigned):
                if topic in topics and topic in self.partitions:
                    count = self.partitions[topic]
                    kept = [n for n in sorted(subscriber.assigned[topic]) if n < count and (topic, n) not in taken]
                    if kept:
                        taken.update([(topic, number) for number in kept])
                        self.owned[member][topic] = kept
                        self.loads[member] += len(kept)
                    if pace.is_due(1 + len(kept)):
                        yield
        for topic in self.readers:
            free = [number for number in range(self.partitions[topic]) if (topic, number) not in taken]
            if free:
                self.free[topic] = free
            if pace.is_due(1 + self.partitions[topic]):
                yield

    def give(self, topic: bytes, number: int, member: int) -> None:
        """Assign a free partition to ``member``."""
        self.owned[member].setdefault(topic, []).append(number)
        self.loads[member] += 1

    def take(self, topic: bytes, member: int) -> int:
        """Take a topic's last partition from ``member``."""
        self.loads[member] -= 1
        return self.owned[member][topic].pop()

    def assignments(self) -> Steps[dict[str, Assignment]]:
        """The target assignment of each member."""
        made: dict[str, Assignment] = {}
        pace = Pace()
        for member, owned in zip(self.members, self.owned, strict=True):
            made[member] = assigned = {}
            for topic, numbers in owned.items():
                if numbers:
                    assigned[topic] = frozenset(numbers)
                if pace.is_due(1 + len(numbers)):
                    yield
        return made


def _fill_quotas(state: _Uniform) -> Steps[None]:
    """For equal subscriptions: numbers of partitions differ by one at most, and no move is unnecessary."""
    if not state.members:
        return
    least, larger = divmod(sum(state.partitions[topic] for topic in state.readers), len(state.members))
    # The larger quotas go to those who have most, since they lose least by them.
    order = sorted(range(len(state.members)), key=lambda member: -state.loads[member])
    quotas = [least] * len(state.members)
    for member in order[:larger]:
        quotas[member] += 1
    pace = Pace()
    waiting = state.free
    for member, quota in enumerate(quotas):
        for topic in reversed(state.owned[member]):
            if state.loads[member] <= quota:
                break
            while state.loads[member] > quota and state.owned[member][topic]:
                waiting.setdefault(topic, []).append(state.take(topic, member))
                if pace.is_due():
                    yield
    hungry = (member for member, quota in enumerate(quotas) for _ in range(quota - state.loads[member]))
    for topic in sorted(waiting):
        for number in sorted(waiting[topic]):
            state.give(topic, number, next(hungry))
        if pace.is_due(len(waiting[topic])):
            yield


def _even_out(state: _Uniform) -> Steps[None]:
    """For subscriptions that differ: free partitions first, those of topics with the least choice of readers foremost.

    Then partitions move from readers with more to readers with less, topic by topic, until none helps.
    """
    by_choice: dict[tuple[float, int], list[bytes]] = {}
    pace = Pace()
    for topic, readers in state.readers.items():
        by_choice.setdefault((-state.partitions[topic] / len(readers), len(readers)), []).append(topic)
        if pace.is_due():
            yield
    order: list[bytes] = []
    for choice in sorted(by_choice):
        order += sorted(by_choice[choice])
        if pace.is_due(len(by_choice[choice])):
            yield
    for topic in order:
        free = state.free.get(topic)
        if free is None:
            continue
        loads = [(state.loads[member], member) for member in state.readers[topic]]
        heapify(loads)
        for number in free:
            load, member = heappop(loads)
            state.give(topic, number, member)
            heappush(loads, (load + 1, member))
        if pace.is_due(len(loads) + len(free)):
            yield
    shared = [topic for topic in order if len(state.readers[topic]) > 1]
    for _ in range(_BALANCING_ROUNDS):
        moved = 0
        for topic in shared:
            moved += _balance_topic(state, topic)
            if pace.is_due(len(state.readers[topic])):
                yield
        if not moved:
            break


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
) -> Steps[dict[bytes, list[_Member]]]:
    """The subscribers of each topic that there is and that has any, in the order of ``members``."""
    members = list(members)
    by_topics: dict[frozenset[bytes], list[_Member]] = {}
    for member in members:
        by_topics.setdefault(subscribers[member].topics, []).append(member)
    if len(by_topics) == 1:  # as a rule, and then one list is that of all topics
        [(topics, readers)] = by_topics.items()
        return {topic: readers for topic in topics if topic in partitions}
    found: dict[bytes, list[_Member]] = {}
    pace = Pace()
    for member in members:
        for topic in subscribers[member].topics:
            if topic in partitions:
                found.setdefault(topic, []).append(member)
            if pace.is_due():
                yield
    return found


Assign = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Steps[dict[str, Assignment]]]
"""Makes the assignment of each member, of the topics that there are, each with the number of its partitions."""

ASSIGNORS: Final[Mapping[str, Assign]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that members ask for."""
