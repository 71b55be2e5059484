"""The families that have samples of share groups, and what is wrong with their dead letters, in sentences."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from seglog_broker.api.monitoring.broker_sources import TOLD_MAX, one
from seglog_broker.api.monitoring.lags import ROW_COST, Groups, Lags, MeasureLag
from seglog_broker.api.monitoring.samples import NAME_CHARACTERS_MAX, Source
from seglog_broker.api.share_fetch import ShareFetchService
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.share.in_flight import TALLIED
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.runs import ACQUIRED, ARCHIVING
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.partitions.partition import Partition, Problem
from seglog_broker.partitions.scheduler import Common
from seglog_broker.runtime import budget
from seglog_broker.texts import counted

RUN_COST: Final = 0.3
"""Microseconds to look at a run of a share partition."""


class Sharing(NamedTuple):
    """The state of a partition in a group, and the partition, which can be read."""

    machine: SharePartition
    partition: Partition

    @property
    def group(self) -> str:
        """Its name."""
        return self.machine.partition.group

    @property
    def offset(self) -> int | None:
        """The oldest record that is not done with; None where it is not chosen yet where to begin."""
        start = self.machine.start_offset
        return None if start < 0 else max(start, self.partition.log.log_start_offset)

    @property
    def waiting(self) -> int | None:
        """Offsets that are neither done with nor in somebody's hands."""
        offset, records = self.offset, self.machine.runs().records
        if offset is None:
            return None
        done = self.machine.finished + records[ACQUIRED] + records[ARCHIVING]
        return max(0, self.partition.log.log_end_offset - offset - done)


class ShareSources:
    """Reads what share groups have of partitions; ``measure`` finds what takes longer than a scrape may."""

    def __init__(
        self, common: Common, shares: ShareService, fetches: ShareFetchService, measure_lag: MeasureLag
    ) -> None:
        self._common = common
        self._shares = shares
        self._fetches = fetches
        self._deliveries: dict[str, int] = {}  # the most of a record that is not done with, by coordinator key
        groups = Groups(
            lambda: len(shares.groups()),
            shares.groups,
            lambda name: name in shares.groups(),
            lambda name: sum(map(len, shares.partitions_of(name).values())),
            self._rows_of,
            lambda: shares.changes,
        )
        self._lags = Lags(*common, groups, measure_lag)

    def sources(self) -> Mapping[str, Source]:
        """Makes the samples of each of these families."""
        lags, letters = self._lags, self._shares.dead_letters
        return {
            "seglog_share_records_waiting": lags.each(lambda row: row.waiting),
            "seglog_share_records_in_flight": lags.each(lambda row: row.machine.runs().records[ACQUIRED]),
            "seglog_share_records_archiving": lags.each(lambda row: row.machine.runs().records[ARCHIVING]),
            "seglog_share_oldest_seconds": lags.of_lag(0.0, lags.seconds),
            "seglog_share_time_to_loss_seconds": lags.of_lag(math.inf, lags.time_to_loss),
            "seglog_share_deliveries_max": lags.each(lambda row: self._deliveries.get(row.machine.key)),
            **{f"seglog_share_{name}_total": lags.each(partial(_counted, name)) for name in TALLIED},
            "seglog_share_groups_left_out": one(lags.left_out),
            "seglog_share_sessions": one(lambda: len(self._fetches.sessions)),
            "seglog_share_fetches_waiting": one(lambda: self._fetches.waiting),
            "seglog_share_state_pruned_total": one(lambda: self._shares.pruning.pruned),
            "seglog_dead_letters_written_total": one(lambda: letters.written),
            "seglog_dead_letters_given_up_total": one(lambda: letters.given_up),
            "seglog_dead_letters_held_up": one(lambda: sum(held_up.records for held_up in letters.held_up())),
        }

    def _rows_of(self, group: str) -> Iterator[Sharing | None]:
        for topic_id, numbers in self._shares.partitions_of(group).items():
            topic = self._common.directory.registry.topics.with_id(id_text(topic_id))
            for number in numbers:
                partition = None if topic is None else self._common.table.find_readable(topic.name, number)
                machine = self._shares.runtime.machines.get(PartitionKey(group, topic_id, number).text)
                yield None if partition is None or machine is None else Sharing(machine, partition)

    async def measure(self) -> None:
        """Find the groups with the largest lag, and of those that are shown the oldest records, in turns."""
        await self._lags.measure()
        turns = budget.Turns(self._common.scheduler.quiet_turn)
        deliveries: dict[str, int] = {}
        for _, found in filter(None, self._lags.rows()):
            runs = list(found.machine.runs())
            await turns.spend(ROW_COST + RUN_COST * len(runs))
            deliveries[found.machine.key] = max((run.count for run in runs if run.state <= ACQUIRED), default=0)
        self._deliveries = deliveries

    # --- What is wrong ------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[Problem]:
        """A problem for each share partition whose dead letters cannot be written."""
        for key, first, records, seconds, reason in islice(self._shares.dead_letters.held_up(), TOLD_MAX):
            topic = self._common.directory.registry.topics.with_id(id_text(key.topic_id))
            name = "a topic that is gone" if topic is None else topic.name
            yield Problem(
                "dead-letter",
                f"{counted(records, 'dead letter')} of share group {key.group[:NAME_CHARACTERS_MAX]}, of {name}-"
                f"{key.partition} from offset {first} on, could not be written for {seconds:.0f} s: {reason}",
            )


def _counted(name: str, one: Sharing) -> int:
    counted: int = getattr(one.machine.tally, name)
    return counted
