"""A log of numbers: what planning asks, answered without a broker."""

from collections.abc import Mapping, Sequence

from msgspec.structs import astuple

from seglog_protocol.messages import OffsetsPartition, OffsetsResult
from seglog_spark.catalog import Log
from seglog_spark.extents import Extent
from seglog_spark.offsets import Offsets, TopicPartition
from seglog_spark.options import ReadOptions, parse_read_options
from seglog_spark.planning import Ends

RECORD_BYTES = 100


class FakeLog(Log):
    """Topics of one partition or more; ``latest`` moves as a test writes, ``earliest`` as it deletes.

    Offset n has the timestamp n * 1000. Topics in ``internal`` are matched by no pattern.
    """

    def __init__(self, latest: Offsets, earliest: Offsets | None = None) -> None:
        self.latest = latest
        self.earliest = earliest or {}
        self.rolled: dict[TopicPartition, list[Extent]] = {}
        self.internal: set[str] = set()
        self._durable_only, self._isolation = False, "read_uncommitted"

    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        return {p: [Extent(e.earliest, e.latest, RECORD_BYTES * (e.latest - e.earliest))] for p, e in ends.items()}

    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        return [extent for extent in self.rolled.get(partition, []) if extent.end > ends.earliest]

    def is_internal(self, topic: str) -> bool:
        return topic in self.internal

    def _partitions(self, topic: str) -> list[int]:
        return self._topics()[topic]

    def _topics(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.latest):
            found.setdefault(topic, []).append(partition)
        return found

    def _offsets(self, asked: list[OffsetsPartition]) -> list[OffsetsResult]:
        found = []
        for topic, partition, time_ms, *_ in map(astuple, asked):
            place = TopicPartition(topic, partition)
            earliest, latest = self.earliest.get(place, 0), self.latest[place]
            at = None if time_ms is None else max(earliest, -(-time_ms // 1000))
            offset = at if at is not None and at < latest else None
            found.append(OffsetsResult(topic, partition, earliest=earliest, latest=latest, offset=offset))
        return found


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
