"""Idle writers: where open files are short, those of writers with the oldest last append are synced and closed.

A writer keeps its file open until all that it wrote is on the disk, so that a failed write-back is not missed. After
appends with ack ``os`` that may take the system long.
"""

from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

import trio

from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime import budget
from seglog_broker.storage.io.handle_pool import HandlePool

ROOM_SECONDS_MAX: Final = 10.0
"""How long an append waits for a file to be closed. Clients wait longer for their ack."""

LOOKED_AT_A_TURN: Final = budget.items_of(cost=0.4)
"""Partitions that are looked at before other tasks run."""


@dataclass(eq=False, repr=False)
class IdleWriters:
    """Closes the files of writers, for appends that need files and for the task that keeps the limit."""

    _table: PartitionTable
    _handles: HandlePool

    def __post_init__(self) -> None:
        self._boundary = TaskBoundary("idle writers")
        self._lock = trio.Lock()  # one round serves all who wait

    async def wait_for_room(self) -> bool:
        """Return when an append may open another file, or after ROOM_SECONDS_MAX; whether it may."""
        with trio.move_on_after(ROOM_SECONDS_MAX):
            while self._handles.is_scarce:
                await self._release(while_scarce=True)
        return not self._handles.is_scarce

    async def keep_limit(self) -> None:
        """Close as many writers as there are handles beyond the limit."""
        if self._handles.excess:
            await self._release(while_scarce=False)

    async def _release(self, *, while_scarce: bool) -> None:
        async with self._lock:
            if while_scarce and not self._handles.is_scarce:
                return  # another one has made room
            writing: list[Partition] = []
            for number, partition in enumerate(list(self._table.values()), start=1):
                if partition.log.active.log.holds_writer and partition.log.state.read_only is None:
                    writing.append(partition)
                if number % LOOKED_AT_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
            excess = self._handles.excess
            oldest = nsmallest(excess, writing, key=lambda partition: partition.log.state.last_append_ms or 0)
            for partition in oldest:
                partition.want_durable()  # all before the first wait, so that they share a round
            for partition in oldest:
                await self._boundary.run(partition, _sync_and_close)
            if self._handles.excess == excess:
                await trio.sleep(ROOM_SECONDS_MAX / 100)  # readers have the files, or syncs fail


async def _sync_and_close(partition: Partition) -> None:
    """Sync all records of the partition, and close the file of its writer."""
    await wait_durable(partition, partition.log.log_end_offset)
    partition.log.active.log.release_idle_writer()
