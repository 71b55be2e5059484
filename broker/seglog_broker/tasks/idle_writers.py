"""Idle writers: if the pool of handles exceeds its limit, writers without recent appends are synced and closed.

A writer keeps its file open until all that it wrote is on the disk, so that a failed write-back is not missed. After
appends with ack ``os`` that may take the system long. This task syncs the files with the oldest last append.
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


async def run_idle_writers(broker: Services) -> None:
    """Check the pool of handles every LOOK_SECONDS."""
    boundary = TaskBoundary("idle writers")
    handles = broker.directory.handles
    while True:
        await trio.sleep(LOOK_SECONDS)
        if not handles.excess:
            continue
        writing = [partition for partition in broker.partitions.values() if partition.log.active.log.holds_writer]
        for partition in sorted(writing, key=lambda partition: partition.log.state.last_append_ms or 0):
            if not handles.excess:
                break
            await boundary.run(partition, release_idle_writer)


async def release_idle_writer(partition: Partition) -> None:
    """Sync all records of the partition, and close the file of its writer."""
    await trio.lowlevel.checkpoint()
    await partition.wait_durable(partition.log.log_end_offset)
    partition.log.active.log.release_idle_writer()
