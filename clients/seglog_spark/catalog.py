"""Look-up of topics, offsets and sizes for planning: at a broker, one request for many, or in a log directory."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from seglog.client import Client
from seglog.client import connect as seglog_connect
from seglog.core.conversations import check
from seglog.core.fetcher import readable_end
from seglog.core.records import Record
from seglog.core.retries import Retries
from seglog.directory.consumer import LogDirectory, offsets_in
from seglog.directory.partition import PartitionFiles
from seglog_protocol.errors import SeglogError
from seglog_protocol.internal_topics import INTERNAL_TOPICS
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation
from seglog_protocol.messages import OffsetsPartition, OffsetsReply, OffsetsRequest, OffsetsResult, TopicDescription
from seglog_spark.extents import Extent
from seglog_spark.marks import is_note
from seglog_spark.offsets import Offsets, TopicPartition
from seglog_spark.options import MARKS_TOPIC, TASKS_TOPIC, Assign, OptionError, Selection, Subscribe
from seglog_spark.planning import Ends
from seglog_spark.servers import Server

if TYPE_CHECKING:
    from seglog.consumer import Consumer
    from seglog.directory.consumer import DirectoryConsumer


CONNECT_SECONDS: Final = 10.0
"""Timeout for a broker's first answer; after it the address counts as wrong."""

PATIENCE_SECONDS: Final = 120.0
"""How long a broker that has answered once may be away, for example during a restart."""

_FIRST_BYTES: Final = 64 * 1024
"""Bytes to ask for where a topic's first record is wanted."""

AnswerT = TypeVar("AnswerT")


class Log(ABC):
    """The look-ups that planning needs: of a broker, of a log directory, or in tests of neither.

    With ``durable_only`` logs end at their durable end, and at "read_committed" at their last stable offset. No pattern
    matches the broker's own topics, and those in which the sink keeps its notes. A marks topic may have any name, also
    in a directory without settings, so its first record tells what it is: ``consumer`` makes a consumer that reads it.
    """

    def __init__(
        self, consumer: "Callable[..., Consumer | DirectoryConsumer]", durable_only: bool, isolation: Isolation
    ) -> None:
        self._consumer = consumer
        self._durable_only = durable_only
        self._isolation = isolation
        self._known = dict.fromkeys((*INTERNAL_TOPICS, MARKS_TOPIC, TASKS_TOPIC), True)

    def partitions(self, selection: Selection) -> list[TopicPartition]:
        """The selected partitions, sorted.

        Raises UnknownTopicError with the nearest topic, OptionError for a missing partition and when none is selected.
        """
        if isinstance(selection, Assign):
            there = {topic: self._partitions(topic) for topic in {t for t, _ in selection.partitions}}
            for topic, partition in selection.partitions:
                if partition not in there[topic]:
                    raise OptionError(f"assign names partition {partition} of {topic}, which has {len(there[topic])}")
            return list(selection.partitions)
        found: Mapping[str, Sequence[int]]
        if isinstance(selection, Subscribe):
            found = {topic: self._partitions(topic) for topic in selection.topics}
        else:
            pattern = re.compile(selection.pattern)
            found = {
                topic: partitions
                for topic, partitions in self._topics().items()
                if pattern.fullmatch(topic) and not self.is_internal(topic)
            }
            if not found:
                raise OptionError(
                    f"no topic's whole name matches subscribePattern {selection.pattern!r}; those of the broker and of "
                    "the sink's marks are read by their names alone"
                )
        return sorted(TopicPartition(topic, number) for topic, partitions in found.items() for number in partitions)

    def is_internal(self, topic: str) -> bool:
        """Whether no pattern matches this topic; not yet an empty one. Raises SeglogError when nobody can tell now."""
        if topic not in self._known:
            try:
                first = patiently(lambda: self._first(topic))
            except SeglogError as error:
                if error.retriable:
                    raise
                return False  # a task that reads it says what is wrong with it
            if first is None:
                return False
            self._known[topic] = is_note(first)
        return self._known[topic]

    def _first(self, topic: str) -> Record | None:
        with self._consumer(topic, partitions=[0], partition_bytes=_FIRST_BYTES) as consumer:
            return next((record for batch in consumer.batches() for record in batch.records()), None)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
        """The readable range of each partition."""
        asked = [OffsetsPartition(topic, partition) for topic, partition in partitions]
        return {_place(result): self._ends(result) for result in self._offsets(asked)}

    def _ends(self, result: OffsetsResult) -> Ends:
        durable = result.durable if self._durable_only else None
        end = readable_end(result.latest or 0, result.last_stable_offset, durable, self._isolation)
        return Ends(result.earliest or 0, end)

    def find_times(self, times: Offsets) -> dict[TopicPartition, int | None]:
        """For a time (epoch ms) by partition, the offset of the first record at or after it."""
        asked = [OffsetsPartition(topic, partition, time_ms) for (topic, partition), time_ms in times.items()]
        return {_place(result): result.offset for result in self._offsets(asked)}

    @abstractmethod
    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        """Estimated extents of these partitions."""

    @abstractmethod
    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        """Extents of a partition by segment; empty if unknown."""

    @abstractmethod
    def _partitions(self, topic: str) -> Sequence[int]:
        """The partitions of a topic. Raises UnknownTopicError."""

    @abstractmethod
    def _topics(self) -> Mapping[str, Sequence[int]]:
        """All topics with their partitions."""

    @abstractmethod
    def _offsets(self, asked: list[OffsetsPartition]) -> list[OffsetsResult]:
        """The ends of partitions, and what is at a time. Raises the first partition's error."""


