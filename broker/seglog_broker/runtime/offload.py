"""Blocking calls outside the loop, in threads and processes; each kind has a limiter of its own.

With trio's default limiter of 40 threads, forty cold reads would delay the one fsync that every producer waits for. A
thread may run only calls that release the GIL (fsync, pread, unlink): one busy Python thread slows the loop from 20,000
round trips a second to a thousand.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar, TypeVarTuple

import trio

from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.flushes import Flush, PendingFlushes, begin_flushes, run_flushes
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.batch_checks import RecordRules
from seglog_broker.storage.log.recompression import Recompression
from seglog_broker.workers import jobs
from seglog_broker.workers.messages import AnswerT, JobKind, JobT, WorkerError
from seglog_broker.workers.pool import COMMAND, WorkerPool, Workers
from seglog_protocol.errors import OutOfResourcesError

COMMIT_THREADS_MAX: Final = 1
"""Rounds of group commit never overlap, and have a thread of their own, so they never wait for one."""

FSYNC_THREADS_MAX: Final = 4
"""Logs that checkpoints sync at a time. More would only queue up inside the device."""

COLD_READ_THREADS_MAX: Final = 8
"""Concurrent reads: enough to keep a solid-state disk busy, few enough for a spinning one."""

MAINTENANCE_THREADS_MAX: Final = 2
"""Concurrent deletions and other housekeeping, which are not urgent."""

PASSWORD_THREADS_MAX: Final = 2
"""Passwords that are checked at a time, each some milliseconds of a processor."""

PASSWORDS_WAITING_MAX: Final = 128
"""Passwords that wait for these threads, a second or so; clients with more are told to try again."""
HANDSHAKE_THREADS_MAX: Final = 2
"""TLS handshakes that are computed at a time. They hardly need the interpreter lock; more would take processors from
the loop."""

HANDSHAKES_AT_ONCE: Final = 16
"""Connections that are looked at together, whose handshakes begin or go on; most of a flood have left, and just end."""

RECORD_CHECKERS_MAX: Final = 2
"""Batches whose records are checked at a time, each in a process; the others wait in order of arrival."""

RECOMPRESSORS_MAX: Final = 2
"""Batches that are recompressed at a time, each in a process; the others wait in order of arrival.

It bounds the memory for their results, too: each has at most the topic's ``max.message.bytes``.
"""

FETCHERS_MAX: Final = 2
"""Segments that are fetched from a backup at a time: one in the order of all, one that a reader waits for."""

LOOKS_AT_ONCE: Final = 2
"""Turns of the loop after which those files of a round are looked for that were not done before its last one."""
LOOK_SECONDS: Final = 0.001
"""Then they are looked for as often as this."""

REST_SECONDS: Final = 0.001
"""How long the loop rests before a part of long work while a sync is awaited. The kernel does much of a sync on the
processor that has asked for it, the loop's: were it never idle until that work ends, syncs and whoever waits for them
would wait for all of it. Where there is always one under way 1,000 parts take a second longer for it."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


async def outcomes_of(pending: PendingFlushes) -> list[OSError | None]:
    """The error of each flush, None where it succeeded. Waits until all have ended, also in a cancelled task."""
    looks = 0
    while (errors := pending.collect()) is None:
        descriptor = pending.descriptor
        with trio.CancelScope(shield=True):
            if descriptor is not None:
                await trio.lowlevel.wait_readable(descriptor)
            elif looks < LOOKS_AT_ONCE:
                looks += 1
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(LOOK_SECONDS)
    return errors


