"""Checkpoints: bring closed segments to the disk and note how far a start need not read.

Where the checkpoint files themselves cannot be written, their old content only costs a longer start.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.io.checkpoints import encoding_offsets
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_protocol.errors import StorageError

if TYPE_CHECKING:
    from seglog_broker.api.broker import Broker
    from seglog_broker.partitions.partition import Partition

log = structlog.get_logger()


async def run_checkpoints(broker: "Broker") -> None:
    """Every ``log.flush.offset.checkpoint.interval.ms``, first ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("checkpoint")
    lacked_room = False

    async def work(partition: "Partition") -> None:
        nonlocal lacked_room
        try:
            await partition.save_state()
            offset = await partition.checkpoint()
        except (OSError, StorageError) as error:
            lacked_room |= is_no_room(error)
            raise
        if offset is not None and not partition.is_deleted:
            broker.directory.note_recovery_point((partition.topic, partition.number), offset)

    await trio.sleep(broker.config.log_initial_task_delay_ms / 1000)
    while True:
        lacked_room = False
        for partition in list(broker.partitions.values()):
            await boundary.run(partition, work)
        await write_checkpoints(broker)
        broker.unwritten.checkpoint_lacked_room = lacked_room
        with broker.unwritten.pause():
            await broker.config_changes.sleep(
                lambda: max(1, broker.config.log_flush_offset_checkpoint_interval_ms) / 1000
            )


class Unwritten:
    """What could not be written, as on a full disk, and is to be as soon as there is room."""

    def __init__(self) -> None:
        self.starts: set[Partition] = set()  # whose state does not say yet where the log begins
        self.checkpoints = False  # one of the files is older than it should be
        self.checkpoint_lacked_room = False  # for some partition, in the last round
        self._pause = trio.CancelScope()

    def __bool__(self) -> bool:
        return bool(self.starts) or self.checkpoints or self.checkpoint_lacked_room

    def pause(self) -> trio.CancelScope:
        """What a pause between two rounds of checkpoints is made in."""
        self._pause = trio.CancelScope()
        return self._pause

    def end_pause(self) -> None:
        """Have the next round begin now."""
        self._pause.cancel()


async def write_unwritten(broker: "Broker") -> None:
    """Try again what could not be written; what still cannot be is for another time."""
    unwritten = broker.unwritten
    if unwritten.starts or unwritten.checkpoints:
        await write_log_starts(broker, list(unwritten.starts))
    if unwritten.checkpoint_lacked_room:
        unwritten.end_pause()


async def write_log_starts(broker: "Broker", partitions: "Iterable[Partition]") -> OSError | None:
    """Write where these logs begin now, so that it survives a crash; the first failure, which is logged, or None."""
    failure: OSError | None = None
    for partition in partitions:
        async with partition.maintenance:
            failed = await save_start_held(broker, partition)
        failure = failure or failed
    failed = await write_checkpoints(broker)
    return failure or failed


async def save_start_held(broker: "Broker", partition: "Partition") -> OSError | None:
    """Have the state prove where the log begins now, for who holds ``maintenance``; a failure is logged and returned.

    A start believes no checkpoint that says more. Where it cannot be written, it is as soon as there is room.
    """
    broker.unwritten.starts.add(partition)
    try:
        await partition.save_state_held(broker.directory.space.with_ballast)
    except OSError as error:
        log.warning("state_not_written", topic=partition.topic, partition=partition.number, reason=why(error))
        return error
    broker.unwritten.starts.discard(partition)
    return None


async def _encoded(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The content of a checkpoint; others have their turn meanwhile, because it may be of very many partitions."""
    steps = encoding_offsets(offsets)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            content: bytes = done.value
            return content
        await trio.lowlevel.checkpoint()


async def write_checkpoints(broker: "Broker") -> OSError | None:
    """Write the checkpoint files as they should be now; the first failure, which is logged, or None."""
    failure: OSError | None = None
    space = broker.directory.space
    async with broker.checkpoint_lock:
        for path, offsets in broker.directory.checkpoint_offsets():
            content = await _encoded(offsets)
            # Shielded: once it has begun, two of them must not meet in one temporary file.
            with trio.CancelScope(shield=True):
                write = partial(write_file_atomically, broker.fs, path, content)
                try:
                    await broker.offload.maintenance(space.with_ballast, write)
                except OSError as error:
                    log.warning("checkpoint_not_written", path=path, reason=why(error))
                    failure = failure or error
        broker.unwritten.checkpoints = failure is not None
    return failure
