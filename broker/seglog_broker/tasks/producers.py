"""Producer expiry: forget idempotent producers that sent nothing for ``producer.id.expiration.ms``."""

from typing import Final, Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.retention_schedule import CLOCK_JUMP_MS_MAX, ClockWatch
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.clock import Clock

log = structlog.get_logger()

_PARTITIONS_AT_A_TIME: Final = 20
"""Partitions handled before other tasks run; each has up to 10,000 producers."""


class Services(Protocol):
    """What this task uses of the broker."""

    clock: Clock
    live_config: LiveConfig
    partitions: PartitionTable

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_producer_expiry(broker: Services) -> None:
    """Check every ``producer.id.expiration.check.interval.ms``; a check right after a jump of the clock is skipped."""
    boundary = TaskBoundary("producers")
    watch = ClockWatch(broker.clock)

    async def expire(partition: Partition) -> None:
        expired = partition.log.producers.expire(broker.clock.now_ms())
        if expired:
            log.info("producers_expired", topic=partition.topic, partition=partition.number, producers=expired)

    while True:
        await broker.live_config.sleep(lambda: broker.config.producer_id_expiration_check_interval_ms / 1000)
        if watch.jump_ms() > CLOCK_JUMP_MS_MAX:
            continue
        for number, partition in enumerate(list(broker.partitions.values())):
            await boundary.run(partition, expire)
            if number % _PARTITIONS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