class Places:
    """So many places. Addresses that wait take turns: one with thousands of clients holds up the others little."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: OrderedDict[str, OrderedDict[trio.Event, None]] = OrderedDict()  # the next one first

    @asynccontextmanager
    async def of(self, address: str) -> AsyncIterator[None]:
        """Wait for a place, and have it during the block."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(address, trio.Event())
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, address: str, granted: trio.Event) -> None:
        self._waiting.setdefault(address, OrderedDict())[granted] = None
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self._give_back()
            else:
                del self._waiting[address][granted]
                if not self._waiting[address]:
                    del self._waiting[address]
            raise

    def _give_back(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        address, waiting = self._waiting.popitem(last=False)
        granted, _ = waiting.popitem(last=False)
        if waiting:
            self._waiting[address] = waiting
        granted.set()


class Offload:
    """Runs blocking calls in threads. Made once per broker; needs a running trio loop only when it is used.

    A method with ``fn`` returns what ``fn(*args)`` returns and raises what it raises. But for ``configuration``, a call
    that has begun is always waited for, even if its task is cancelled: the cancellation is raised at the next
    checkpoint, with the outcome known. While a call waits for its limiter it can be cancelled, and is then not made.
    """

    def __init__(self) -> None:
        self.worker_command: Sequence[str] = COMMAND
        self._rounds = 0  # of group commit, under way in the kernel
        self._commit = trio.CapacityLimiter(COMMIT_THREADS_MAX)
        self._fsync = trio.CapacityLimiter(FSYNC_THREADS_MAX)
        self._cold_read = trio.CapacityLimiter(COLD_READ_THREADS_MAX)
        self._maintenance = trio.CapacityLimiter(MAINTENANCE_THREADS_MAX)
        self._passwords = trio.CapacityLimiter(PASSWORD_THREADS_MAX)
        self._handshake = trio.CapacityLimiter(HANDSHAKE_THREADS_MAX)
        self.handshake_places = Places(HANDSHAKES_AT_ONCE)
        self._record_checkers = WorkerPool(jobs.RECORD_CHECKER, RECORD_CHECKERS_MAX)
        self._recompressors = WorkerPool(jobs.RECOMPRESSOR, RECOMPRESSORS_MAX)

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for the disk."""
        waits = self._commit.borrowed_tokens or self._fsync.borrowed_tokens or self._cold_read.borrowed_tokens
        return bool(self._rounds or waits)

    async def rest(self) -> None:
        """Let the loop rest if a sync is awaited; returns at once if none is.

        For each part of long work for which no producer or consumer waits: pages of metrics, measurements, checkpoints.
        """
        if self.is_awaited:
            await trio.sleep(REST_SECONDS)

    @asynccontextmanager
    async def ending_processes(self) -> AsyncIterator[None]:
        """End the processes of ``check_records``, ``find_record`` and ``recompress`` when the block ends."""
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._record_checkers.end()
                await self._recompressors.end()

    async def check_records(self, batch: memoryview, rules: RecordRules) -> None:
        """Check that the records of ``batch``, whose header was checked before, comply with ``rules``.

        Raises what ``batch_checks.check_records`` raises, and OutOfResourcesError, which is retriable, when a process
        failed or could not be started. A cancellation kills the process.
        """
        job = jobs.CheckJob(*rules)
        await self._look_at_records(self._record_checkers, jobs.CHECK, job, batch)

    async def find_record(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the batch's first record from ``timestamp`` and ``offset_min`` on.

        None when it has no such record. Raises OutOfResourcesError as ``check_records`` does.
        """
        job = jobs.SearchJob(timestamp, offset_min)
        return (await self._look_at_records(self._record_checkers, jobs.SEARCH, job, batch)).found

    async def recompress(self, batch: memoryview, wanted: Recompression, rules: RecordRules | None) -> bytearray:
        """Check that the records of ``batch`` comply with ``rules``, if there are any, and recompress it.

        Raises what ``recompression.recompress`` raises, and the rest as ``check_records``.
        """
        checks = None if rules is None else jobs.CheckJob(*rules)
        job = jobs.RecompressionJob(*wanted, rules=checks)
        return (await self._look_at_records(self._recompressors, jobs.RECOMPRESSION, job, batch)).payload

    async def _look_at_records(self, pool: Workers, kind: JobKind[JobT, AnswerT], job: JobT, batch: Buffer) -> AnswerT:
        try:
            return await pool.run(kind, job, batch)
        except (OSError, WorkerError) as error:
            if isinstance(error, WorkerError) and error.refusal is not None:
                raise error.refusal from None
            raise OutOfResourcesError(
                f"the records of a batch could not be checked, which needs a process: {why(error)}; try again"
            ) from error

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        """Run a round of group commit, which acks wait for. Returns the error of each flush, or None. Never abandoned.

        Without a thread where the file system can: a way through one costs more than an fsync on a fast disk.
        """
        pending = begin_flushes(fs, flushes)
        if pending is None:
            return await trio.to_thread.run_sync(
                run_flushes, fs, flushes, abandon_on_cancel=False, limiter=self._commit
            )
        self._rounds += 1
        try:
            return await outcomes_of(pending)
        finally:
            self._rounds -= 1

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Run an fsync. Never abandoned: an fsync without a known outcome proves nothing."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._fsync)

    async def cold_read(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Read bytes that are not in the page cache. Never abandoned: the lease on the file must outlive the read."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._cold_read)

    async def maintenance(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Run housekeeping."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._maintenance)

    async def derivation(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Derive a key from a password. Raises OutOfResourcesError, which is retriable, where too many others wait."""
        if self._passwords.statistics().tasks_waiting >= PASSWORDS_WAITING_MAX:
            raise OutOfResourcesError(
                f"{PASSWORDS_WAITING_MAX} passwords wait to be checked, and no more can; try again"
            )
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._passwords)

    async def handshake(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Go on with a TLS handshake. Never abandoned: the connection may not be closed meanwhile."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=False, limiter=self._handshake)

    async def configuration(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """Read the configuration. Abandoned when cancelled: its file may be on a device that does not answer."""
        return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=True)

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:  # noqa: ARG002 - it opens files itself
        """Run a compaction job in a process of its own, which ends with it.

        Raises WorkerError when the job failed, OSError when no process could be started. An error or a cancellation may
        leave ``.cleaned`` files, which the next job removes.
        """
        async with WorkerPool(jobs.CLEANER, command=self.worker_command) as pool:
            return await pool.run(jobs.CLEANING, job)

    def scrubber(self, fs: FileSystem) -> AbstractAsyncContextManager[Workers]:  # noqa: ARG002 - it opens files itself
        """A worker process that reads closed segments (``jobs.SCRUB``), for the time of the block."""
        return WorkerPool(jobs.SCRUBBER)

    def recoverer(
        self,
        fs: FileSystem,  # noqa: ARG002 - it opens files itself
        clock: Clock,  # noqa: ARG002 - it has its own
        descriptors: Sequence[int],
    ) -> AbstractAsyncContextManager[Workers]:
        """A worker process that recovers partitions (``jobs.RECOVERY``), for the time of the block.

        It inherits ``descriptors``, which hold the lock on the directory that it writes to: if it outlives the broker,
        no other broker can use the directory until it ends.
        """
        return WorkerPool(jobs.RECOVERER, descriptors=descriptors)

    def fetcher(
        self,
        fs: FileSystem,  # noqa: ARG002 - it opens files itself
        descriptors: Sequence[int],
    ) -> AbstractAsyncContextManager[Workers]:
        """Worker processes that get files from a backup (``jobs.BEGIN``, ``jobs.FETCH``), for the time of the block.

        They inherit ``descriptors``, as a recoverer does.
        """
        return WorkerPool(jobs.FETCHER, FETCHERS_MAX, descriptors=descriptors)
