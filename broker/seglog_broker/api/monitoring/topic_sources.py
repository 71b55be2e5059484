"""The families that have samples of topics and their partitions."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from seglog_broker.api.monitoring.samples import SAMPLES_MAX, KeptRows, Sample, Source, select
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_protocol.errors import SeglogError

MEASURED_COST: Final = 20.0
"""Microseconds to look at the size of a partition or its dirty ratio, without its segments."""

SEGMENT_COST: Final = 0.2
"""To add the size of a segment."""


@dataclass(eq=False, repr=False)
class TopicSources(Service):
    """Reads the partitions in service; ``measure`` finds what takes longer than a scrape may."""

    def __post_init__(self) -> None:
        self._largest: list[str] | None = None  # topics by size, as last measured; None: not yet
        self._dirty_ratios: dict[tuple[str, int], float] = {}
        self._shown_rows = KeptRows(
            lambda: self._partitions_of(self.shown()),
            lambda: (self._table.changes, self._config.current.seglog_metrics_topics_max, self._largest),
        )

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each of these families."""
        shown = self._shown_rows.each
        return {
            "seglog_partition_size_bytes": shown(lambda one: one.log.segments.known_size),
            "seglog_partition_segments": shown(lambda one: len(one.log.segments.bases)),
            "seglog_partition_log_start_offset": shown(lambda one: one.log.offsets.start),
            "seglog_partition_log_end_offset": shown(lambda one: one.log.offsets.end),
            "seglog_partition_durable_offset": shown(lambda one: one.log.offsets.durable_end),
            "seglog_partition_dirty_ratio": shown(lambda one: self._dirty_ratios.get((one.topic, one.number))),
            "seglog_topic_expired_on_arrival_total": self._expired_on_arrival,
            "seglog_topics_left_out": lambda: (Sample((), len(self._directory.registry.topics) - len(self.shown())),),
        }

    def shown(self) -> list[str]:
        """The topics with samples."""
        topics, limit = self._directory.registry.topics, self._config.current.seglog_metrics_topics_max
        if len(topics) <= limit and len(self._table) <= SAMPLES_MAX:
            return list(topics)
        if self._largest is None:
            return []
        return [name for name in self._largest if name in topics][:limit]

    def _numbers(self, name: str) -> Iterable[int]:
        """Those of the partitions of a topic; none where it has been deleted."""
        topic = self._directory.registry.topics.get(name)
        return range(0 if topic is None else topic.partitions)

    def _partitions_of(self, names: Iterable[str]) -> Iterator[tuple[tuple[str, str], Partition] | None]:
        for name in names:
            for number in self._numbers(name):
                partition = self._table.find_readable(name, number)
                yield None if partition is None else ((name, str(number)), partition)

    def _expired_on_arrival(self) -> Iterator[Sample | None]:
        for name in self.shown():
            topic = self._directory.registry.topics.get(name)
            partitions = [] if topic is None else self._table.partitions_of(topic)
            yield Sample((name,), sum([partition.expired_on_arrival for partition in partitions]))

    async def measure(self) -> None:
        """Find the sizes of all logs, the largest topics, and the dirty ratios of those that are shown, in turns."""
        turns = budget.Turns(self._scheduler.quiet_turn)
        sizes: dict[str, int] = {}
        for partition in chain.from_iterable(self._table.in_parts()):
            log = partition.log
            await turns.spend(MEASURED_COST + SEGMENT_COST * len(log.segments))
            if log.segments.paths_of_unknown_size(1):
                await self._scheduler.learn_sizes([log])
            sizes[partition.topic] = sizes.get(partition.topic, 0) + (log.segments.known_size or 0)
        topics = self._directory.registry.topics
        await self._scheduler.turn()
        samples = {name: topics[name].partitions for name in sizes if name in topics}
        sizes = {name: size for name, size in sizes.items() if name in samples}
        self._largest = select(sizes, samples, self._config.current.seglog_metrics_topics_max)
        ratios: dict[tuple[str, int], float] = {}
        for name in self.shown():
            for number in self._numbers(name):
                found = self._table.find(name, number)
                await turns.spend(MEASURED_COST)
                if found is None or "compact" not in found.log.config.cleanup_policy or found.is_deleted:
                    continue
                with contextlib.suppress(OSError, SeglogError):  # compaction meets the error too, and reports it
                    cleanable = await self._scheduler.retry_after_cold_read(found.log.cleaning.find_cleanable)
                    ratios[name, number] = cleanable.dirty_ratio
        self._dirty_ratios = ratios
