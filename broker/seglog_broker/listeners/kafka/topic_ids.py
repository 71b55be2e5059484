"""Topics by the ids that requests of Kafka's wire name them by."""

from seglog_broker.coordinators.groups.topic_ids import NO_ID, id_bytes, id_text
from seglog_broker.storage.directory.topic_registry import Topic, Topics

__all__ = ["NO_ID", "id_bytes", "id_text", "topic_with_id"]


def topic_with_id(topics: Topics, topic_id: bytes) -> Topic | None:
    """The topic that has this id."""
    return topics.with_id(id_text(topic_id))
