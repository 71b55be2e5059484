"""Offsets of many partitions, as Spark stores them: ``{"topic": {"partition": offset}}``.

The format is that of Spark's Kafka connector. Spark compares offsets as text, so topics are always sorted by name and
partitions by number; otherwise the same offsets would look like new data.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

EARLIEST: Final = -2
"""Stands for the earliest offset."""
LATEST: Final = -1
"""Stands for the latest offset, that of the next append."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of one partition: all that a task needs to know."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets in the range; some may have no record."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.start} to {self.end}"


Offsets = dict[TopicPartition, int]


def to_spark(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """In the one order that Spark's comparison of texts allows."""
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return nested


def from_spark(nested: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The offsets of a checkpoint, written by ``to_spark``, possibly of an older version."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(text: str, option: str) -> Offsets:
    """The value of ``option``, JSON of the same shape; ValueError with a sentence."""
    example = '{"commits": {"0": 23, "1": -2}}'
    found: Offsets = {}
    for topic, partitions in _json_object(text, option, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{option} has no partitions for {topic!r}; write for example {example}")  # noqa: TRY004
        for partition, offset in partitions.items():
            number = _partition(partition, option, example)
            if type(offset) is not int or offset < EARLIEST:
                raise ValueError(
                    f"{option} gives {topic}-{number} the offset {offset!r}; an offset is a whole number from 0 on, or "
                    f"{EARLIEST} for the earliest, or {LATEST} for the latest"
                )
            found[TopicPartition(topic, number)] = offset
    return found


def parse_assign(text: str) -> list[TopicPartition]:
    """The value of ``assign``, ``{"topic": [0, 1]}``, sorted; ValueError with a sentence."""
    option, example = "assign", '{"commits": [0, 1]}'
    found: set[TopicPartition] = set()
    for topic, partitions in _json_object(text, option, example).items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"{option} has no list of partitions for {topic!r}; write for example {example}")
        found.update(TopicPartition(topic, _partition(number, option, example)) for number in partitions)
    return sorted(found)


def _json_object(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{option} is not what it should be ({text!r}); write for example {example}")
    return value


def _partition(value: object, option: str, example: str) -> int:
    text = str(value)
    if isinstance(value, bool | float) or not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{option} names a partition {value!r}; write for example {example}")
    return int(text)


def shown(partitions: Iterable[TopicPartition]) -> str:
    """Some partitions in a sentence, the first few by name."""
    names = [str(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
