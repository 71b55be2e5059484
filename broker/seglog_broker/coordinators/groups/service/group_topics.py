"""The topics that groups of the consumer protocol assign."""

from collections.abc import Iterable
from typing import Final

from seglog_broker.coordinators.groups.consumer_requests import TopicSize
from seglog_broker.coordinators.groups.topic_ids import id_bytes, id_text
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry


class GroupTopics:
    """The topics of a log directory: a ``consumer_requests.Topics``."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry: Final = registry
        self.version = 0
        self._found: dict[str, tuple[Topic, TopicSize]] = {}

    def find(self, name: str) -> TopicSize | None:
        """As ``Topics.find``."""
        topic = self._registry.topics.get(name)
        if topic is None:
            self._found.pop(name, None)
            return None
        found = self._found.get(name)
        if found is None or found[0] is not topic:
            found = self._found[name] = topic, TopicSize(id_bytes(topic.id), topic.partitions)
        return found[1]

    def name(self, topic_id: bytes) -> str | None:
        """As ``Topics.name``."""
        topic = self._registry.topics.with_id(id_text(topic_id))
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        """As ``Topics.names``."""
        return list(self._registry.topics)
