"""Asking the scrubber process, from the loop: started with the first question, never left behind."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from seglog_broker.workers.scrub_job import ScrubJob, ScrubVerdict
from seglog_broker.workers.worker import WorkerError
from seglog_broker.workers.worker_process import WorkerProcess

_MODULE: Final = "seglog_broker.workers.scrubber"


class ScrubberError(WorkerError):
    """A segment that could not be judged; nothing of it has changed."""


class Scrubber(Protocol):
    """Somebody who reads closed segments."""

    async def scrub(self, job: ScrubJob) -> ScrubVerdict:
        """What the segment's bytes come to. Raises ScrubberError, or OSError when nobody could be started."""
        ...


@asynccontextmanager
async def scrubber_process() -> AsyncIterator[Scrubber]:
    """One process for as many segments as are asked for within the block. One that died is replaced."""
    with tempfile.TemporaryFile() as said:
        process = WorkerProcess(_MODULE, said)
        try:
            yield _ScrubberProcess(process)
        finally:
            await process.end()


class _ScrubberProcess:
    def __init__(self, process: WorkerProcess) -> None:
        self._process = process

    async def scrub(self, job: ScrubJob) -> ScrubVerdict:
        """See Scrubber. After a cancellation, of no more use."""
        await self._process.send(job.to_json())
        try:
            return ScrubVerdict.from_json(await self._process.next_line())
        except WorkerError as error:
            raise ScrubberError(error.kind, error.message) from error
