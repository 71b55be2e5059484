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
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.batch_checks import RecordRules, check_records
from seglog_broker.storage.log.recovery import Progress
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome, recover_partition
from seglog_broker.storage.segment.segment import first_at
from seglog_broker.workers.cleaner_process import run_cleaner
from seglog_broker.workers.record_checker_process import RecordCheckers
from seglog_broker.workers.recoverer_process import Recoverer, recoverer_process
from seglog_broker.workers.scrub_job import ScrubJob, ScrubVerdict
from seglog_broker.workers.scrubber_process import Scrubber, ScrubberError, scrubber_process
from seglog_broker.workers.worker import STORAGE, WorkerError, storage_kind
from seglog_protocol.errors import SeglogError
from seglog_protocol.record_batch import parse_header

COMMIT_THREADS_MAX: Final = 1
"""Rounds of group commit never overlap, and none of them waits for a thread that somebody else is using."""

FSYNC_THREADS_MAX: Final = 4
"""Logs synced at a time by checkpoints. More only queue up inside the device."""

COLD_READ_THREADS_MAX: Final = 8
"""Reads under way at a time: enough to keep a solid-state disk busy, few enough for a spinning one."""

MAINTENANCE_THREADS_MAX: Final = 2
"""Deletions and other housekeeping at a time; they are in no hurry."""

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
        self._record_checkers = RecordCheckers()

    @asynccontextmanager
    async def ending_processes(self) -> AsyncIterator[None]:
        """Leave no process of ``check_records`` behind this block."""
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._record_checkers.end()

    async def check_records(self, batch: memoryview, rules: RecordRules) -> None:
        """Look at the records of a batch, in a process; raises what ``RecordCheckers.check`` raises."""
        await self._record_checkers.check(batch, rules)

    async def find_record(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        """Look for a record in a batch, in a process; see ``RecordCheckers.find``."""
        return await self._record_checkers.find(batch, timestamp, offset_min)

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
        """Go through the records of a round of compaction, in a process of its own, which a cancellation ends.

        Raises CleanerError when that process failed.
        """
        return await run_cleaner(job)

    def scrubber(self, fs: FileSystem) -> AbstractAsyncContextManager[Scrubber]:  # noqa: ARG002 - it sees them itself
        """Somebody to read closed segments, in a process of its own, for the time of the block."""
        return scrubber_process()

    def recoverer(
        self,
        fs: FileSystem,  # noqa: ARG002 - it sees the files itself
        clock: Clock,  # noqa: ARG002 - it has its own
        descriptors: Sequence[int],
    ) -> AbstractAsyncContextManager[Recoverer]:
        """Somebody to recover partitions, in a process of its own that inherits ``descriptors``, within the block."""
        return recoverer_process(descriptors)


class InlineOffload(Offload):
    """Runs everything on the loop, after one checkpoint: for tests and simulation.

    Under an autojumping mock clock a thread would look like idleness, and the clock would leap while it works.
    """

    async def commit(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return fn(*args)

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return fn(*args)

    async def cold_read(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return fn(*args)

    async def maintenance(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return fn(*args)

    async def check_records(self, batch: memoryview, rules: RecordRules) -> None:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        check_records(parse_header(batch), batch, rules)

    async def find_record(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return first_at(parse_header(batch), batch, timestamp, offset_min)

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:
        """See Offload. At full speed."""
        from seglog_broker.storage.compaction.cleaner import clean  # noqa: PLC0415 - numpy is for cleaners and tests only
        from seglog_broker.storage.io.throttle import Throttle  # noqa: PLC0415

        await trio.lowlevel.checkpoint()
        return clean(fs, job, Throttle(None, trio.current_time, lambda _: None))

    @asynccontextmanager
    async def scrubber(self, fs: FileSystem) -> AsyncIterator[Scrubber]:
        """See Offload. At full speed."""
        yield _InlineScrubber(fs)

    @asynccontextmanager
    async def recoverer(self, fs: FileSystem, clock: Clock, descriptors: Sequence[int]) -> AsyncIterator[Recoverer]:
        """See Offload."""
        del descriptors
        yield _InlineRecoverer(fs, clock)


class _InlineScrubber:
    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    async def scrub(self, job: ScrubJob) -> ScrubVerdict:
        from seglog_broker.storage.io.throttle import Throttle  # noqa: PLC0415
        from seglog_broker.workers.closed_segment import scrub_segment  # noqa: PLC0415 - for scrubbers and tests only

        await trio.lowlevel.checkpoint()
        try:
            return scrub_segment(self._fs, job, Throttle(None, trio.current_time, lambda _: None))
        except OSError as error:
            raise ScrubberError(STORAGE, why(error)) from error


class _InlineRecoverer:
    def __init__(self, fs: FileSystem, clock: Clock) -> None:
        self._fs = fs
        self._clock = clock

    async def recover(self, job: RecoveryJob, progress: Progress) -> RecoveryOutcome:
        await trio.lowlevel.checkpoint()
        try:
            return recover_partition(self._fs, self._clock, job, progress)
        except (OSError, SeglogError) as error:
            raise WorkerError(storage_kind(error), why(error)) from error
