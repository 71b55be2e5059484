"""Makes checkpoints: syncs closed segments, writes the checkpoint files of a log directory, saves states of partitions.

If a checkpoint file cannot be written, its old content only makes the next start longer. Files that could not be
written, as on a full disk, are remembered and written when there is room.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.group_commit import UNKNOWN_OUTCOME
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.checkpoint_files import encoding_offsets
from seglog_protocol.steps import in_turns_of

log = get_logger()


@dataclass(eq=False, repr=False)
class CheckpointWriter:
    """The only writer of the checkpoint files while the broker runs. It writes them in threads."""

    _directory: LogDirectory
    _fs: FileSystem
    _offload: Offload
    _metrics: Metrics

    def __post_init__(self) -> None:
        self._lock = trio.Lock()  # one write at a time, because all use the same temporary file
        self._unsaved_starts: set[Partition] = set()  # partitions whose state does not have the log start yet
        self._is_outdated = False  # one of the files is older than it should be
        self._lacked_room = False  # a partition found no room in the last round of checkpoints
        self._pause = trio.CancelScope()
        self._problems = Lasting()  # of each file; those of states are in ``_unsaved_starts``

    @property
    def has_unwritten(self) -> bool:
        """Whether there are files that could not be written, and that ``retry`` would write."""
        return bool(self._unsaved_starts) or self._is_outdated or self._lacked_room

    def note_unsaved_start(self, partition: Partition) -> None:
        """Remember that the saved state of a partition lacks its log start; ``retry`` saves it."""
        self._unsaved_starts.add(partition)

    def end_round(self, *, lacked_room: bool) -> trio.CancelScope:
        """End a round of checkpoints. Returns the scope for the pause before the next; ``retry`` may cancel it."""
        self._lacked_room = lacked_room
        self._pause = trio.CancelScope()
        return self._pause

    async def sync(self, partition: Partition) -> int | None:
        """Sync closed segments and their indexes. Returns the new recovery point, at once where all of them are synced.

        None if the disk failed, or the topic was deleted.
        """
        wanted = partition.log.active.base_offset
        while True:
            flush = partition.begin_checkpoint()
            if isinstance(flush, trio.Event):
                await flush.wait()
                continue
            if flush is None:
                return None
            if flush.is_empty:
                partition.end_flush(flush, None)  # without a thread's turn, and counted as no sync
            else:
                await self._sync_some(partition, flush)
            if partition.log.state.read_only:
                return None
            if flush.end_offset >= wanted:
                return flush.end_offset

    async def _sync_some(self, partition: Partition, flush: Flush) -> None:
        error: OSError | None = UNKNOWN_OUTCOME
        began = trio.current_time()
        with trio.CancelScope(shield=True):  # never abandoned, see GroupCommit
            try:
                await self._offload.fsync(flush.run)
                error = None
            except OSError as failure:
                error = failure
            finally:
                self._metrics.note_flushes(1, trio.current_time() - began)
                failed = partition.end_flush(flush, error)
        if failed is not None:
            raise failed from error

    async def write(self) -> OSError | None:
        """Write the current checkpoint files. Failures are logged; returns the first one, or None."""
        failure: OSError | None = None
        async with self._lock:
            turn = trio.lowlevel.checkpoint  # of other tasks: there may be very many partitions
            for path, offsets in await in_turns_of(self._directory.partitions.gathering_offsets(), turn):
                content = await in_turns_of(encoding_offsets(offsets), turn)
                # Shielded, because another write of the same temporary file must not begin before this one ends.
                with trio.CancelScope(shield=True):
                    write = partial(write_file_atomically, self._fs, path, content)
                    try:
                        await self._offload.maintenance(self._directory.space.with_ballast, write)
                    except OSError as error:
                        if self._problems.begins(path, why(error)):
                            log.warning("checkpoint_not_written", path=path, reason=why(error))
                        failure = failure or error
                    else:
                        if self._problems.ends(path):
                            log.info("checkpoint_written", path=path)
            self._is_outdated = failure is not None
        return failure

    async def write_log_starts(self, partitions: Iterable[Partition]) -> OSError | None:
        """Save the log starts of these partitions durably. Failures are logged; returns the first one, or None."""
        failure: OSError | None = None
        for partition in partitions:
            async with partition.maintenance:
                failed = await self.save_log_start(partition)
            failure = failure or failed
        failed = await self.write()
        return failure or failed

    async def save_log_start(self, partition: Partition) -> OSError | None:
        """Save the state of a partition with its log start. A failure is logged and returned.

        The caller holds ``partition.maintenance``. A start ignores a checkpoint with a higher log start than the state.
        """
        self._unsaved_starts.add(partition)
        try:
            await _save_state(partition, self._offload, self._directory.space.with_ballast)
        except OSError as error:
            if self._problems.begins((partition.topic, partition.number), why(error)):
                log.warning("state_not_written", topic=partition.topic, partition=partition.number, reason=why(error))
            return error
        if self._problems.ends((partition.topic, partition.number)):
            log.info("state_written", topic=partition.topic, partition=partition.number)
        self._unsaved_starts.discard(partition)
        return None

    async def retry(self) -> None:
        """Write the files that could not be written before. Those that still fail are kept for the next call."""
        if self._unsaved_starts or self._is_outdated:
            await self.write_log_starts(list(self._unsaved_starts))
        if self._lacked_room:
            self._pause.cancel()


async def save_state(partition: Partition, offload: Offload) -> None:
    """Save the state of a partition, if it has changed. After an OSError the next call tries again."""
    if partition.log.state_file.needs_nothing:
        return
    async with partition.maintenance:
        await _save_state(partition, offload, lambda work: work())


async def _save_state(partition: Partition, offload: Offload, run: Callable[[Callable[[], None]], None]) -> None:
    """As ``save_state``, for a caller that holds ``maintenance``. The write is ``run`` in a thread."""
    write = None if partition.is_deleted else partition.log.state_file.prepare()
    if write is None:
        return
    written = False
    try:
        await offload.maintenance(run, write.run)
        written = True
    finally:
        partition.log.state_file.finish(written=written)