def _place(result: OffsetsResult) -> TopicPartition:
    return TopicPartition(result.topic, result.partition or 0)


def connect_first(server: Server) -> Client:
    """A client for a driver: fails soon for a wrong address, waits for a broker that restarts later."""
    with connect(server, CONNECT_SECONDS):
        return connect(server)


def connect(server: Server, seconds: float = PATIENCE_SECONDS) -> Client:
    """A client that waits ``seconds`` for its broker, now and whenever the connection is lost."""
    keywords = {} if isinstance(server, str) else server.keywords()
    return seglog_connect(str(server), connect_timeout=seconds, client_id="seglog-spark", **keywords)


def patiently(ask: Callable[[], AnswerT]) -> AnswerT:
    """The result of ``ask``, with retries for PATIENCE_SECONDS after retriable errors."""
    retries = Retries(PATIENCE_SECONDS)
    while True:
        try:
            return ask()
        except SeglogError as error:
            pause, _ = retries.failed(error, time.monotonic())
            time.sleep(pause)


class Catalog(Log):
    """Look-ups at the broker of ``client``."""

    def __init__(self, client: Client, *, durable_only: bool = False, isolation: Isolation = READ_UNCOMMITTED) -> None:
        super().__init__(client.consumer, durable_only, isolation)
        self._client = client

    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        """One extent per partition, assuming that a topic's bytes are spread evenly over its offsets."""
        found: dict[TopicPartition, Sequence[Extent]] = {}
        for topic in {partition.topic for partition in ends}:
            size = self._described(topic).size
            every = {_place(result): self._ends(result) for result in self._offsets([OffsetsPartition(topic)])}
            offsets = sum(latest - earliest for earliest, latest in every.values())
            for partition, (earliest, latest) in every.items():
                if partition in ends and latest > earliest:
                    found[partition] = [Extent(earliest, latest, size * (latest - earliest) // offsets)]
        return found

    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        """As in ``Log``; empty from a broker without ``explain_segments``."""
        if "explain_segments" not in self._client.broker.apis:
            return ()
        explained = patiently(lambda: self._client.explain.segments(*partition))
        # Deleted segments that are still on disk come first, below the log start.
        return [
            Extent(segment.base_offset, segment.next_offset, segment.size)
            for segment in explained.segments
            if max(segment.base_offset, ends.earliest) < segment.next_offset
        ]

    def _described(self, topic: str) -> TopicDescription:
        return patiently(lambda: self._client.describe_topic(topic))

    def _partitions(self, topic: str) -> Sequence[int]:
        return range(self._described(topic).partitions)

    def _topics(self) -> Mapping[str, Sequence[int]]:
        return {topic.name: range(topic.partitions) for topic in patiently(self._client.topics)}

    def _offsets(self, asked: list[OffsetsPartition]) -> list[OffsetsResult]:
        def ask() -> list[OffsetsResult]:
            isolation = None if self._isolation == READ_UNCOMMITTED else self._isolation
            request = OffsetsRequest(asked, isolation=isolation)
            reply, _ = self._client.call(request, OffsetsReply, is_repeatable=True)
            check(reply.partitions)
            return reply.partitions

        return patiently(ask)


class LocalCatalog(Log):
    """Look-ups in the log directory at ``path``, whose durable ends are its recovery points on disk.

    In a cluster a directory may have some of a topic's partitions alone. Raises LogDirectoryError when it does not
    exist.
    """

    def __init__(self, path: Path, *, durable_only: bool = False, isolation: Isolation = READ_UNCOMMITTED) -> None:
        self._directory = LogDirectory(path)
        super().__init__(self._directory.consumer, durable_only, isolation)
        self._files: dict[TopicPartition, PartitionFiles] = {}  # which remember how far a log was looked at

    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        """Segment by segment, which takes no more than a look at their names and sizes."""
        return {partition: self.segments(partition, found) for partition, found in ends.items()}

    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        """As in ``Log``."""
        found = (Extent(*extent) for extent in self._of(partition).extents())
        return [extent for extent in found if max(extent.start, ends.earliest) < extent.end]

    def _partitions(self, topic: str) -> Sequence[int]:
        return self._directory.partitions(topic)

    def _topics(self) -> Mapping[str, Sequence[int]]:
        return self._directory.topics()

    def _offsets(self, asked: list[OffsetsPartition]) -> list[OffsetsResult]:
        return [offsets_in(self._of(TopicPartition(p.topic, p.partition or 0)), p, self._isolation) for p in asked]

    def _of(self, partition: TopicPartition) -> PartitionFiles:
        if partition not in self._files:
            self._files[partition] = self._directory.partition(*partition)
        return self._files[partition]
