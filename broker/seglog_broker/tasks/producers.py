"""Producer expiry: forget idempotent producers that sent nothing for ``producer.id.expiration.ms``."""

from typing import Final, Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.live_config import LiveConfig

log = structlog.get_logger()

_PARTITIONS_AT_A_TIME: Final = 20
"""Partitions handled before other tasks run; each has up to 10,000 producers."""


class Services(Protocol):
    """What this task uses of the broker."""

    clock_trust: ClockTrust
    live_config: LiveConfig
    partitions: PartitionTable

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_producer_expiry(broker: Services) -> None:
    """Check every ``producer.id.expiration.check.interval.ms``."""
    boundary = TaskBoundary("producers")

    async def expire(partition: Partition) -> None:
        expired = partition.log.producers.expire(broker.clock_trust.now_ms())
        if expired:
            log.info("producers_expired", topic=partition.topic, partition=partition.number, producers=expired)

    broker.clock_trust.now_ms()  # a jump after this moment is noticed
    while True:
        await broker.live_config.sleep(lambda: broker.config.producer_id_expiration_check_interval_ms / 1000)
        for number, partition in enumerate(list(broker.partitions.values())):
            await boundary.run(partition, expire)
            if number % _PARTITIONS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
