"""Retention: removes expired segments from their logs, every ``log.retention.check.interval.ms``."""

from typing import Protocol

import structlog

from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.retention_schedule import CLOCK_JUMP_MS_MAX, ClockWatch, RetentionSchedule
from seglog_broker.partitions.segment_expiry import SegmentExpiry
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.clock import Clock

log = structlog.get_logger()


class Services(Protocol):
    """What this task uses of the broker."""

    clock: Clock
    expiry: SegmentExpiry
    live_config: LiveConfig
    partitions: PartitionTable
    retention_schedule: RetentionSchedule


async def run_retention(broker: Services) -> None:
    """Check at fixed times; the first check is ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("retention")
    watch = ClockWatch(broker.clock)
    schedule = broker.retention_schedule
    schedule.begin(watch)
    while True:
        await broker.live_config.sleep_until(lambda: schedule.next_check)
        jump = watch.jump_ms()
        if jump > CLOCK_JUMP_MS_MAX:
            log.warning("clock_jumped", milliseconds=jump, consequence="nothing expires by age at this check")
        with schedule.checking():
            await broker.expiry.check(list(broker.partitions.values()), boundary, by_age=jump <= CLOCK_JUMP_MS_MAX)
