"""How far the state of the partitions of a share group is, which is made before members are assigned them.

There may be very many topics: what goes through all of them is done in steps.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from seglog_broker.coordinators.groups.group_memory import NUMBER_BYTES, TOPIC_BYTES
from seglog_protocol.steps import Pace, Steps

KeptT = TypeVar("KeptT")


class NamedPartitions(NamedTuple):
    """Partitions of a topic, with the name that it had."""

    name: str
    partitions: frozenset[int]


ByTopic = Mapping[bytes, NamedPartitions]
"""Partitions by topic id."""


class SharedTopics(NamedTuple):
    """The share partitions of a group. What changes makes another one."""

    initializing: ByTopic = MappingProxyType({})
    """Their state is being made, or made anew."""
    initialized: ByTopic = MappingProxyType({})
    """Their state is there: members are assigned these."""
    deleting: Mapping[bytes, str] = MappingProxyType({})
    """Their state is being deleted: names by topic id."""

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members."""
        topics = [*self.initializing.values(), *self.initialized.values()]
        sizes = (2 * TOPIC_BYTES + len(topic.name) + NUMBER_BYTES * len(topic.partitions) for topic in topics)
        return sum(sizes) + sum(TOPIC_BYTES + len(name) for name in self.deleting.values())

    def partitions(self, topics: AbstractSet[bytes] | None = None) -> Steps[dict[bytes, NamedPartitions]]:
        """Those that have, or may have, a state, of some topics; None: of all."""
        found: dict[bytes, NamedPartitions] = {}
        for known in (self.initializing, self.initialized):
            chosen = known if topics is None else {topic: known[topic] for topic in known.keys() & topics}
            found = yield from _added(found, chosen)
        return found

    def with_initializing(self, partitions: ByTopic) -> "Steps[SharedTopics]":
        """With the state of more partitions being made, which is not deleted any more."""
        initializing = yield from _added(self.initializing, partitions)
        return SharedTopics(initializing, self.initialized, _without(self.deleting, partitions.keys()))

    def without_initializing(self, partitions: ByTopic) -> "Steps[SharedTopics]":
        """With the state of these partitions given up, or made: ``with_initialized``."""
        left = dict(self.initializing)
        pace = Pace()
        for topic, named in partitions.items():
            numbers = left[topic].partitions - named.partitions if topic in left else None
            if numbers:
                left[topic] = NamedPartitions(left[topic].name, numbers)
            else:
                left.pop(topic, None)
            if pace.is_due():
                yield
        return SharedTopics(left, self.initialized, self.deleting)

    def with_initialized(self, partitions: ByTopic) -> "Steps[SharedTopics]":
        """With the state of more partitions there."""
        initialized = yield from _added(self.initialized, partitions)
        return SharedTopics(self.initializing, initialized, self.deleting)

    def with_deleting(self, topics: ByTopic) -> "SharedTopics":
        """With the state of topics being deleted."""
        initializing, initialized, deleting = self.without(topics.keys())
        return SharedTopics(initializing, initialized, {**deleting, **{t: named.name for t, named in topics.items()}})

    def without(self, topics: AbstractSet[bytes]) -> "SharedTopics":
        """With the state of topics deleted."""
        return SharedTopics(
            _without(self.initializing, topics), _without(self.initialized, topics), _without(self.deleting, topics)
        )


def _added(known: ByTopic, more: ByTopic) -> Steps[dict[bytes, NamedPartitions]]:
    added = dict(known)
    pace = Pace()
    for topic, named in more.items():
        before = added.get(topic)
        added[topic] = named if before is None else named._replace(partitions=named.partitions | before.partitions)
        if pace.is_due():
            yield
    return added


def _without(known: Mapping[bytes, KeptT], topics: AbstractSet[bytes]) -> dict[bytes, KeptT]:
    return {topic: known[topic] for topic in known if topic not in topics}
