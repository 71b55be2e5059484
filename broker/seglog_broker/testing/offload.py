"""An ``Offload`` that runs everything on the loop: no threads, no processes, no passing of time."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from seglog_broker.runtime.offload import Arguments, Offload, T, outcomes_of
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.clock import Clock, SystemClock
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.flushes import Flush, begin_flushes, run_flushes
from seglog_broker.storage.log.batch_checks import RecordRules, check_records
from seglog_broker.storage.log.recompression import Recompression, recompress
from seglog_broker.storage.segment.segment import first_at
from seglog_broker.workers.jobs import CLEANING
from seglog_broker.workers.messages import BUG, AnswerT, JobKind, JobT, Progress, Tools, WorkerError
from seglog_broker.workers.pool import Workers
from seglog_protocol.record_batch import parse_header


class InlineOffload(Offload):
    """Runs every blocking call and every job on the loop, after one checkpoint: for tests and simulation.

    With an autojumping mock clock, the loop would look idle while a thread works, and the clock would jump. Jobs use
    the broker's file system, so they work on a ``ForgetfulFileSystem``; they run at full speed, whatever their rate.
    """

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

    async def check_records(self, batch: memoryview, rules: RecordRules) -> None:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        check_records(parse_header(batch), batch, rules)

    async def find_record(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        return first_at(parse_header(batch), batch, timestamp, offset_min)

    async def recompress(self, batch: memoryview, wanted: Recompression, rules: RecordRules | None) -> bytearray:
        """See Offload."""
        await trio.lowlevel.checkpoint()
        header = parse_header(batch)
        if rules is not None:
            check_records(header, batch, rules)
        return recompress(header, batch, wanted)

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
