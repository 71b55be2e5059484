"""Worker processes, seen from the loop: started when needed, fed one job at a time, ended by their owner."""

import sys
import tempfile
from collections.abc import Sequence
from subprocess import PIPE
from typing import IO, Final, Protocol, Self

import trio

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.workers.kinds import AnswerT, JobKind, JobT, Progress, WorkerKind
from seglog_broker.workers.messages import DIED, NO_ROOM, STORAGE, Progressed, WorkerError, parse_reply, request_line

COMMAND: Final = (sys.executable, "-P", "-m", "seglog_broker.workers")
"""What a worker is started with, followed by its kind."""

_LAST_WORDS_BYTES: Final = 2000


def _ignore(_: int) -> None:
    """Progress that is of no interest."""


class Workers(Protocol):
    """Runs jobs: a pool of processes, or its inline double in tests."""

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = _ignore
    ) -> AnswerT:
        """Run a job and return its answer. Cancelled, it returns when no process works on the job any more.

        Raises WorkerError when the job was not done, OSError when no process could be started.
        """
        ...


class WorkerPool:
    """Processes of one kind: at most ``processes_max``, each at one job at a time; other jobs wait in their order.

    A process is started by the first job that finds none idle, and kept for the next one. After a cancellation, a bug
    or a death the next job gets another process. All inherit ``descriptors``. The owner calls ``end`` when no job is
    under way, or uses the pool as a context manager.
    """

    def __init__(self, worker: WorkerKind, processes_max: int = 1, *, descriptors: Sequence[int] = ()) -> None:
        self._worker = worker
        self._descriptors = tuple(descriptors)
        self._limit = trio.CapacityLimiter(processes_max)
        self._idle: list[_Process] = []
        self._stderr: IO[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = _ignore
    ) -> AnswerT:
        """See Workers."""
        async with self._limit:
            process = self._idle.pop() if self._idle else await self._start()
            is_ready = False
            try:
                await process.send(request_line(kind, job, len(payload)), payload)
                while isinstance(reply := parse_reply(kind, await process.next_line()), Progressed):
                    progress(reply.amount)
                is_ready = True
            except WorkerError as error:
                is_ready = error.kind in (STORAGE, NO_ROOM)
                raise
            finally:
                if is_ready:
                    self._idle.append(process)
                else:
                    await process.end()
        return reply

    async def end(self) -> None:
        """Return when there is no process any more."""
        while self._idle:
            await self._idle.pop().end()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    async def _start(self) -> "_Process":
        if self._stderr is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``end``
        process = await trio.lowlevel.open_process(
            [*COMMAND, self._worker.name],
            stdin=PIPE,  # open as long as the process is wanted
            stdout=PIPE,
            stderr=self._stderr,  # a file: a pipe that nobody reads would stop it
            pass_fds=self._descriptors,
        )
        return _Process(self._worker.name, process, self._stderr)


class _Process:
    def __init__(self, name: str, process: trio.Process, stderr: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._name = name
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr = stderr
        self._received = b""

    async def send(self, line: bytes, payload: Buffer) -> None:
        try:
            await self._stdin.send_all(line)
            await self._stdin.send_all(payload)
        except trio.BrokenResourceError:
            return  # it is dead, as ``next_line`` will find

    async def next_line(self) -> bytes:
        """The next line it writes. Raises WorkerError when it has died."""
        while b"\n" not in self._received:
            data = await self._stdout.receive_some()
            if not data:
                await self.end()
                message = f"the {self._name} ended with status {self._process.returncode}. {self._last_words()}"
                raise WorkerError(DIED, message.strip())
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip()

    async def end(self) -> None:
        """Return when it is gone."""
        if self._process.returncode is None:
            self._process.kill()
        with trio.CancelScope(shield=True):
            await self._process.wait()
            await self._stdin.aclose()
            await self._stdout.aclose()
