"""Timed roll: close segments that are not written to any more, so that retention and compaction can have them.

Wall time since the first append counts, also across restarts. A quiet log is thereby never left with a tail that can
neither expire nor be compacted, which is how Kafka leaves it.
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
"""Between two looks at all partitions: how late a roll can be. A look costs well under a microsecond a partition."""

_PARTITIONS_AT_A_TIME: Final = 500
"""Looked at before others get their turn."""


class Services(Protocol):
    """What this task uses of the broker."""

    clock: Clock
    partitions: PartitionTable

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_rolls(broker: Services) -> None:
    """Look for segments to close, first ``log.initial.task.delay.ms`` after the start."""
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
    """Close the active segment if it is due."""
    await trio.lowlevel.checkpoint()
    if not partition.is_deleted and partition.log.roller.roll_if_idle():
        partition.note_rolled(str(RollReason.IDLE))
