"""Topics as groups see them: by name in subscriptions, by id in assignments and records.

The broker writes a topic id as 22 characters, Kafka's wire and records have sixteen bytes.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_protocol.steps import Pace, Steps

NO_ID: Final = bytes(16)
"""The id in a request that names a topic by its name."""


@lru_cache(maxsize=10_000)
def id_bytes(topic_id: str) -> bytes:
    """The sixteen bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


@lru_cache(maxsize=10_000)
def id_text(topic_id: bytes) -> str:
    """The 22 characters of a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


class TopicSize(NamedTuple):
    """A topic that exists; ``topic_id`` has 16 bytes."""

    topic_id: bytes
    partitions: int


class Topics:
    """The broker's topics at the moment. The service has them from the registry."""

    version = 0
    """Grows whenever topics are created, enlarged or deleted."""

    def find(self, name: str) -> TopicSize | None:
        """The topic of this name; None if there is none."""
        raise NotImplementedError

    def name(self, topic_id: bytes) -> str | None:
        """The name of a topic; None if there is none with this id."""
        raise NotImplementedError

    def names(self) -> Iterable[str]:
        """All topics that a regular expression may match: as in Kafka, the broker's own among them."""
        raise NotImplementedError


def by_id(partitions: Mapping[str, Iterable[int]], topics: Topics) -> Steps[Assignment]:
    """Partitions by topic id, from partitions by topic name. Topics that do not exist are left out."""
    found: dict[bytes, frozenset[int]] = {}
    pace = Pace()
    for name, numbers in partitions.items():
        topic = topics.find(name)
        if topic is not None and numbers:
            found[topic.topic_id] = frozenset(numbers)
        if pace.is_due():
            yield
    return found


def by_name(assignment: Assignment, topics: Topics) -> Iterator[tuple[str, frozenset[int]]]:
    """Partitions by topic name, from partitions by topic id. Topics that do not exist are left out."""
    for topic, numbers in assignment.items():
        name = topics.name(topic)
        if name is not None:
            yield name, numbers
