"""Look-up of topics, offsets and sizes for planning: at a broker, one request for many, or in a log directory."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from seglog.client import Client
from seglog.client import connect as seglog_connect
from seglog.core.conversations import check
from seglog.core.fetcher import readable_end
from seglog.core.records import Record
from seglog.core.retries import Retries
from seglog.directory.consumer import LogDirectory
from seglog.directory.partition import PartitionFiles
from seglog_protocol.errors import SeglogError
from seglog_protocol.internal_topics import INTERNAL_TOPICS
from seglog_protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation
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


class Log(Protocol):
    """The look-ups that planning needs; tests implement it without a broker."""

    def partitions(self, selection: Selection) -> list[TopicPartition]:
        """The selected partitions, sorted. Raises UnknownTopicError, OptionError when none is selected."""

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
        """The readable range of each partition."""

    def find_times(self, times: Offsets) -> dict[TopicPartition, int | None]:
        """For a time (epoch ms) by partition, the offset of the first record at or after it."""

    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        """Estimated extents of these partitions."""

    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        """Extents of a partition by segment; empty if unknown."""

    def is_internal(self, topic: str) -> bool:
        """Whether no pattern matches this topic, whatever its name."""


class _Topics:
    """Selection of topics, of which no pattern matches the broker's own, and those in which the sink keeps its notes.

    A marks topic may have any name, also in a directory without settings, so its first record tells what it is.
    """

    def __init__(self, consumer: "Callable[..., Consumer | DirectoryConsumer]") -> None:
        self._consumer = consumer
        self._known = dict.fromkeys((*INTERNAL_TOPICS, MARKS_TOPIC, TASKS_TOPIC), True)

    def is_internal(self, topic: str) -> bool:
        """As in ``Log``; an empty topic is not internal yet. Raises SeglogError when nobody can tell now."""
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

    def _selected(
        self,
        selection: Selection,
        partitions_of: Callable[[str], Sequence[int]],
        topics: Callable[[], Mapping[str, Sequence[int]]],
    ) -> list[TopicPartition]:
        """The selected partitions of the named topics, or of all ``topics`` that are not internal; sorted.

        Raises OptionError.
        """
        if isinstance(selection, Assign):
            there = {topic: partitions_of(topic) for topic in {t for t, _ in selection.partitions}}
            for topic, partition in selection.partitions:
                if partition not in there[topic]:
                    raise OptionError(f"assign names partition {partition} of {topic}, which has {len(there[topic])}")
            return list(selection.partitions)
        found: Mapping[str, Sequence[int]]
        if isinstance(selection, Subscribe):
            found = {topic: partitions_of(topic) for topic in selection.topics}
        else:
            pattern = re.compile(selection.pattern)
            found = {
                topic: partitions
                for topic, partitions in topics().items()
                if pattern.fullmatch(topic) and not self.is_internal(topic)
            }
            if not found:
                raise OptionError(
                    f"no topic's whole name matches subscribePattern {selection.pattern!r}; those of the broker and of "
                    "the sink's marks are read by their names alone"
                )
        return sorted(TopicPartition(topic, number) for topic, partitions in found.items() for number in partitions)


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


class Catalog(_Topics):
    """Look-ups at the broker of ``client``.

    With ``durable_only`` logs end at their durable end, and at "read_committed" at their last stable offset.
    """

    def __init__(self, client: Client, *, durable_only: bool = False, isolation: Isolation = READ_UNCOMMITTED) -> None:
        super().__init__(client.consumer)
        self._client = client
        self._durable_only = durable_only
        self._isolation = isolation

    def partitions(self, selection: Selection) -> list[TopicPartition]:
        """As in ``Log``. Raises UnknownTopicError with the nearest topic, OptionError for a missing partition."""
        return self._selected(
            selection,
            lambda topic: range(self._described(topic).partitions),
            lambda: {topic.name: range(topic.partitions) for topic in patiently(self._client.topics)},
        )

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
        """As in ``Log``."""
        asked = [OffsetsPartition(topic, partition) for topic, partition in partitions]
        return {_place(result): self._ends(result) for result in self._offsets(asked)}

    def find_times(self, times: Offsets) -> dict[TopicPartition, int | None]:
        """As in ``Log``."""
        asked = [OffsetsPartition(topic, partition, time_ms) for (topic, partition), time_ms in times.items()]
        return {_place(result): result.offset for result in self._offsets(asked)}

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

    def _ends(self, result: OffsetsResult) -> Ends:
        durable = result.durable if self._durable_only else None
        end = readable_end(result.latest or 0, result.last_stable_offset, durable, self._isolation)
        return Ends(result.earliest or 0, end)

    def _described(self, topic: str) -> TopicDescription:
        return patiently(lambda: self._client.describe_topic(topic))

    def _offsets(self, asked: list[OffsetsPartition]) -> list[OffsetsResult]:
        def ask() -> list[OffsetsResult]:
            isolation = None if self._isolation == READ_UNCOMMITTED else self._isolation
            request = OffsetsRequest(asked, isolation=isolation)
            reply, _ = self._client.call(request, OffsetsReply, is_repeatable=True)
            check(reply.partitions)
            return reply.partitions

        return patiently(ask)


def _place(result: OffsetsResult) -> TopicPartition:
    return TopicPartition(result.topic, result.partition or 0)


class LocalCatalog(_Topics):
    """Look-ups in the log directory at ``path``.

    With ``durable_only`` logs end at their recovery points on disk, at "read_committed" at their last stable offsets.
    Raises LogDirectoryError when the directory does not exist.
    """

    def __init__(self, path: Path, *, durable_only: bool = False, isolation: Isolation = READ_UNCOMMITTED) -> None:
        self._directory = LogDirectory(path)
        super().__init__(self._directory.consumer)
        self._durable_only = durable_only
        self._isolation = isolation
        self._files: dict[TopicPartition, PartitionFiles] = {}  # which remember how far a log was looked at

    def partitions(self, selection: Selection) -> list[TopicPartition]:
        """As in ``Log``; only partitions in this directory, which in a cluster may be some of a topic's."""
        return self._selected(selection, self._directory.partitions, self._directory.topics)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
        """As in ``Log``."""
        found: dict[TopicPartition, Ends] = {}
        for partition in partitions:
            files = self._of(partition)
            ends = files.ends()
            stable = files.stable_end(ends) if self._isolation == READ_COMMITTED else None
            durable = ends.durable if self._durable_only else None
            found[partition] = Ends(ends.earliest, readable_end(ends.latest, stable, durable, self._isolation))
        return found

    def find_times(self, times: Offsets) -> dict[TopicPartition, int | None]:
        """As in ``Log``."""
        found = {partition: self._of(partition).find_time(time_ms) for partition, time_ms in times.items()}
        if self._isolation == READ_UNCOMMITTED:
            return found
        ends = self.ends(found)
        return {
            partition: None if offset is None or offset >= ends[partition].latest else offset
            for partition, offset in found.items()
        }

    def extents(self, ends: Mapping[TopicPartition, Ends]) -> dict[TopicPartition, Sequence[Extent]]:
        """Segment by segment, which takes no more than a look at their names and sizes."""
        return {partition: self.segments(partition, found) for partition, found in ends.items()}

    def segments(self, partition: TopicPartition, ends: Ends) -> Sequence[Extent]:
        """As in ``Log``."""
        return [
            Extent(start, end, size)
            for start, end, size in self._of(partition).extents()
            if max(start, ends.earliest) < end
        ]

    def _of(self, partition: TopicPartition) -> PartitionFiles:
        if partition not in self._files:
            self._files[partition] = self._directory.partition(*partition)
        return self._files[partition]
