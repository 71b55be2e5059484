"""Checkpoints: sync closed segments, and write the recovery points below which a start need not read."""

from typing import Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_protocol.errors import StorageError

log = structlog.get_logger()


class Services(Protocol):
    """What this task uses of the broker."""

    checkpoints: CheckpointWriter
    clock_trust: ClockTrust
    directory: LogDirectory
    live_config: LiveConfig
    offload: Offload
    partitions: PartitionTable

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_checkpoints(broker: Services) -> None:
    """A checkpoint every ``log.flush.offset.checkpoint.interval.ms``, from ``log.initial.task.delay.ms`` on."""
    boundary = TaskBoundary("checkpoint")
    lacked_room = False

    async def work(partition: Partition) -> None:
        nonlocal lacked_room
        try:
            await partition.save_state()
            offset = await partition.checkpoint()
        except (OSError, StorageError) as error:
            lacked_room |= is_no_room(error)
            raise
        if offset is not None and not partition.is_deleted:
            broker.directory.partitions.note_recovery_point((partition.topic, partition.number), offset)

    await trio.sleep(broker.config.log_initial_task_delay_ms / 1000)
    while True:
        lacked_room = False
        for partition in list(broker.partitions.values()):
            await boundary.run(partition, work)
        await broker.checkpoints.write()
        await save_clock(broker)
        with broker.checkpoints.end_round(lacked_room=lacked_room):
            await broker.live_config.sleep(lambda: max(1, broker.config.log_flush_offset_checkpoint_interval_ms) / 1000)


async def save_clock(broker: Services) -> None:
    """Keep the time that things may be deleted by, so that a start notices a clock that has jumped since."""
    write = broker.clock_trust.prepare_save()
    if write is None:
        return
    try:
        await broker.offload.maintenance(write)
    except OSError as error:
        log.warning("clock_not_saved", reason=why(error))
