"""Producer expiry: forget idempotent producers that were quiet for ``producer.id.expiration.ms``."""

from typing import TYPE_CHECKING, Final

import structlog
import trio

from seglog_broker.partitions.retention_schedule import CLOCK_LEAP_MS_MAX, ClockWatch
from seglog_broker.partitions.task_boundary import TaskBoundary

if TYPE_CHECKING:
    from seglog_broker.api.broker import Broker
    from seglog_broker.partitions.partition import Partition

log = structlog.get_logger()

_PARTITIONS_AT_A_TIME: Final = 20
"""Looked at before others get their turn; each has up to 10,000 producers."""


async def run_producer_expiry(broker: "Broker") -> None:
    """Look every ``producer.id.expiration.check.interval.ms``; not at a look that follows a leap of the clock."""
    boundary = TaskBoundary("producers")
    watch = ClockWatch(broker.clock)

    async def expire(partition: "Partition") -> None:
        expired = partition.log.producers.expire(broker.clock.now_ms())
        if expired:
            log.info("producers_expired", topic=partition.topic, partition=partition.number, producers=expired)

    while True:
        await broker.live_config.sleep(lambda: broker.config.producer_id_expiration_check_interval_ms / 1000)
        if watch.leap_ms() > CLOCK_LEAP_MS_MAX:
            continue
        for number, partition in enumerate(list(broker.partitions.values())):
            await boundary.run(partition, expire)
            if number % _PARTITIONS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
