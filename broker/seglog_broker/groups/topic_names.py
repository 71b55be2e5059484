"""Partitions by the names of their topics, as consumers exchange them, and by their ids, as the broker assigns them."""

from collections.abc import Iterable, Iterator, Mapping

from seglog_broker.groups.assignors import Assignment
from seglog_broker.groups.consumer_requests import Topics


def by_id(partitions: Mapping[str, Iterable[int]], topics: Topics) -> Assignment:
    """Without topics that are gone."""
    found = ((topics.find(name), frozenset(numbers)) for name, numbers in partitions.items())
    return {topic.topic_id: numbers for topic, numbers in found if topic is not None and numbers}


def by_name(assignment: Assignment, topics: Topics) -> Iterator[tuple[str, frozenset[int]]]:
    """Without topics that are gone."""
    for topic, numbers in assignment.items():
        name = topics.name(topic)
        if name is not None:
            yield name, numbers
