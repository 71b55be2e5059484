"""What time does: segments are closed, they expire, files are removed, producers forgotten; flushes and checkpoints.

A reader that has a removed file open can finish, however long that takes: only the name is removed. While the disk is
full, files are removed at once, and slow readers are disconnected (``resources``). Files that still wait when the
broker stops are removed by the next start.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Final

import trio

from seglog_broker.config.values import LONG_MAX
from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter, save_state
from seglog_broker.partitions.durability import FlushSignal, wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.pending_deletions import PendingDeletion, PendingDeletions
from seglog_broker.partitions.scheduler import Common
from seglog_broker.partitions.segment_expiry import RetentionSchedule, SegmentExpiry
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime import budget
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.storage.log.roller import RollReason
from seglog_protocol.errors import StorageError

log = get_logger()

ROLL_CHECK_SECONDS: Final = 1.0
"""Time between two checks of all partitions, which is how late a roll can be. A check takes well under a microsecond a
partition."""

RETRY_SECONDS: Final = 60.0
"""Time until a failed deletion is tried again."""

_PRODUCERS_AT_A_TIME: Final = 20
"""Partitions whose producers are checked before other tasks run; each has up to 10,000 producers."""


async def run_rolls(common: Common) -> None:
    """Close active segments that get no more appends, so that they can expire and be compacted.

    The time since a segment's first append counts, by the wall clock and across restarts. In Kafka the active segment
    of a log without appends can neither expire nor be compacted. The first check is ``log.initial.task.delay.ms`` after
    the start.
    """
    boundary = TaskBoundary("roll")

    async def roll_if_idle(partition: Partition) -> None:
        await trio.lowlevel.checkpoint()
        if not partition.is_deleted and partition.log.roller.roll_if_idle():
            partition.note_rolled(str(RollReason.IDLE))

    await trio.sleep(common.config.current.log_initial_task_delay_ms / 1000)
    while True:
        now = common.clock.now_ms()
        for part in common.table.in_parts():
            for partition in part:
                due = partition.log.roller.idle_roll_ms
                if due is not None and not (partition.log.state.first_append_ms or 0) <= now <= due:
                    await boundary.run(partition, roll_if_idle)
            await trio.lowlevel.checkpoint()
        await trio.sleep(ROLL_CHECK_SECONDS)


async def run_retention(common: Common, expiry: SegmentExpiry, schedule: RetentionSchedule) -> None:
    """Remove expired segments from their logs, every ``log.retention.check.interval.ms``, at fixed times.

    The first check is ``log.initial.task.delay.ms`` after the start.
    """
    boundary = TaskBoundary("retention")
    schedule.begin()
    common.clock_trust.now_ms()  # a jump after this moment is noticed
    while True:
        await common.config.sleep_until(lambda: schedule.next_check)
        with schedule.checking():
            await expiry.check(list(common.table.values()), boundary)


async def run_deletions(
    common: Common, deletions: PendingDeletions, remove_later: Callable[[Iterable[str]], None]
) -> None:
    """Remove files of deleted segments and topics when they are due, after ``file.delete.delay.ms``, one at a time.

    ``remove_later`` queues directories that were left by the last run: they wait once more.
    """
    remove_later(common.directory.report.deleted_directories)

    async def remove(deletion: PendingDeletion) -> None:
        freed = await common.offload.maintenance(common.directory.space.with_ballast, deletion.remove)
        if deletion.is_logged or deletion.failure is not None:
            log.info("files_removed", what=deletion.what, **({} if freed is None else {"bytes": freed}))

    while True:
        deletion = await deletions.next_due()
        try:
            if deletion.partition is None:
                await remove(deletion)
            else:
                async with deletion.partition.maintenance:  # the directory keeps its name meanwhile
                    if not deletion.partition.is_deleted:
                        await remove(deletion)
        except OSError as error:
            if deletion.failure != why(error):
                log.warning("deletion_postponed", what=deletion.what, reason=why(error), retry_seconds=RETRY_SECONDS)
            deletions.add(replace(deletion, failure=why(error)), RETRY_SECONDS, has_failed=True)
        except Exception:
            log.exception("deletion_failed", what=deletion.what, until="the next start")


async def run_producer_expiry(common: Common) -> None:
    """Forget idempotent producers that sent nothing for ``producer.id.expiration.ms``.

    A check every ``producer.id.expiration.check.interval.ms``.
    """
    boundary = TaskBoundary("producers")

    async def expire(partition: Partition) -> None:
        expired = partition.log.producers.expire(common.clock_trust.now_ms())
        if expired:
            log.debug("producers_expired", topic=partition.topic, partition=partition.number, producers=expired)

    common.clock_trust.now_ms()  # a jump after this moment is noticed
    while True:
        await common.config.sleep(lambda: common.config.current.producer_id_expiration_check_interval_ms / 1000)
        for number, partition in enumerate(list(common.table.values())):
            await boundary.run(partition, expire)
            if number % _PRODUCERS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()


LOOK_SECONDS_MAX: Final = 1.0
"""The longest time between two checks, so that a changed ``flush.ms`` takes effect soon."""

LOOK_SECONDS_MIN: Final = 0.01

CHECKPOINT_COST: Final = 10.0
"""To find that nothing of a partition has changed since the last checkpoint."""

SEGMENT_COST: Final = 0.5
"""For each of its segments."""


async def run_background_flushes(partitions: PartitionTable, flush_wanted: FlushSignal) -> None:
    """Sync partitions with unsynced records for ``flush.ms``, or with ``flush.messages`` of them.

    These bound what a power cut can take, and delay no ack; a producer that must know uses ``ack=disk``. ``flush.ms``
    works alone; in Kafka only with ``log.flush.scheduler.interval.ms``, and then only at that interval.
    """
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

    It syncs closed segments, and writes the recovery points below which a start need not read. Each also saves the
    trusted time, so that a start notices a clock that has jumped since.
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
