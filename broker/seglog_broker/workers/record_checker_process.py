"""Asking record checker processes, from the loop: started with the first question, never left behind."""

import tempfile
from typing import IO, Final

import trio

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.batch_checks import RecordRules
from seglog_broker.workers.record_checker import RecordJob, SearchJob, record_told, verdict_told
from seglog_broker.workers.worker import WorkerError
from seglog_broker.workers.worker_process import WorkerProcess
from seglog_protocol.errors import OutOfResourcesError

_MODULE: Final = "seglog_broker.workers.record_checker"

CHECKERS_MAX: Final = 2
"""Batches looked at at a time, each in a process of its own; the others wait in the order they came."""


class RecordCheckers:
    """The processes of one broker. Whoever made it calls ``end``."""

    def __init__(self) -> None:
        self._limit = trio.CapacityLimiter(CHECKERS_MAX)
        self._idle: list[WorkerProcess] = []
        self._said: IO[bytes] | None = None  # what they say on stderr

    async def check(self, batch: memoryview, rules: RecordRules) -> None:
        """Return when the records of ``batch``, whose header is known to be right, are as ``rules`` say.

        Raises what ``batch_checks.check_records`` raises, and OutOfResourcesError, to be tried again, when a process
        failed or could not be started. Cancelled, it kills the process.
        """
        refusal = verdict_told(await self._ask(RecordJob(len(batch), *rules), batch))
        if refusal is not None:
            raise refusal

    async def find(self, batch: bytes, timestamp: int, offset_min: int) -> tuple[int, int, int] | None:
        """Timestamp, offset and leader epoch of the batch's first record from ``timestamp`` and ``offset_min`` on.

        None when it has no such record. Raises OutOfResourcesError as ``check`` does.
        """
        return record_told(await self._ask(SearchJob(len(batch), timestamp, offset_min), batch))

    async def _ask(self, job: RecordJob | SearchJob, batch: Buffer) -> bytes:
        async with self._limit:
            process = self._idle.pop() if self._idle else self._new()
            answer = None
            try:
                await process.send(job.to_json(), batch)
                answer = await process.next_line()
            except (OSError, WorkerError) as error:
                raise OutOfResourcesError(
                    f"the records of a batch could not be looked at, which takes a process: {why(error)}; try again"
                ) from error
            finally:
                if answer is None:
                    await process.end()
                else:
                    self._idle.append(process)
        return answer

    async def end(self) -> None:
        """Return when there is no process any more."""
        while self._idle:
            await self._idle.pop().end()
        if self._said is not None:
            self._said.close()
            self._said = None

    def _new(self) -> WorkerProcess:
        if self._said is None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        return WorkerProcess(_MODULE, self._said)
