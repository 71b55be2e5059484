"""Flush by time and by count: ``flush.ms`` and ``flush.messages`` bound what a power cut can take.

They sync in the background and delay no ack; a producer that must know uses ``ack=disk``. ``flush.ms`` works alone; in
Kafka it has an effect only if ``log.flush.scheduler.interval.ms`` is set too, and then only at that interval.
"""

from typing import Final, Protocol

import trio

from seglog_broker.config.values import LONG_MAX
from seglog_broker.partitions.group_commit import FlushSignal
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary

LOOK_SECONDS_MAX: Final = 1.0
"""The longest time between two checks, so that a changed ``flush.ms`` takes effect soon."""

LOOK_SECONDS_MIN: Final = 0.01


class Services(Protocol):
    """What this task uses of the broker."""

    flush_wanted: FlushSignal
    partitions: PartitionTable


async def run_background_flushes(broker: Services) -> None:
    """Sync partitions with unsynced records for ``flush.ms``, or with ``flush.messages`` of them."""
    boundary = TaskBoundary("flush")
    since: dict[Partition, float] = {}  # when a partition was first seen with unsynced records
    while True:
        broker.flush_wanted.clear()  # before the check, so that an append during the flush starts another check
        now = trio.current_time()
        shortest = LONG_MAX
        due = []
        for partition in broker.partitions.values():
            config = partition.log.config
            if config.flush_ms == LONG_MAX and config.flush_messages == LONG_MAX:
                continue
            shortest = min(shortest, config.flush_ms)
            waiting = partition.log.log_end_offset - partition.log.durable_end_offset
            if not waiting or partition.log.state.read_only is not None:
                since.pop(partition, None)
            elif waiting >= config.flush_messages or (now - since.setdefault(partition, now)) * 1000 >= config.flush_ms:
                due.append(partition)
        async with trio.open_nursery() as nursery:
            for partition in due:
                since.pop(partition, None)
                nursery.start_soon(boundary.run, partition, _flush)
        for partition in [partition for partition in since if partition.is_deleted]:
            del since[partition]
        wait = min(max(shortest / 1000 / 2, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
        with trio.move_on_after(wait):
            await broker.flush_wanted.wait()


async def _flush(partition: Partition) -> None:
    await partition.wait_durable(partition.log.log_end_offset)
