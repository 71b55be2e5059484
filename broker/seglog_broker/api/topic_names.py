"""Names of topics that Kafka takes for the same, because its metrics cannot tell them apart."""

from collections.abc import Iterable


class TopicNames:
    """Names of topics, to be searched for one that differs from another in dots and underscores only."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._names = set(topics)
        self._by_plain_name = {_plain(topic): topic for topic in self._names}

    def colliding(self, name: str) -> str | None:
        """The topic whose name collides with ``name``, or None; a name that a topic has collides with none."""
        if name in self._names:
            return None
        other = self._by_plain_name.get(_plain(name), name)
        return None if other == name else other

    def add(self, name: str) -> None:
        """There is another topic."""
        self._names.add(name)
        self._by_plain_name[_plain(name)] = name


def _plain(name: str) -> str:
    """The name that all colliding ones have in common."""
    return name.replace(".", "_")
