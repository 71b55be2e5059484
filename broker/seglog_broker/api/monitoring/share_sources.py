"""The families that have samples of share groups, and what is wrong with their dead letters, in sentences."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from seglog_broker.api.monitoring.broker_sources import TOLD_MAX, one
from seglog_broker.api.monitoring.lags import Lags, MeasureLag, Place
from seglog_broker.api.monitoring.samples import NAME_CHARACTERS_MAX, SAMPLES_MAX, KeptRows, Source, select
from seglog_broker.api.share_fetch import ShareFetchService
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.share.in_flight import TALLIED
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.runs import ACQUIRED
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.partitions.partition import Partition, Problem
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.texts import counted

PARTITION_COST: Final = 3.0
RUN_COST: Final = 0.3
"""Microseconds to look at a share partition, and at a run of it."""


class Sharing(NamedTuple):
    """The state of a partition in a group, and the partition, which can be read."""

    machine: SharePartition
    partition: Partition

    @property
    def place(self) -> Place:
        """The oldest record that is not done with."""
        start = max(self.machine.start_offset, self.partition.log.log_start_offset)
        return Place(self.machine.partition.group, self.partition, start)

    @property
    def waiting(self) -> int | None:
        """Offsets that are neither done with nor in somebody's hands; None where it is not known where they begin."""
        if self.machine.start_offset < 0:
            return None
        counts = self.machine.counts()
        return max(0, self.place.lag - counts.finished - counts.acquired - counts.archiving)


@dataclass(eq=False, repr=False)
class ShareSources(Service):
    """Reads what share groups have of partitions; ``measure`` finds what takes longer than a scrape may."""

    _shares: ShareService
    _fetches: ShareFetchService
    _measure_lag: MeasureLag

    def __post_init__(self) -> None:
        self._largest: list[str] | None = None  # groups by what waits, as last measured; None: not yet
        self._deliveries: dict[str, int] = {}  # by coordinator key
        self._lags = Lags(self._clock, self._measure_lag)
        self._shown_rows: KeptRows[Sharing, Sequence[Sharing]] = KeptRows(
            lambda: self._rows_of(self.shown()),
            lambda some: some,
            lambda: (self._table.changes, self._shares.changes, self._groups_max, self._largest),
        )

    def sources(self) -> Mapping[str, Source]:
        """Makes the samples of each of these families."""
        shares, letters = self._shares, self._shares.dead_letters
        return {
            "seglog_share_records_waiting": self._each(lambda one: one.waiting),
            "seglog_share_records_in_flight": self._each(lambda one: one.machine.counts().acquired),
            "seglog_share_records_archiving": self._each(lambda one: one.machine.counts().archiving),
            "seglog_share_oldest_seconds": self._of_oldest(0.0, self._lags.seconds),
            "seglog_share_time_to_loss_seconds": self._of_oldest(math.inf, self._lags.time_to_loss),
            "seglog_share_deliveries_max": self._each(lambda one: self._deliveries.get(one.machine.key)),
            **{f"seglog_share_{name}_total": self._each(partial(_counted, name)) for name in TALLIED},
            "seglog_share_groups_left_out": one(lambda: len(shares.groups()) - len(self.shown())),
            "seglog_share_sessions": one(lambda: len(self._fetches.sessions)),
            "seglog_share_fetches_waiting": one(lambda: self._fetches.waiting),
            "seglog_share_state_pruned_total": one(lambda: shares.pruning.pruned),
            "seglog_dead_letters_written_total": one(lambda: letters.written),
            "seglog_dead_letters_given_up_total": one(lambda: letters.given_up),
            "seglog_dead_letters_held_up": one(lambda: sum(held_up.records for held_up in letters.held_up())),
        }

    def _each(self, value: Callable[[Sharing], float | None]) -> Source:
        return self._shown_rows.source(lambda some: [value(one) for one in some])

    def _of_oldest(self, without: float, of: Callable[[Place], float | None]) -> Source:
        """``of`` the oldest record that is not done with, ``without`` where there is none."""
        return self._each(
            lambda one: None if one.machine.start_offset < 0 else of(one.place) if one.place.lag else without
        )

    # --- What is shown ------------------------------------------------------------------------------------------------

    @property
    def _groups_max(self) -> int:
        return self._config.current.seglog_metrics_groups_max

    def shown(self) -> Sequence[str]:
        """The groups with samples."""
        groups, limit = self._shares.groups(), self._groups_max
        if len(groups) <= limit and len(self._shares.runtime.machines) <= SAMPLES_MAX:
            return [name for name in groups if len(name) <= NAME_CHARACTERS_MAX]
        return [] if self._largest is None else [name for name in self._largest if name in groups][:limit]

    def _rows_of(self, names: Iterable[str]) -> Iterator[tuple[tuple[str, str, str], Sharing] | None]:
        for name in names:
            yield None
            for found in self._of_group(name):
                topic, number = found.partition.topic, found.partition.number
                yield (name, topic, str(number)), found

    def _of_group(self, group: str) -> Iterator[Sharing]:
        for topic_id, numbers in self._shares.partitions_of(group).items():
            topic = self._directory.registry.topics.with_id(id_text(topic_id))
            for number in numbers:
                partition = None if topic is None else self._table.find_readable(topic.name, number)
                machine = self._shares.runtime.machines.get(PartitionKey(group, topic_id, number).text)
                if partition is not None and machine is not None:
                    yield Sharing(machine, partition)

    # --- What is measured ---------------------------------------------------------------------------------------------

    async def measure(self) -> None:
        """Find the groups for which most waits, and of those that are shown the oldest records, in turns."""
        turns = budget.Turns(self._scheduler.quiet_turn)
        waiting: dict[str, int] = {}
        partitions: dict[str, int] = {}
        for name in list(self._shares.groups()):
            sharing = list(self._of_group(name))
            await turns.spend(PARTITION_COST * (1 + len(sharing)))
            waiting[name] = sum(one.waiting or 0 for one in sharing)
            partitions[name] = len(sharing)
        self._largest = select(waiting, partitions, self._groups_max)
        deliveries: dict[str, int] = {}
        places: list[Place] = []
        for name in self.shown():
            for found in self._of_group(name):
                runs = list(found.machine.runs())
                await turns.spend(PARTITION_COST + RUN_COST * len(runs))
                places += [found.place] if found.machine.start_offset >= 0 else []
                deliveries[found.machine.key] = max(
                    (run.delivery_count for run in runs if run.state <= ACQUIRED), default=0
                )
        self._deliveries = deliveries
        await self._lags.measure(places)

    # --- What is wrong ------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[Problem]:
        """A problem for each share partition whose dead letters cannot be written."""
        for key, first, records, seconds, reason in islice(self._shares.dead_letters.held_up(), TOLD_MAX):
            topic = self._directory.registry.topics.with_id(id_text(key.topic_id))
            name = "a topic that is gone" if topic is None else topic.name
            yield Problem(
                "dead-letter",
                f"{counted(records, 'dead letter')} of share group {key.group[:NAME_CHARACTERS_MAX]}, of {name}-"
                f"{key.partition} from offset {first} on, could not be written for {seconds:.0f} s: {reason}",
            )


def _counted(name: str, one: Sharing) -> int:
    counted: int = getattr(one.machine.tally, name)
    return counted
