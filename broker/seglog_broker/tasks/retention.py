"""Retention: removes expired segments from their logs, every ``log.retention.check.interval.ms``."""

from typing import Protocol

from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.retention_schedule import RetentionSchedule
from seglog_broker.partitions.segment_expiry import SegmentExpiry
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.live_config import LiveConfig


class Services(Protocol):
    """What this task uses of the broker."""

    clock_trust: ClockTrust
    expiry: SegmentExpiry
    live_config: LiveConfig
    partitions: PartitionTable
    retention_schedule: RetentionSchedule


async def run_retention(broker: Services) -> None:
    """Check at fixed times; the first check is ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("retention")
    schedule = broker.retention_schedule
    schedule.begin()
    broker.clock_trust.now_ms()  # a jump after this moment is noticed
    while True:
        await broker.live_config.sleep_until(lambda: schedule.next_check)
        with schedule.checking():
            await broker.expiry.check(list(broker.partitions.values()), boundary)
