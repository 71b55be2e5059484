"""The families that have samples of groups."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.api.monitoring.lags import Lags, MeasureLag, Place
from seglog_broker.api.monitoring.samples import NAME_CHARACTERS_MAX, SAMPLES_MAX, KeptRows, Sample, Source, select
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, Key
from seglog_broker.coordinators.groups.service.service import GroupFacts, GroupService
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.storage.log.log_files import LogOffsets

GROUP_COST: Final = 5.0
OFFSET_COST: Final = 1.5
"""Microseconds to look at a group, and at an offset of it."""


class Committing(NamedTuple):
    """Where the committed offset of a group in a partition is read, whenever that is."""

    group: str
    partition: Partition
    key: Key
    offsets: Mapping[Key, CommittedOffset]
    """Of the group."""

    @property
    def place(self) -> Place | None:
        """With the offset that is committed now; None if there is none any more."""
        committed = self.offsets.get(self.key)
        return None if committed is None else Place(self.group, self.partition, committed.offset)


class _Some(NamedTuple):
    """Some of them, and what most values are read from."""

    committing: Sequence[Committing]
    committed: Sequence[tuple[Mapping[Key, CommittedOffset], Key]]
    ends: Sequence[LogOffsets]

    @classmethod
    def of(cls, some: Sequence[Committing]) -> "_Some":
        committed = [(one.offsets, one.key) for one in some]
        return cls(some, committed, [one.partition.log.offsets for one in some])


@dataclass(eq=False, repr=False)
class GroupSources(Service):
    """Reads groups and their offsets; ``measure`` finds what takes longer than a scrape may."""

    _groups: GroupService
    _measure_lag: MeasureLag

    def __post_init__(self) -> None:
        config, groups = self._config, self._groups
        self._largest: list[str] | None = None  # groups by lag, as last measured; None: not yet
        self._count = 0  # groups then
        self._lags = Lags(self._clock, self._measure_lag)
        self._shown_rows = KeptRows(
            lambda: self._rows_of(self.shown()),
            _Some.of,
            lambda: (
                self._table.changes,
                groups.offsets.changes,
                groups.count_at_most,
                config.current.seglog_metrics_groups_max,
                self._largest,
            ),
        )

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each of these families."""
        shown = self._shown_rows.source
        return {
            "seglog_group_members": lambda: (Sample((name,), facts.members) for name, facts in self._facts()),
            "seglog_group_state": lambda: (Sample((name, facts.state), 1) for name, facts in self._facts()),
            "seglog_group_rebalances_total": lambda: (
                Sample((name,), facts.rebalances) for name, facts in self._facts()
            ),
            "seglog_group_committed_offset": shown(_offsets),
            "seglog_group_lag": shown(_lags),
            "seglog_group_lag_seconds": shown(lambda some: _by_lag(some, 0.0, self._lags.seconds)),
            "seglog_group_time_to_loss_seconds": shown(lambda some: _by_lag(some, math.inf, self._lags.time_to_loss)),
            "seglog_groups_left_out": self._left_out,
        }

    # --- What is shown ------------------------------------------------------------------------------------------------

    def shown(self) -> Sequence[str]:
        """The groups with samples."""
        groups, limit = self._groups, self._config.current.seglog_metrics_groups_max
        if groups.count_at_most <= 2 * limit:
            names = groups.names()
            offsets = sum(len(groups.offsets.of(name)) for name in names)
            if len(names) <= limit and offsets <= SAMPLES_MAX:
                return [name for name in names if len(name) <= NAME_CHARACTERS_MAX]
        return [] if self._largest is None else [name for name in self._largest if groups.has(name)][:limit]

    def _rows_of(self, names: Iterable[str]) -> Iterator[tuple[tuple[str, str, str], Committing] | None]:
        for name in names:
            yield None
            for found in self._committing(name):
                yield None if found is None else ((name, found.key[0], str(found.key[1])), found)

    def _facts(self) -> Iterator[tuple[str, GroupFacts]]:
        return ((name, self._groups.facts(name)) for name in self.shown())

    def _left_out(self) -> Iterable[Sample]:
        shown = len(self.shown())
        groups, limit = self._groups, self._config.current.seglog_metrics_groups_max
        count = len(groups.names()) if groups.count_at_most <= 2 * limit else self._count
        return (Sample((), max(0, count - shown)),)

    # --- What is measured ---------------------------------------------------------------------------------------------

    async def measure(self) -> None:
        """Find the groups with the largest lag, and of those that are shown what they read next, in turns."""
        turns = budget.Turns(self._scheduler.quiet_turn)
        lags: dict[str, int] = {}
        offsets: dict[str, int] = {}
        for name in self._groups.names():
            committed = self._groups.offsets.of(name)
            await turns.spend(GROUP_COST + OFFSET_COST * len(committed))
            lags[name] = sum(place.lag for place in self._places_of(name))
            offsets[name] = len(committed)
        self._largest = select(lags, offsets, self._config.current.seglog_metrics_groups_max)
        self._count = len(lags)
        places: list[Place] = []
        for name in self.shown():
            await turns.spend(GROUP_COST + OFFSET_COST * len(self._groups.offsets.of(name)))
            places += self._places_of(name)
        await self._lags.measure(places)

    def _committing(self, group: str) -> Iterator[Committing | None]:
        """Each partition with a committed offset of a group, None where it cannot be read; others may run meanwhile."""
        offsets = self._groups.offsets.of(group)
        for key in list(offsets):
            partition = self._table.find_readable(*key)
            yield None if partition is None else Committing(group, partition, key, offsets)

    def _places_of(self, group: str) -> list[Place]:
        """The committed offsets of a group in partitions that can be read."""
        places = [None if committing is None else committing.place for committing in self._committing(group)]
        return [place for place in places if place is not None]


def _offsets(some: _Some) -> Sequence[float | None]:
    found = [offsets.get(key) for offsets, key in some.committed]
    return [None if committed is None else committed.offset for committed in found]


def _lags(some: _Some) -> Sequence[float | None]:
    pairs = zip(some.ends, _offsets(some), strict=True)
    return [None if offset is None else max(0, end.end - offset) for end, offset in pairs]


def _by_lag(some: _Some, without: float, of: Callable[[Place], float | None]) -> Sequence[float | None]:
    """The value for each place: ``without`` where there is no lag, as in most of them, else what ``of`` returns."""
    found: list[float | None] = []
    for lag, committing in zip(_lags(some), some.committing, strict=True):
        place = committing.place if lag else None
        found.append(of(place) if place is not None else None if lag is None else without)
    return found
