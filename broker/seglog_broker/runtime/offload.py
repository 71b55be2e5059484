"""What leaves the loop: blocking calls, each kind behind a limiter of its own.

Trio's shared default of 40 threads lets forty cold reads hold up the one fsync that every producer waits for, hence a
limiter for each kind. A thread may run only calls that release the GIL (fsync, pread, unlink): one busy Python thread
takes the loop from 20,000 round trips a second to a thousand.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar, TypeVarTuple

import trio

from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.batch_checks import RecordRules
from seglog_broker.workers.jobs import cleaner, record_checker, recoverer, scrubber
from seglog_broker.workers.kinds import AnswerT, JobKind, JobT
from seglog_broker.workers.messages import WorkerError
from seglog_broker.workers.pool import WorkerPool, Workers
from seglog_protocol.errors import OutOfResourcesError

COMMIT_THREADS_MAX: Final = 1
"""Rounds of group commit never overlap, and none of them waits for a thread that somebody else is using."""

FSYNC_THREADS_MAX: Final = 4
"""Logs synced at a time by checkpoints. More only queue up inside the device."""

COLD_READ_THREADS_MAX: Final = 8
"""Reads under way at a time: enough to keep a solid-state disk busy, few enough for a spinning one."""

MAINTENANCE_THREADS_MAX: Final = 2
"""Deletions and other housekeeping at a time; they are in no hurry."""

RECORD_CHECKERS_MAX: Final = 2
"""Batches whose records are looked at at a time, each in a process; the others wait in the order they came."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Offload:
    """Runs blocking calls in threads. Made once per broker; needs a running trio loop only when it is used.

    Each method returns what ``fn(*args)`` returns and raises what it raises. A call that has begun is always waited
    for, also when its task is cancelled: the cancellation shows at the next checkpoint, with the outcome known. Until
    it begins, while it waits for its limiter, a call can be cancelled and has then not happened.
    """

    def __init__(self) -> None:
        self._commit = trio.CapacityLimiter(COMMIT_THREADS_MAX)
        self._fsync = trio.CapacityLimiter(FSYNC_THREADS_MAX)
        self._cold_read = trio.CapacityLimiter(COLD_READ_THREADS_MAX)
        self._maintenance = trio.CapacityLimiter(MAINTENANCE_THREADS_MAX)
        self._record_checkers = WorkerPool(record_checker.WORKER, RECORD_CHECKERS_MAX)

    @asynccontextmanager
    async def ending_processes(self) -> AsyncIterator[None]:
        """Leave no process of ``check_records`` and ``find_record`` behind this block."""
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._record_checkers.end()

    async def check_records(self, batch: memoryview, rules: RecordRules) -> None:
        """Return when the records of ``batch``, whose header is known to be right, are as ``rules`` say.

        Raises what ``batch_checks.check_records`` raises, and OutOfResourcesError, to be tried again, when a process
        failed or could not be started. Cancelled, it kills the process.
        """
        await self._look_at_records(record_checker.CHECK, record_checker.CheckJob(*rules), batch)

    async def find_record(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the batch's first record from ``timestamp`` and ``offset_min`` on.

        None when it has no such record. Raises OutOfResourcesError as ``check_records`` does.
        """
        job = record_checker.SearchJob(timestamp, offset_min)
        return (await self._look_at_records(record_checker.SEARCH, job, batch)).found

    async def _look_at_records(self, kind: JobKind[JobT, AnswerT], job: JobT, batch: Buffer) -> AnswerT:
        try:
            return await self._record_checkers.run(kind, job, batch)
        except (OSError, WorkerError) as error:
            if isinstance(error, WorkerError) and error.refusal is not None:
                raise error.refusal from None
            raise OutOfResourcesError(
                f"the records of a batch could not be looked at, which takes a process: {why(error)}; try again"
            ) from error

    async def commit(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """For a round of group commit, which acks wait for. Never abandoned either."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._commit)

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """For what must be on the disk. Never abandoned: an fsync whose outcome nobody saw proves nothing."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._fsync)

    async def cold_read(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """For bytes that are not in the page cache. Not abandoned either: the lease on the file must outlive it."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._cold_read)

    async def maintenance(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """For housekeeping."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._maintenance)

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:  # noqa: ARG002 - it sees the files itself
        """Go through the records of a round of compaction, in a process of its own, which ends with it.

        Raises WorkerError when it was not done, OSError when no process could be started. ``.cleaned`` files may be
        left then, and after a cancellation; the next job removes them.
        """
        async with WorkerPool(cleaner.WORKER) as pool:
            return await pool.run(cleaner.CLEANING, job)

    def scrubber(self, fs: FileSystem) -> AbstractAsyncContextManager[Workers]:  # noqa: ARG002 - it sees them itself
        """A process to read closed segments with (``scrubber.SCRUB``), within the block."""
        return WorkerPool(scrubber.WORKER)

    def recoverer(
        self,
        fs: FileSystem,  # noqa: ARG002 - it sees the files itself
        clock: Clock,  # noqa: ARG002 - it has its own
        descriptors: Sequence[int],
    ) -> AbstractAsyncContextManager[Workers]:
        """A process to recover partitions with (``recoverer.RECOVERY``), within the block.

        It inherits ``descriptors``, the lock on the directory in which it writes: should it outlive the broker for a
        moment, no other one gets in its way meanwhile.
        """
        return WorkerPool(recoverer.WORKER, descriptors=descriptors)
