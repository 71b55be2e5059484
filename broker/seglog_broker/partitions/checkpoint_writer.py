"""Writes the checkpoint files of a log directory, and the states that prove where logs begin.

Where a checkpoint file cannot be written its old content only costs a longer start. What could not be written, as on a
full disk, is remembered and tried again when there is room.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import structlog
import trio

from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.checkpoints import encoding_offsets
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.os_errors import why

log = structlog.get_logger()


class CheckpointWriter:
    """The one writer of the checkpoint files while the broker runs; the files are written off the loop."""

    def __init__(self, directory: LogDirectory, fs: FileSystem, offload: Offload) -> None:
        self._directory = directory
        self._fs = fs
        self._offload = offload
        self._lock = trio.Lock()  # one writing at a time: two must not meet in one temporary file
        self._unsaved_starts: set[Partition] = set()  # whose state does not say yet where the log begins
        self._is_outdated = False  # one of the files is older than it should be
        self._lacked_room = False  # for some partition, in the last round of checkpoints
        self._pause = trio.CancelScope()

    @property
    def has_unwritten(self) -> bool:
        """Whether something could not be written that ``retry`` would write."""
        return bool(self._unsaved_starts) or self._is_outdated or self._lacked_room

    def note_unsaved_start(self, partition: Partition) -> None:
        """Remember that the state of a partition does not say where its log begins; ``retry`` will save it."""
        self._unsaved_starts.add(partition)

    def end_round(self, *, lacked_room: bool) -> trio.CancelScope:
        """A round of checkpoints has ended; return the scope of the pause before the next, which ``retry`` may end."""
        self._lacked_room = lacked_room
        self._pause = trio.CancelScope()
        return self._pause

    async def write(self) -> OSError | None:
        """Write the checkpoint files as they should be now; the first failure, which is logged, or None."""
        failure: OSError | None = None
        async with self._lock:
            for path, offsets in self._directory.partitions.checkpoint_offsets():
                content = await _encoded(offsets)
                # Shielded: once it has begun, two of them must not meet in one temporary file.
                with trio.CancelScope(shield=True):
                    write = partial(write_file_atomically, self._fs, path, content)
                    try:
                        await self._offload.maintenance(self._directory.space.with_ballast, write)
                    except OSError as error:
                        log.warning("checkpoint_not_written", path=path, reason=why(error))
                        failure = failure or error
            self._is_outdated = failure is not None
        return failure

    async def write_log_starts(self, partitions: Iterable[Partition]) -> OSError | None:
        """Write where these logs begin now, so that it survives a crash; the first failure (logged) or None."""
        failure: OSError | None = None
        for partition in partitions:
            async with partition.maintenance:
                failed = await self.save_log_start(partition)
            failure = failure or failed
        failed = await self.write()
        return failure or failed

    async def save_log_start(self, partition: Partition) -> OSError | None:
        """Have the state of a partition prove where its log begins now; a failure is logged and returned.

        The caller holds ``partition.maintenance``. A start believes no checkpoint that says more than the state.
        """
        self._unsaved_starts.add(partition)
        try:
            await partition.save_state_held(self._directory.space.with_ballast)
        except OSError as error:
            log.warning("state_not_written", topic=partition.topic, partition=partition.number, reason=why(error))
            return error
        self._unsaved_starts.discard(partition)
        return None

    async def retry(self) -> None:
        """Try again what could not be written; what still cannot be is for another time."""
        if self._unsaved_starts or self._is_outdated:
            await self.write_log_starts(list(self._unsaved_starts))
        if self._lacked_room:
            self._pause.cancel()


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
