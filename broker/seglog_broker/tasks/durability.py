"""Durability in the background: flushes by time and by count, and checkpoints.

``flush.ms`` and ``flush.messages`` bound what a power cut can take. They delay no ack; a producer that must know uses
``ack=disk``. ``flush.ms`` works alone; in Kafka it has an effect only if ``log.flush.scheduler.interval.ms`` is set
too, and then only at that interval. A checkpoint syncs closed segments, and writes the recovery points below which a
start need not read.
"""

from itertools import chain
from typing import Final

import trio

from seglog_broker.config.values import LONG_MAX
from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter, save_state
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.group_commit import FlushSignal
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import Common
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime import budget
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_protocol.errors import StorageError

log = get_logger()

LOOK_SECONDS_MAX: Final = 1.0
"""The longest time between two checks, so that a changed ``flush.ms`` takes effect soon."""

LOOK_SECONDS_MIN: Final = 0.01

CHECKPOINT_COST: Final = 10.0
"""To find that nothing of a partition has changed since the last checkpoint."""

SEGMENT_COST: Final = 0.5
"""For each of its segments."""


async def run_background_flushes(partitions: PartitionTable, flush_wanted: FlushSignal) -> None:
    """Sync partitions with unsynced records for ``flush.ms``, or with ``flush.messages`` of them."""
    boundary = TaskBoundary("flush")
    since: dict[Partition, float] = {}  # when a partition was first seen with unsynced records

    async def flush(partition: Partition) -> None:
        await wait_durable(partition, partition.log.log_end_offset)

    while True:
        flush_wanted.clear()  # before the check, so that an append during the flush starts another check
        now = trio.current_time()
        shortest = LONG_MAX
        due = []
        for part in partitions.in_parts():
            for partition in part:
                config = partition.log.config
                if config.flush_ms == LONG_MAX and config.flush_messages == LONG_MAX:
                    continue
                shortest = min(shortest, config.flush_ms)
                waiting = partition.log.log_end_offset - partition.log.durable_end_offset
                if not waiting or partition.log.state.read_only is not None:
                    since.pop(partition, None)
                    continue
                waited_ms = (now - since.setdefault(partition, now)) * 1000
                if waiting >= config.flush_messages or waited_ms >= config.flush_ms:
                    due.append(partition)
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            for partition in due:
                since.pop(partition, None)
                nursery.start_soon(boundary.run, partition, flush)
        for partition in [partition for partition in since if partition.is_deleted]:
            del since[partition]
        wait = min(max(shortest / 1000 / 2, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX)
        with trio.move_on_after(wait):
            await flush_wanted.wait()


async def run_checkpoints(common: Common, checkpoints: CheckpointWriter) -> None:
    """A checkpoint every ``log.flush.offset.checkpoint.interval.ms``, from ``log.initial.task.delay.ms`` on.

    Each also saves the trusted time, so that a start notices a clock that has jumped since.
    """
    config, boundary = common.config, TaskBoundary("checkpoint")
    lacked_room = False
    clock_problem = Lasting()

    async def work(partition: Partition) -> None:
        nonlocal lacked_room
        try:
            await save_state(partition, common.offload)
            offset = await checkpoints.sync(partition)
        except (OSError, StorageError) as error:
            lacked_room |= is_no_room(error)
            raise
        if offset is not None and not partition.is_deleted:
            common.directory.partitions.note_recovery_point((partition.topic, partition.number), offset)

    turns = budget.Turns(common.scheduler.quiet_turn)
    await trio.sleep(config.current.log_initial_task_delay_ms / 1000)
    while True:
        lacked_room = False
        for partition in chain.from_iterable(common.table.in_parts()):
            await turns.spend(CHECKPOINT_COST + SEGMENT_COST * len(partition.log.segments))
            await boundary.run(partition, work)
        await checkpoints.write()
        save_clock = common.clock_trust.prepare_save()
        if save_clock is not None:
            try:
                await common.offload.maintenance(save_clock)
            except OSError as error:
                if clock_problem.begins("clock", why(error)):
                    log.warning("clock_not_saved", reason=why(error))
            else:
                if clock_problem.ends("clock"):
                    log.info("clock_saved")
        with checkpoints.end_round(lacked_room=lacked_room):
            await config.sleep(lambda: max(1, config.current.log_flush_offset_checkpoint_interval_ms) / 1000)
