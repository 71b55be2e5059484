"""The families that have samples of groups, ours and those of kafka_exporter."""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from seglog_broker.api.lag import LAG_PARTITIONS_MAX
from seglog_broker.api.monitoring.samples import Sample
from seglog_broker.api.monitoring.selection import NAME_CHARACTERS_MAX, SAMPLES_MAX, select, within
from seglog_broker.api.monitoring.slicing import Source
from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.messages import LagPartition, LagReply, LagRequest

GROUP_COST: Final = 5.0
OFFSET_COST: Final = 1.5
"""Microseconds to look at a group, and at an offset of it."""


class Place(NamedTuple):
    """A committed offset, in a partition that can be read."""

    group: str
    partition: Partition
    offset: int

    @property
    def lag(self) -> int:
        """Records up to the log end."""
        return max(0, self.partition.log.log_end_offset - self.offset)

    @property
    def labels(self) -> tuple[str, str, str]:
        """As ``key``, of a sample."""
        return self.group, self.partition.topic, str(self.partition.number)

    @property
    def key(self) -> tuple[str, str, int]:
        """Group, topic and partition."""
        return self.group, self.partition.topic, self.partition.number


class Measured(NamedTuple):
    """What was found of the record at an offset, at ``at_ms``; all times are ms of the wall clock."""

    offset: int
    at_ms: int
    timestamp: int | None
    lost_from_ms: int | None
    """When retention may delete it; None: time does not."""


class GroupSources:
    """Reads groups and their offsets; ``measure`` finds what takes longer than a scrape may."""

    def __init__(
        self,
        config: LiveConfig,
        groups: GroupService,
        table: PartitionTable,
        clock: Clock,
        scheduler: Scheduler,
        measure_lag: Callable[[LagRequest], Awaitable[LagReply]],
    ) -> None:
        self._config = config
        self._groups = groups
        self._table = table
        self._clock = clock
        self._scheduler = scheduler
        self._measure_lag = measure_lag
        self._largest: list[str] | None = None  # groups by lag, as last measured; None: not yet
        self._count = 0  # groups then
        self._measured: dict[tuple[str, str, int], Measured] = {}

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each of these families."""
        return {
            "seglog_group_members": self._members,
            "seglog_group_state": self._states,
            "seglog_group_rebalances_total": self._rebalances,
            "seglog_group_lag": lambda: self._places(self.shown(), lambda place: place.lag),
            "seglog_group_lag_seconds": lambda: self._places(self.shown(), self._lag_seconds),
            "seglog_group_time_to_loss_seconds": lambda: self._places(self.shown(), self._time_to_loss),
            "seglog_groups_left_out": self._left_out,
            "kafka_consumergroup_current_offset": lambda: self._places(self._exported(), lambda place: place.offset),
            "kafka_consumergroup_lag": lambda: self._places(self._exported(), lambda place: place.lag),
        }

    # --- What is shown ------------------------------------------------------------------------------------------------

    def shown(self) -> Sequence[str]:
        """The groups with samples of our own names."""
        groups, limit = self._groups, self._config.current.seglog_metrics_groups_max
        if groups.count_at_most <= 2 * limit:
            names = groups.names()
            offsets = sum(len(groups.offsets_of(name)) for name in names)
            if len(names) <= limit and offsets <= SAMPLES_MAX:
                return [name for name in names if len(name) <= NAME_CHARACTERS_MAX]
        return [] if self._largest is None else [name for name in self._largest if groups.has(name)][:limit]

    def _exported(self) -> Iterable[str]:
        groups = self._groups
        return within((name, len(groups.offsets_of(name))) for name in groups.names_with_offsets())

    def _places(self, names: Iterable[str], value: Callable[[Place], float | None]) -> Iterator[Sample | None]:
        for name in names:
            yield None
            for place in self._places_of(name):
                found = None if place is None else value(place)
                yield None if place is None or found is None else Sample(place.labels, found)

    def _members(self) -> Iterator[Sample]:
        for name in self.shown():
            yield Sample((name,), self._groups.facts(name).members)

    def _states(self) -> Iterator[Sample]:
        for name in self.shown():
            yield Sample((name, self._groups.facts(name).state), 1)

    def _rebalances(self) -> Iterator[Sample]:
        for name in self.shown():
            yield Sample((name,), self._groups.facts(name).rebalances)

    def _lag_seconds(self, place: Place) -> float | None:
        if not place.lag:
            return 0.0
        found = self._measured.get(place.key)
        if found is None or found.timestamp is None:
            return None
        now_ms = self._clock.now_ms() if found.offset == place.offset else found.at_ms
        return max(0, now_ms - found.timestamp) / 1000

    def _time_to_loss(self, place: Place) -> float | None:
        if not place.lag:
            return math.inf
        if place.offset < place.partition.log.log_start_offset:
            return 0.0
        found = self._measured.get(place.key)
        if found is None:
            return None
        if found.lost_from_ms is None:
            return math.inf
        return max(0, found.lost_from_ms - self._clock.now_ms()) / 1000

    def _left_out(self) -> Iterable[Sample]:
        shown = len(self.shown())
        groups, limit = self._groups, self._config.current.seglog_metrics_groups_max
        count = len(groups.names()) if groups.count_at_most <= 2 * limit else self._count
        return (Sample((), max(0, count - shown)),)

    # --- What is measured ---------------------------------------------------------------------------------------------

    async def measure(self) -> None:
        """Find the groups with the largest lag, and of those that are shown what they read next, in turns."""
        turns = budget.Turns(self._scheduler.turn)
        lags: dict[str, int] = {}
        offsets: dict[str, int] = {}
        for name in self._groups.names():
            committed = self._groups.offsets_of(name)
            await turns.spend(GROUP_COST + OFFSET_COST * len(committed))
            lags[name] = sum(place.lag for place in self._places_of(name) if place is not None)
            offsets[name] = len(committed)
        self._largest = select(lags, offsets, self._config.current.seglog_metrics_groups_max)
        self._count = len(lags)
        behind: list[Place] = []
        for name in self.shown():
            await turns.spend(GROUP_COST + OFFSET_COST * len(self._groups.offsets_of(name)))
            behind += [place for place in self._places_of(name) if place is not None and place.lag]
        behind.sort(key=lambda place: place.key[1:])  # those of a partition are measured together
        measured: dict[tuple[str, str, int], Measured] = {}
        for begin in range(0, len(behind), LAG_PARTITIONS_MAX):
            some = behind[begin : begin + LAG_PARTITIONS_MAX]
            asked = [LagPartition(place.partition.topic, place.partition.number, place.offset) for place in some]
            reply = await self._measure_lag(LagRequest(asked))
            for place, found in zip(some, reply.partitions, strict=True):
                if found.error is None:
                    measured[place.key] = Measured(place.offset, reply.now_ms, found.timestamp, found.lost_from_ms)
        self._measured = measured

    def _places_of(self, group: str) -> Iterator[Place | None]:
        """Each committed offset of a group, None where its partition cannot be read; others may run in between."""
        for (topic, number), committed in list(self._groups.offsets_of(group).items()):
            partition = self._table.find_readable(topic, number)
            yield None if partition is None else Place(group, partition, committed.offset)
