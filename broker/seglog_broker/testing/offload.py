"""An ``Offload`` that runs everything on the loop: no threads, no processes, no passing of time."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from seglog_broker.runtime.offload import Arguments, Offload, T, outcomes_of
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.clock import Clock, SystemClock
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.flushes import Flush, begin_flushes, run_flushes
from seglog_broker.workers.jobs import CLEANING
from seglog_broker.workers.messages import BUG, AnswerT, JobKind, JobT, Progress, Tools, WorkerError
from seglog_broker.workers.pool import Workers


class InlineOffload(Offload):
    """Runs every blocking call and every job on the loop, after one checkpoint: for tests and simulation.

    With an autojumping mock clock, the loop would look idle while a thread works, and the clock would jump. Jobs use
    the broker's file system, so they work on a ``ForgetfulFileSystem``; they run at full speed, whatever their rate.
    """

    def __init__(self) -> None:
        super().__init__()
        self._looks = InlineWorkers(FileSystem())  # for ``check_records``, ``find_record`` and ``recompress``: no files

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        pending = begin_flushes(fs, flushes)
        return run_flushes(fs, flushes) if pending is None else await outcomes_of(pending)

    async def fsync(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return fn(*args)

    cold_read = maintenance = derivation = handshake = configuration = fsync

    async def _look_at_records(self, pool: Workers, kind: JobKind[JobT, AnswerT], job: JobT, batch: Buffer) -> AnswerT:
        del pool
        return await super()._look_at_records(self._looks, kind, job, batch)

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:
        """See Offload."""
        return await InlineWorkers(fs).run(CLEANING, job)

    @asynccontextmanager
    async def scrubber(self, fs: FileSystem) -> AsyncIterator[Workers]:
        """See Offload."""
        yield InlineWorkers(fs)

    @asynccontextmanager
    async def recoverer(self, fs: FileSystem, clock: Clock, descriptors: Sequence[int]) -> AsyncIterator[Workers]:
        """See Offload."""
        del descriptors
        yield InlineWorkers(fs, clock)

    @asynccontextmanager
    async def fetcher(self, fs: FileSystem, descriptors: Sequence[int]) -> AsyncIterator[Workers]:
        """Do as Offload says."""
        del descriptors
        yield InlineWorkers(fs)


class InlineWorkers(Workers):
    """Runs jobs of every kind on the loop, each after one checkpoint."""

    def __init__(self, fs: FileSystem, clock: Clock | None = None) -> None:
        self._tools = Tools(fs, clock or SystemClock(), is_throttled=False)

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = lambda _: None
    ) -> AnswerT:
        """See Workers. A bug is raised as itself, not as a WorkerError."""
        await trio.lowlevel.checkpoint()
        try:
            return kind.run(self._tools, job, payload, progress)
        except Exception as error:
            failure = WorkerError.of(error)
            if failure.kind == BUG:
                raise
            raise failure from error
