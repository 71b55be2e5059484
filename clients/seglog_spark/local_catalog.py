"""Look-up of topics, offsets and sizes in a log directory, for planning: ``catalog`` without a broker."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from seglog.core.fetcher import readable_end
from seglog.directory.partition import PartitionFiles
from seglog.directory.topics import LogDirectory
from seglog_protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation
from seglog_spark.catalog import InternalTopics, selected
from seglog_spark.extents import Extent
from seglog_spark.offsets import Offsets, TopicPartition
from seglog_spark.options import Selection
from seglog_spark.planning import Ends


class LocalCatalog:
    """Look-ups in the log directory at ``path``.

    With ``durable_only`` logs end at their recovery points on disk, at "read_committed" at their last stable offsets.
    Raises LogDirectoryError when the directory does not exist.
    """

    def __init__(self, path: Path, *, durable_only: bool = False, isolation: Isolation = READ_UNCOMMITTED) -> None:
        self._directory = LogDirectory(path)
        self._durable_only = durable_only
        self._isolation = isolation
        self._internal = InternalTopics(self._directory.consumer)
        self._files: dict[TopicPartition, PartitionFiles] = {}  # which remember how far a log was looked at

    def partitions(self, selection: Selection) -> list[TopicPartition]:
        """As in ``Log``; only partitions in this directory, which in a cluster may be some of a topic's."""
        return selected(selection, self._directory.partitions, self._directory.topics, self.is_internal)

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

    def is_internal(self, topic: str) -> bool:
        """As in ``Log``."""
        return self._internal.has(topic)

    def _of(self, partition: TopicPartition) -> PartitionFiles:
        if partition not in self._files:
            self._files[partition] = self._directory.partition(*partition)
        return self._files[partition]
