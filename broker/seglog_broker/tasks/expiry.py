"""What age does: idle segments are closed, expired ones leave their logs, files are removed, producers forgotten.

A reader that has a removed file open can finish, however long that takes: only the name is removed. While the disk is
full, files are removed at once, and slow readers are disconnected (``resources``). Files that still wait when the
broker stops are removed by the next start.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import PendingDeletion, PendingDeletions
from seglog_broker.partitions.scheduler import Common
from seglog_broker.partitions.segment_expiry import RetentionSchedule, SegmentExpiry
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.roll_policy import RollReason

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
