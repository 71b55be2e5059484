"""Checkpoints: bring closed segments to the disk and note how far a start need not read.

Where the checkpoint files themselves cannot be written, their old content only costs a longer start.
"""

from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from seglog_broker.storage.filesystem import write_file_atomically
from seglog_broker.tasks.boundary import TaskBoundary

if TYPE_CHECKING:
    from seglog_broker.broker import Broker
    from seglog_broker.partition import Partition

log = structlog.get_logger()


async def run_checkpoints(broker: "Broker") -> None:
    """Every ``log.flush.offset.checkpoint.interval.ms``, first ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("checkpoint")

    async def work(partition: "Partition") -> None:
        await partition.save_state()
        offset = await partition.checkpoint()
        if offset is not None and not partition.is_deleted:
            broker.directory.note_recovery_point((partition.topic, partition.number), offset)

    await trio.sleep(broker.config.log_initial_task_delay_ms / 1000)
    while True:
        for partition in list(broker.partitions.values()):
            await boundary.run(partition, work)
        await write_checkpoints(broker)
        await trio.sleep(max(1, broker.config.log_flush_offset_checkpoint_interval_ms) / 1000)


async def write_checkpoints(broker: "Broker") -> OSError | None:
    """Write the checkpoint files as they should be now; the first failure, which is logged, or None."""
    failure: OSError | None = None
    space = broker.directory.space
    async with broker.checkpoint_lock:
        for path, content in broker.directory.checkpoints():
            # Shielded: once it has begun, two of them must not meet in one temporary file.
            with trio.CancelScope(shield=True):
                write = partial(write_file_atomically, broker.fs, path, content)
                try:
                    await broker.offload.maintenance(space.with_ballast, write)
                except OSError as error:
                    log.warning("checkpoint_not_written", path=path, reason=str(error))
                    failure = failure or error
    return failure
