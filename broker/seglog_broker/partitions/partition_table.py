"""The partitions in service, found by topic and number."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.partitions.awaited_segments import AwaitedSegments
from seglog_broker.partitions.group_commit import GroupCommit
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.recoveries import Recoveries, Views
from seglog_broker.partitions.topic_names import Suggestions
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import ReadOnlyView
from seglog_protocol import errors

PART_MAX: Final = 200
"""Partitions that are looked at in a row, at a microsecond or less for each."""


@dataclass(eq=False, repr=False)
class PartitionTable:
    """The partitions in service by topic and number, and typed errors for those that are not in service.

    It iterates over, and counts, those that take records; ``readable`` also finds those that can only be read.
    """

    _directory: LogDirectory
    _recoveries: Recoveries
    _views: Views
    _metrics: Metrics
    commits: GroupCommit

    def __post_init__(self) -> None:
        self._served: dict[tuple[str, int], Partition] = {}
        self._parts: list[list[Partition]] | None = None  # of these; None: to be made
        self._changes = 0
        self.suggestions = Suggestions()
        self._tell_of_served: Callable[[Partition], None] = lambda _partition: None
        self.awaited = AwaitedSegments()

    def __getitem__(self, key: tuple[str, int]) -> Partition:
        return self._served[key]

    def __contains__(self, key: object) -> bool:
        return key in self._served

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    @property
    def changes(self) -> int:
        """Grows whenever a partition, or a view of one, begins or ends to be in service."""
        return self._changes + self._views.changes

    def values(self) -> Collection[Partition]:
        """Those that take records; a view."""
        return self._served.values()

    def in_parts(self) -> Sequence[Sequence[Partition]]:
        """Those that take records now, PART_MAX at a time, so that others may run in between.

        The list does not change while somebody iterates over it: after a change another one is made. It is kept between
        calls, because the garbage collector takes 8 ms for each new list of ten thousand partitions.
        """
        if self._parts is None:
            served = list(self._served.values())
            self._parts = [served[begin : begin + PART_MAX] for begin in range(0, len(served), PART_MAX)]
        return self._parts

    def partition_of(self, key: tuple[str, int], partition_log: PartitionLog) -> Partition:
        """A partition for ``serve``."""
        return Partition(*key, partition_log, self._metrics, self.commits)

    def tell_of_served(self, tell: Callable[[Partition], None]) -> None:
        """Call ``tell`` with each partition that comes into service from now on, before it takes its first batch."""
        self._tell_of_served = tell

    def serve(self, partitions: Iterable[Partition]) -> None:
        """Take partitions into service."""
        self._changes += 1
        self._parts = None
        for partition in partitions:
            self._served[partition.topic, partition.number] = partition
            partition.note_changed(is_replaced=True)
            self._tell_of_served(partition)
            self.awaited.note_served(partition)

    def serve_view(self, key: tuple[str, int], view: ReadOnlyView) -> None:
        """Serve a partition read-only while its recovery waits for room."""
        self._views.serve(self.partition_of(key, view.log), view)

    def remove(self, key: tuple[str, int]) -> None:
        """Take a partition that is being deleted out of service."""
        self._changes += 1
        self._parts = None
        del self._served[key]

    def find(self, topic: str, number: int) -> Partition | None:
        """A partition that takes records, or None."""
        return self._served.get((topic, number))

    def find_readable(self, topic: str, number: int) -> Partition | None:
        """A partition that can be read, or None."""
        return self._served.get((topic, number)) or self._views.get((topic, number))

    def readable(self, topic: str, number: int) -> Partition:
        """As ``partition``, but also for partitions that can only be read."""
        return self.find_readable(topic, number) or self.partition(topic, number)

    def partition(self, topic: str, number: int) -> Partition:
        """A partition in service. Raises a typed error if it is not in service."""
        partition = self._served.get((topic, number))
        if partition is not None:
            return partition
        self.topic_with(topic, number)
        refusal = self._recoveries.refusal(topic, number)
        if refusal is not None:
            raise refusal
        reason = self._directory.report.offline.get((topic, number), "it could not be opened")
        raise errors.PartitionOfflineError(
            f"partition {number} of topic {topic} is offline: {reason}", topic=topic, partition=number, reason=reason
        )

    def topic_with(self, name: str, number: int) -> Topic:
        """The topic of that name, which has a partition with this number, in service or not.

        Raises UnknownTopicError, UnknownPartitionError.
        """
        topic = self.topic(name)
        if not 0 <= number < topic.partitions:  # Kafka's wire can have negative ones
            raise errors.UnknownPartitionError(
                f"topic {name} has {topic.partitions} partition{'s' * (topic.partitions != 1)}, numbered from 0: "
                f"there is no {number}",
                topic=name,
                partition=number,
                partitions=topic.partitions,
            )
        return topic

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises UnknownTopicError."""
        topic = self.find_topic(name)
        if topic is None:
            raise self.unknown_topic(name)
        return topic

    def find_topic(self, name: str) -> Topic | None:
        """The topic of that name, or None."""
        return self._directory.registry.topics.get(name)

    def unknown_topic(self, name: str) -> errors.UnknownTopicError:
        """The error for a topic that does not exist, with the nearest name that does."""
        nearest = self.suggestions.nearest(name, self._directory.registry.topics)
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        hint = f"; did you mean {nearest}?" if nearest else f"; create it with: seglog topic create {shown}"
        return errors.UnknownTopicError(f"there is no topic {shown}{hint}", topic=shown, nearest=nearest)

    def partitions_of(self, topic: Topic) -> list[Partition]:
        """All partitions in service, read-only ones included."""
        found = (self.find_readable(topic.name, number) for number in range(topic.partitions))
        return [partition for partition in found if partition is not None]

    def config_of(self, topic: Topic) -> TopicConfig:
        """The configuration in force for a topic."""
        for number in range(topic.partitions):
            partition = self._served.get((topic.name, number))
            if partition is not None:
                return partition.log.config
        return self._directory.partitions.config_of(topic)

    def is_recreated(self, topic_ids: Mapping[str, str], name: str) -> bool:
        """Whether a request has the id of a deleted topic, and this name now belongs to another topic."""
        topic = self.find_topic(name)
        return topic is not None and topic_ids.get(name, topic.id) != topic.id

    def counts_differing(self, partition_counts: Mapping[str, int] | None) -> dict[str, int] | None:
        """Topic -> number of partitions, where a request has another number; None if there are none.

        Topics that do not exist are left out.
        """
        if partition_counts is None:
            return None
        known = self._directory.registry.topics
        counts = {
            name: known[name].partitions
            for name, count in partition_counts.items()
            if name in known and known[name].partitions != count
        }
        return counts or None

    def wake_waiters(self, topic: Topic) -> None:
        """Wake fetches that wait for records of a topic, so that their clients learn of new partitions."""
        for number in range(topic.partitions):
            partition = self._served.get((topic.name, number))
            if partition is not None:
                partition.wake_all()

    def another_topic(self, topic: str, partition: int, what_now: str) -> errors.InconsistentTopicIdError:
        """The error for a request with the id of a deleted topic whose name now belongs to another one."""
        return errors.InconsistentTopicIdError(
            f"topic {topic} was deleted and made again, and {what_now}",
            topic=topic,
            partition=partition,
            topic_id=self.topic(topic).id,
        )


def states_of(partitions: Sequence[Partition]) -> list[int]:
    """Five numbers of each: log start, log end, bytes of the active segment, removals of segments, segments.

    Here, because this module is compiled, and there may be ten thousand in one turn of the loop; in one list of
    numbers, because as many small objects would have the garbage collector run.
    """
    states: list[int] = []
    for partition in partitions:
        log = partition.log
        offsets, segments = log.offsets, log.segments
        states.append(offsets.start)
        states.append(offsets.end)
        states.append(segments.active.log.size)
        states.append(segments.removals)
        states.append(len(segments.bases))
    return states
