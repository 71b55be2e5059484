"""Keeps ``__share_group_state`` short: what no state needs any more is deleted, and old snapshots are written anew.

A snapshot has the whole state of a partition in a group, so what lies before the last ones of all of them is of no use.
As in Kafka, those of partitions that nobody acknowledges in are written again after a while, or the first of them would
keep all that follows.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.loader import StateLoader
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import ShareReplay
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import TruncatePartition, TruncateReply, TruncateRequest

LOOKED_AT_A_TURN: Final = budget.items_of(cost=1)
"""States that are looked at before other tasks run."""

SNAPSHOTS_A_TURN: Final = budget.items_of(cost=100)
"""Snapshots that are written before other tasks run."""

Truncate = Callable[[TruncateRequest], Awaitable[TruncateReply]]

log = get_logger()


class _Snapshot(NamedTuple):
    """The last snapshot of a state: its epoch, an offset at or before it, and the log end when it was seen last."""

    epoch: int
    offset: int
    seen_at: int


@dataclass(eq=False, repr=False)
class Pruning(Service):
    """Deletes what is of no use any more, and writes old snapshots anew."""

    _topic: StateTopic
    _loader: StateLoader[ShareReplay]
    _runtime: CoordinatorRuntime[SharePartition]
    _truncate: Truncate

    def __post_init__(self) -> None:
        self._snapshots: dict[str, _Snapshot] = {}  # by coordinator key
        self._ends: dict[int, int] = {}  # the log ends of the partitions at the last look
        self.pruned = 0
        """Records that were deleted, since the start."""

    async def run(self) -> None:
        """Prune every ``share.coordinator.state.topic.prune.interval.ms``, and write old snapshots, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_snapshots)
            while True:
                await self._config.sleep(
                    lambda: self._config.current.share_coordinator_state_topic_prune_interval_ms / 1000
                )
                await self.prune()

    async def prune(self) -> None:
        """Delete what lies before all snapshots: at this look, or at the next one for those that are new in it.

        Where a snapshot lies is not noted when it is written: it lies behind what was the end of the log when its state
        was looked at and did not have it yet.
        """
        before, ends = self._ends, self._log_ends()
        least = dict(ends)
        snapshots: dict[str, _Snapshot] = {}
        async for key, machine in self._scheduler.spread(list(self._runtime.machines.items()), LOOKED_AT_A_TURN):
            number = self._topic.partition_of(key)
            if number not in ends:
                continue
            last = self._snapshots.get(key) or _Snapshot(-1, before.get(number, 0), before.get(number, 0))
            if last.epoch == machine.snapshot_epoch:
                last = last._replace(seen_at=ends[number])
            elif self._runtime.is_durable(key) and not machine.is_unwritten:
                last = _Snapshot(machine.snapshot_epoch, last.seen_at, ends[number])
            snapshots[key] = last
            least[number] = min(least[number], last.offset)
        self._snapshots, self._ends = snapshots, ends
        wanted = [
            TruncatePartition(self._topic.name, number, offset)
            for number, offset in least.items()
            if (partition := self._table.find(self._topic.name, number)) is not None
            and partition.log.log_start_offset < offset <= partition.log.durable_end_offset
        ]
        if not wanted:
            return
        starts = {number: self._table.partition(self._topic.name, number).log.log_start_offset for number in ends}
        try:
            reply = await self._truncate(TruncateRequest(wanted))
        except SeglogError as error:
            log.warning("share_state_not_pruned", reason=error.message)
            return
        for result in reply.partitions:
            if result.error is not None:
                log.warning("share_state_not_pruned", partition=result.partition, reason=result.error.message)
            elif result.earliest is not None:
                self.pruned += result.earliest - starts[result.partition]

    def _log_ends(self) -> dict[int, int]:
        """The log ends of the partitions whose states are all known."""
        failed = self._loader.failed
        found = ((number, self._table.find(self._topic.name, number)) for number in range(self._topic.partitions))
        return {
            number: partition.log.log_end_offset
            for number, partition in found
            if partition is not None and number not in failed
        }

    async def _run_snapshots(self) -> None:
        while True:
            await self._config.sleep(lambda: self._cold_ms / 1000)
            await self.write_cold()

    @property
    def _cold_ms(self) -> int:
        return self._config.current.share_coordinator_cold_partition_snapshot_interval_ms

    async def write_cold(self) -> None:
        """Write the snapshots anew that are older than the interval, unless all are and were written anew before."""
        machines = self._runtime.machines
        async for machine in self._scheduler.spread(list(machines.values()), LOOKED_AT_A_TURN):
            if not machine.is_cold:
                break
        else:
            return
        async for key, machine in self._scheduler.spread(list(machines.items()), SNAPSHOTS_A_TURN):
            now = self._runtime.now()
            age_ms = abs(now.wall_ms - machine.snapshot_ms)  # the clock may have been set back
            if machines.get(key) is machine and age_ms >= self._cold_ms:
                machine.snapshot(now)
                self._runtime.carry_out(key, is_urgent=False)
