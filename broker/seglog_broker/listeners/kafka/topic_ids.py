"""Topic ids as Kafka's wire has them: sixteen bytes, where the engine has 22 characters."""

import base64
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from seglog_broker.storage.directory.topic_registry import Topic

NO_ID: Final = bytes(16)
"""Where a topic is not named by its id."""


@lru_cache(maxsize=10_000)
def id_bytes(topic_id: str) -> bytes:
    """The sixteen bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


def id_text(topic_id: bytes) -> str:
    """The 22 characters of a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_with_id(topics: Mapping[str, Topic], topic_id: bytes) -> Topic | None:
    """The topic that has this id."""
    text = id_text(topic_id)
    return next((topic for topic in topics.values() if topic.id == text), None)


def topics_by_id(topics: Mapping[str, Topic]) -> dict[bytes, Topic]:
    """The topics by their ids, for a request with many of these."""
    return {id_bytes(topic.id): topic for topic in topics.values()}
