"""Partitions by the names of their topics, as consumers exchange them, and by their ids, as the broker assigns them."""

from collections.abc import Iterable, Iterator, Mapping

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_requests import Topics
from seglog_broker.coordinators.groups.steps import Pace
from seglog_protocol.steps import Steps


def by_id(partitions: Mapping[str, Iterable[int]], topics: Topics) -> Steps[Assignment]:
    """Without topics that are gone."""
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
    """Without topics that are gone."""
    for topic, numbers in assignment.items():
        name = topics.name(topic)
        if name is not None:
            yield name, numbers
