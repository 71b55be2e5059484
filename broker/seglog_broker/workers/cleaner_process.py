"""Asking a cleaner process to do a job, from the loop: it is started, waited for, and never left behind."""

import sys
import tempfile
from contextlib import suppress
from subprocess import PIPE
from typing import IO, Final

import trio

from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.workers.worker import DIED, WorkerError, failure_told, last_words

_COMMAND: Final = (sys.executable, "-P", "-m", "seglog_broker.workers.cleaner")


class CleanerError(WorkerError):
    """A job that was not done; nothing of the partition has changed."""


async def run_cleaner(job: CleaningJob) -> CleaningResult:
    """What a process of its own made of ``job``.

    Raises CleanerError when it failed or died, OSError when it could not be started. Cancelled, it kills the process
    and returns when there is none any more; ``.cleaned`` files may be left then, and the next job removes them.
    """
    # What it says on stderr goes to a file: a pipe that nobody reads would stop it.
    with tempfile.TemporaryFile() as said:
        process = await trio.lowlevel.open_process(
            _COMMAND,
            stdin=PIPE,  # it stays open as long as the cleaner is wanted
            stdout=PIPE,
            stderr=said,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(trio.BrokenResourceError):  # it ended before it took its job: its answer tells
                await process.stdin.send_all(job.to_json().encode() + b"\n")
            answer = b"".join([data async for data in process.stdout])
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdin.aclose()
                await process.stdout.aclose()
        return _result(answer, process.returncode, said)


def _result(answer: bytes, status: int | None, said: IO[bytes]) -> CleaningResult:
    """Raises CleanerError unless the answer is a result."""
    if status == 0:
        return CleaningResult.from_json(answer)
    told = failure_told(answer)
    if told is not None:
        raise CleanerError(told.kind, told.message)
    raise CleanerError(DIED, f"the cleaner ended with status {status}. {last_words(said)}".strip())
