"""Checkpoints: bring closed segments to the disk and note how far a start need not read.

Survives OSError and StorageError of a single partition, which is tried again at the next round, and of the checkpoint
files themselves, whose old content only costs a longer start. Anything else is a bug: it is logged with its traceback,
and that partition is left alone until the broker restarts.
"""

from typing import TYPE_CHECKING

import structlog
import trio

from seglog_broker.storage.filesystem import write_file_atomically
from seglog_protocol.errors import StorageError

if TYPE_CHECKING:
    from seglog_broker.broker import Broker
    from seglog_broker.partition import Partition

log = structlog.get_logger()


async def run_checkpoints(broker: "Broker") -> None:
    """Every ``log.flush.offset.checkpoint.interval.ms``, first ``log.initial.task.delay.ms`` after the start."""
    given_up: set[tuple[str, int]] = set()
    await trio.sleep(broker.config.log_initial_task_delay_ms / 1000)
    while True:
        for key, partition in list(broker.partitions.items()):
            if key not in given_up and not await _checkpoint(broker, partition):
                given_up.add(key)
        await write_checkpoints(broker)
        await trio.sleep(max(1, broker.config.log_flush_offset_checkpoint_interval_ms) / 1000)


async def write_checkpoints(broker: "Broker") -> OSError | None:
    """Write the checkpoint files as they should be now; the first failure, which is logged, or None."""
    failure: OSError | None = None
    async with broker.checkpoint_lock:
        for path, content in broker.directory.checkpoints():
            # Shielded: once it has begun, two of them must not meet in one temporary file.
            with trio.CancelScope(shield=True):
                try:
                    await broker.offload.maintenance(write_file_atomically, broker.fs, path, content)
                except OSError as error:
                    log.warning("checkpoint_not_written", path=path, reason=str(error))
                    failure = failure or error
    return failure


async def _checkpoint(broker: "Broker", partition: "Partition") -> bool:
    """Whether to go on with this partition."""
    facts = {"topic": partition.topic, "partition": partition.number}
    try:
        offset = await partition.checkpoint()
    except (OSError, StorageError) as error:
        log.warning("partition_not_synced", reason=str(error), **facts)
    except Exception:
        log.exception("checkpoint_failed", **facts)
        return False
    else:
        if offset is not None:
            broker.directory.note_recovery_point((partition.topic, partition.number), offset)
    return True
