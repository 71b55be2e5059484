"""A log of numbers: what planning asks, answered without a broker."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from seglog_protocol.errors import UnknownTopicError
from seglog_spark.extents import Extent
from seglog_spark.offsets import Offsets, TopicPartition
from seglog_spark.options import Assign, ReadOptions, Selection, Subscribe, parse_read_options
from seglog_spark.planning import Ends

RECORD_BYTES = 100


@dataclass
class FakeLog:
    """Topics of one partition or more; ``latest`` moves as a test writes, ``earliest`` as it deletes.

    Offset n has the timestamp n * 1000.
    """

    latest: Offsets
    earliest: Offsets = field(default_factory=dict)
    rolled: dict[TopicPartition, list[Extent]] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)

    def partitions(self, selection: Selection) -> list[TopicPartition]:
        if isinstance(selection, Assign):
            return list(selection.partitions)
        assert isinstance(selection, Subscribe)
        chosen = set(selection.topics) - self.internal
        found = sorted(partition for partition in self.latest if partition.topic in chosen)
        if not found:
            raise UnknownTopicError(f"there is no topic {selection.topics}")
        return found

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
        return {p: Ends(self.earliest.get(p, 0), self.latest[p]) for p in partitions}

    def find_times(self, times: Offsets) -> dict[TopicPartition, int | None]:
        found = {p: max(self.earliest.get(p, 0), -(-time // 1000)) for p, time in times.items()}
        return {p: offset if offset < self.latest[p] else None for p, offset in found.items()}

    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        return {p: [Extent(e.earliest, e.latest, RECORD_BYTES * (e.latest - e.earliest))] for p, e in ends.items()}

    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        return [extent for extent in self.rolled.get(partition, []) if extent.end > ends.earliest]

    def is_internal(self, topic: str) -> bool:
        return topic in self.internal


def tp(name: str) -> TopicPartition:
    """``commits-1`` as partition 1 of commits."""
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def log(**latest: int) -> FakeLog:
    """``log(a_0=5)``: five offsets in partition 0 of a."""
    return FakeLog({tp(name.replace("_", "-")): end for name, end in latest.items()})


def batch_options(**options: str) -> ReadOptions:
    return parse_read_options({"servers": "localhost", "subscribe": "a"} | options, "batch")


def stream_options(**options: str) -> ReadOptions:
    return parse_read_options(
        {"servers": "localhost", "subscribe": "a", "startingOffsets": "earliest"} | options, "stream"
    )
