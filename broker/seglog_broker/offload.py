"""What leaves the loop: blocking calls, each kind behind a limiter of its own.

Trio's shared default of 40 threads lets forty cold reads hold up the one fsync that every producer waits for, hence a
limiter for each kind. A thread may run only calls that release the GIL (fsync, pread, unlink): one busy Python thread
takes the loop from 20,000 round trips a second to a thousand.
"""

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import trio

from seglog_broker.cleaner_process import run_cleaner
from seglog_broker.storage.compaction_job import CleaningJob, CleaningResult
from seglog_broker.storage.filesystem import FileSystem

FSYNC_THREADS_MAX: Final = 4
"""Files synced at a time. More only queue up inside the device."""

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
        self._fsync = trio.CapacityLimiter(FSYNC_THREADS_MAX)
        self._cold_read = trio.CapacityLimiter(COLD_READ_THREADS_MAX)
        self._maintenance = trio.CapacityLimiter(MAINTENANCE_THREADS_MAX)

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


class InlineOffload(Offload):
    """Runs everything on the loop, after one checkpoint: for tests and simulation.

    Under an autojumping mock clock a thread would look like idleness, and the clock would leap while it works.
    """

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

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:
        """See Offload. At full speed."""
        from seglog_broker.storage.compaction import clean  # noqa: PLC0415 - numpy is for cleaners and tests only
        from seglog_broker.storage.throttle import Throttle  # noqa: PLC0415

        await trio.lowlevel.checkpoint()
        return clean(fs, job, Throttle(None, trio.current_time, lambda _: None))
