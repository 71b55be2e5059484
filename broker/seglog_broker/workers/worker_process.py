"""A process that does jobs beside the loop, seen from the loop: a line of JSON for each job goes in, answers come out.

It is started with the first job and never left behind. One that died is replaced by the next job.
"""

import sys
from collections.abc import Sequence
from subprocess import PIPE
from typing import IO

import trio

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.workers.worker import DIED, WorkerError, failure_told, last_words


class WorkerProcess:
    """``python -m module``, for one job after the other. Whoever made it calls ``end``."""

    def __init__(self, module: str, said: IO[bytes], *, descriptors: Sequence[int] = ()) -> None:
        """``said`` takes what it says on stderr: a pipe that nobody reads would stop it.

        It inherits ``descriptors``.
        """
        self._command = (sys.executable, "-P", "-m", module)
        self._name = module.rpartition(".")[2]
        self._said = said
        self._descriptors = tuple(descriptors)
        self._process: trio.Process | None = None
        self._received = b""

    async def send(self, job: str, payload: Buffer = b"") -> None:
        """Hand in a job, with bytes behind its line if it has any. OSError when no process could be started."""
        if self._process is None:
            self._process = await trio.lowlevel.open_process(
                self._command, stdin=PIPE, stdout=PIPE, stderr=self._said, pass_fds=self._descriptors
            )
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(job.encode() + b"\n")
            await self._process.stdin.send_all(payload)
        except trio.BrokenResourceError:
            return  # it is dead, as ``next_line`` will find

    async def next_line(self) -> bytes:
        """The next line it writes; WorkerError when it tells of a failure, or has died."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while b"\n" not in self._received:
            data = await process.stdout.receive_some()
            if not data:
                raise await self._death(process)
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        told = failure_told(line)
        if told is not None:
            raise told
        return line

    async def _death(self, process: trio.Process) -> WorkerError:
        with trio.CancelScope(shield=True):
            process.kill()
            status = await process.wait()
        message = f"the {self._name} ended with status {status}. {last_words(self._said)}".strip()
        await self.end()
        return WorkerError(DIED, message)

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
