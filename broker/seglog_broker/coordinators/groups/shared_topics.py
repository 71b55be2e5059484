"""How far the state of the partitions of a share group is, which is made before members are assigned them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from seglog_broker.coordinators.groups.group_memory import NUMBER_BYTES, TOPIC_BYTES


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

    def partitions(self, topics: Collection[bytes] | None = None) -> dict[bytes, frozenset[int]]:
        """Those that have, or may have, a state, of some topics; None: of all."""
        found: dict[bytes, frozenset[int]] = {}
        for known in (self.initializing, self.initialized):
            for topic in known if topics is None else known.keys() & topics:
                found[topic] = found.get(topic, frozenset()) | known[topic].partitions
        return found

    def with_initializing(self, partitions: ByTopic) -> "SharedTopics":
        """With the state of more partitions being made, which is not deleted any more."""
        deleting = {topic: name for topic, name in self.deleting.items() if topic not in partitions}
        return SharedTopics(_added(self.initializing, partitions), self.initialized, deleting)

    def without_initializing(self, partitions: Mapping[bytes, Collection[int]]) -> "SharedTopics":
        """With the state of these partitions made, or given up."""
        left = {
            topic: named._replace(partitions=named.partitions.difference(partitions.get(topic, ())))
            for topic, named in self.initializing.items()
        }
        return self._replace(initializing={topic: named for topic, named in left.items() if named.partitions})

    def with_initialized(self, partitions: ByTopic) -> "SharedTopics":
        """With the state of more partitions there."""
        return self._replace(initialized=_added(self.initialized, partitions))

    def with_deleting(self, topics: Collection[bytes]) -> "SharedTopics":
        """With the state of topics being deleted, of those that had some."""
        names = {topic: named.name for topic, named in (*self.initializing.items(), *self.initialized.items())}
        initializing, initialized, _ = self.without(topics)
        more = {topic: name for topic, name in names.items() if topic in topics}
        return SharedTopics(initializing, initialized, {**self.deleting, **more})

    def without(self, topics: Collection[bytes]) -> "SharedTopics":
        """With the state of topics deleted."""
        return SharedTopics(
            {topic: named for topic, named in self.initializing.items() if topic not in topics},
            {topic: named for topic, named in self.initialized.items() if topic not in topics},
            {topic: name for topic, name in self.deleting.items() if topic not in topics},
        )


def _added(known: ByTopic, more: ByTopic) -> ByTopic:
    added = dict(known)
    for topic, (name, numbers) in more.items():
        added[topic] = NamedPartitions(name, numbers | known[topic].partitions if topic in known else numbers)
    return added
