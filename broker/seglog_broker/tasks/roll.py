"""The idle timer: closes active segments that get no more appends, so that they can expire and be compacted.

The time since a segment's first append counts, by the wall clock and across restarts. In Kafka the active segment of a
log without appends can neither expire nor be compacted.
"""

from typing import Final, Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.log.roll_policy import RollReason

log = structlog.get_logger()

ROLL_CHECK_SECONDS: Final = 1.0
"""Time between two checks of all partitions, which is how late a roll can be. A check takes well under a microsecond a
partition."""

_PARTITIONS_AT_A_TIME: Final = 500
"""Partitions checked before other tasks run."""


class Services(Protocol):
    """What this task uses of the broker."""

    clock: Clock
    partitions: PartitionTable

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_rolls(broker: Services) -> None:
    """Close segments that are due; the first check is ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("roll")
    await trio.sleep(broker.config.log_initial_task_delay_ms / 1000)
    while True:
        now = broker.clock.now_ms()
        for number, partition in enumerate(list(broker.partitions.values())):
            due = partition.log.roller.idle_roll_ms
            if due is not None and not (partition.log.state.first_append_ms or 0) <= now <= due:
                await boundary.run(partition, roll_if_idle)
            elif number % _PARTITIONS_AT_A_TIME == 0:
                await trio.lowlevel.checkpoint()
        await trio.sleep(ROLL_CHECK_SECONDS)


async def roll_if_idle(partition: Partition) -> None:
    """Close the partition's active segment if it is due."""
    await trio.lowlevel.checkpoint()
    if not partition.is_deleted and partition.log.roller.roll_if_idle():
        partition.note_rolled(str(RollReason.IDLE))
