"""The families that have samples of groups."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from seglog_broker.api.monitoring.broker_sources import one
from seglog_broker.api.monitoring.lags import Groups, Lags, MeasureLag, lag
from seglog_broker.api.monitoring.samples import Sample, Source
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, Key
from seglog_broker.coordinators.groups.service.service import GroupFacts, GroupService
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Common


class Committing(NamedTuple):
    """Where the committed offset of a group in a partition is read, whenever that is."""

    group: str
    partition: Partition
    key: Key
    offsets: Mapping[Key, CommittedOffset]
    """Of the group."""

    @property
    def offset(self) -> int | None:
        """The offset that is committed now; None if there is none any more."""
        committed = self.offsets.get(self.key)
        return None if committed is None else committed.offset


class GroupSources:
    """Reads groups and their offsets; ``measure`` finds what takes longer than a scrape may."""

    def __init__(self, common: Common, groups: GroupService, measure_lag: MeasureLag) -> None:
        self._groups = groups
        self._table = common.table
        looked_at = Groups(
            lambda: groups.count_at_most,
            groups.names,
            groups.has,
            lambda name: len(groups.offsets.of(name)),
            self._rows_of,
            lambda: (groups.offsets.changes, groups.count_at_most),
        )
        self._lags = Lags(*common, looked_at, measure_lag)
        self.measure = self._lags.measure

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each of these families."""
        lags = self._lags
        return {
            "seglog_group_members": lambda: (Sample((name,), facts.members) for name, facts in self._facts()),
            "seglog_group_state": lambda: (Sample((name, facts.state), 1) for name, facts in self._facts()),
            "seglog_group_rebalances_total": lambda: (
                Sample((name,), facts.rebalances) for name, facts in self._facts()
            ),
            "seglog_group_committed_offset": lags.each(lambda row: row.offset),
            "seglog_group_lag": lags.each(lag),
            "seglog_group_lag_seconds": lags.of_lag(0.0, lags.seconds),
            "seglog_group_time_to_loss_seconds": lags.of_lag(math.inf, lags.time_to_loss),
            "seglog_groups_left_out": one(lags.left_out),
        }

    def _facts(self) -> Iterator[tuple[str, GroupFacts]]:
        return ((name, self._groups.facts(name)) for name in self._lags.shown())

    def _rows_of(self, group: str) -> Iterator[Committing | None]:
        offsets = self._groups.offsets.of(group)
        for key in list(offsets):
            partition = self._table.find_readable(*key)
            yield None if partition is None else Committing(group, partition, key, offsets)
