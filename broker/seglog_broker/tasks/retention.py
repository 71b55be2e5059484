"""Retention: every ``log.retention.check.interval.ms`` segments that have expired leave their logs."""

from typing import TYPE_CHECKING

import structlog

from seglog_broker.partitions.retention_schedule import CLOCK_LEAP_MS_MAX, ClockWatch
from seglog_broker.partitions.task_boundary import TaskBoundary

if TYPE_CHECKING:
    from seglog_broker.api.broker import Broker

log = structlog.get_logger()


async def run_retention(broker: "Broker") -> None:
    """Check at a fixed rhythm, first ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("retention")
    watch = ClockWatch(broker.clock)
    schedule = broker.retention_schedule
    schedule.begin(watch)
    while True:
        await broker.live_config.sleep_until(lambda: schedule.next_check)
        leap = watch.leap_ms()
        if leap > CLOCK_LEAP_MS_MAX:
            log.warning("clock_leapt", milliseconds=leap, consequence="nothing expires by age at this check")
        with schedule.checking():
            await broker.expiry.check(list(broker.partitions.values()), boundary, by_age=leap <= CLOCK_LEAP_MS_MAX)
