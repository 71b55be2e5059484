"""Asking a recoverer process, from the loop: started with the first partition, never left behind."""

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from seglog_broker.storage.log.recovery import Progress
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome
from seglog_broker.workers.recoverer import read_bytes_told
from seglog_broker.workers.worker_process import WorkerProcess

_MODULE: Final = "seglog_broker.workers.recoverer"


class Recoverer(Protocol):
    """Somebody who recovers partitions, one at a time."""

    async def recover(self, job: RecoveryJob, progress: Progress) -> RecoveryOutcome:
        """Do it; ``progress`` is told of bytes read. Cancelled, it returns when nobody works there any more.

        Raises WorkerError when it was not done, OSError when nobody could be started.
        """
        ...


@asynccontextmanager
async def recoverer_process(descriptors: Sequence[int]) -> AsyncIterator[Recoverer]:
    """One process for as many partitions as are asked for within the block. One that died is replaced.

    It inherits ``descriptors``, the lock on the directory in which it writes: should it outlive the broker for a
    moment, no other one gets in its way meanwhile.
    """
    with tempfile.TemporaryFile() as said:
        process = WorkerProcess(_MODULE, said, descriptors=descriptors)
        try:
            yield _RecovererProcess(process)
        finally:
            await process.end()


class _RecovererProcess:
    def __init__(self, process: WorkerProcess) -> None:
        self._process = process

    async def recover(self, job: RecoveryJob, progress: Progress) -> RecoveryOutcome:
        """See Recoverer."""
        is_done = False
        try:
            await self._process.send(job.to_json())
            while (count := read_bytes_told(line := await self._process.next_line())) is not None:
                progress(count)
            is_done = True
            return RecoveryOutcome.from_json(line)
        finally:
            if not is_done:
                await self._process.end()  # whatever it is at: the next job gets a fresh one
