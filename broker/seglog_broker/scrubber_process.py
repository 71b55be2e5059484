"""Asking the scrubber process, from the loop: started with the first question, never left behind."""

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import IO, Final, Protocol

import trio

from seglog_broker.scrub_job import ScrubJob, ScrubVerdict
from seglog_broker.worker import DIED, WorkerError, failure_told, last_words

_COMMAND: Final = (sys.executable, "-P", "-m", "seglog_broker.scrubber")


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
    # What it says on stderr goes to a file: a pipe that nobody reads would stop it.
    with tempfile.TemporaryFile() as said:
        scrubber = _ScrubberProcess(said)
        try:
            yield scrubber
        finally:
            await scrubber.end()


class _ScrubberProcess:
    def __init__(self, said: IO[bytes]) -> None:
        self._said = said
        self._process: trio.Process | None = None
        self._received = b""

    async def scrub(self, job: ScrubJob) -> ScrubVerdict:
        """See Scrubber. After a cancellation, of no more use."""
        if self._process is None:
            self._process = await trio.lowlevel.open_process(_COMMAND, stdin=PIPE, stdout=PIPE, stderr=self._said)
        process = self._process
        assert process.stdin is not None
        try:
            await process.stdin.send_all(job.to_json().encode() + b"\n")
            answer = await self._next_line(process)
        except trio.BrokenResourceError:
            answer = None
        if answer is None:
            with trio.CancelScope(shield=True):
                process.kill()
                status = await process.wait()
            message = f"the scrubber ended with status {status}. {last_words(self._said)}".strip()
            await self.end()
            raise ScrubberError(DIED, message)
        told = failure_told(answer)
        if told is not None:
            raise ScrubberError(told.kind, told.message)
        return ScrubVerdict.from_json(answer)

    async def _next_line(self, process: trio.Process) -> bytes | None:
        """None when there is no more to come."""
        assert process.stdout is not None
        while b"\n" not in self._received:
            data = await process.stdout.receive_some()
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    async def end(self) -> None:
        """Return when there is no process any more."""
        process, self._process, self._received = self._process, None, b""
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
