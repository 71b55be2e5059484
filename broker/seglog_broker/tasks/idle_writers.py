"""Resting: where more partitions are written to than files may be open, the quiet ones give their descriptors back.

A writer keeps its file open until all it wrote is on the disk, so that a failed write-back is not missed. Appends with
ack ``os`` may leave that to the system for long; here it is done for those that wait longest, when the pool of handles
is over its limit.
"""

from typing import Final, Protocol

import trio

from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.directory.log_directory import LogDirectory

LOOK_SECONDS: Final = 0.5


class Services(Protocol):
    """What this task uses of the broker."""

    directory: LogDirectory
    partitions: PartitionTable


async def run_resting(broker: Services) -> None:
    """Look at the pool of handles twice a second, without end."""
    boundary = TaskBoundary("resting")
    handles = broker.directory.handles
    while True:
        await trio.sleep(LOOK_SECONDS)
        if not handles.excess:
            continue
        awake = [partition for partition in broker.partitions.values() if partition.log.active.log.holds_writer]
        for partition in sorted(awake, key=lambda partition: partition.log.state.last_append_ms or 0):
            if not handles.excess:
                break
            await boundary.run(partition, rest)


async def rest(partition: Partition) -> None:
    """Bring what was appended to the disk, and give the writer's descriptor back."""
    await trio.lowlevel.checkpoint()
    await partition.wait_durable(partition.log.log_end_offset)
    partition.log.active.log.release_idle_writer()
