"""Pools of worker processes: they are started when needed, get one job at a time, and are ended by their owner."""

import os
import sys
import tempfile
from collections.abc import Sequence
from subprocess import PIPE
from typing import IO, Final, Self

import trio

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.workers import messages
from seglog_broker.workers.messages import AnswerT, JobKind, JobT, Progress, WorkerKind

COMMAND: Final = (sys.executable, "-P", "-m", "seglog_broker.workers")
"""The command that starts a worker, without its last argument: the worker's kind."""

END_SECONDS: Final = 2.0
"""How long the end of a killed process is waited for. One that waits for a file system that hangs ends when that
answers, and a stop of the broker must not wait for a place of backups that is on it."""

_STDERR_BYTES_MAX: Final = 2000
"""The end of a dead worker's standard error that goes into the error."""


class Workers:
    """Runs jobs: ``WorkerPool``, or its inline double in tests."""

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = lambda _: None
    ) -> AnswerT:
        """Run a job and return its answer. A cancellation ends the process of the job first.

        ``payload`` are bytes for the job. Raises WorkerError if the job failed, OSError if no process could be started.
        """
        raise NotImplementedError


class WorkerPool(Workers):
    """At most ``processes_max`` processes of one kind, each with one job at a time; other jobs wait in their order.

    A job that finds no idle process starts one, which is kept for later jobs. A process is replaced when it died, or
    its job was cancelled or met a bug. All inherit ``descriptors``. The owner calls ``end`` when no job is running, or
    uses the pool as a context manager.
    """

    def __init__(
        self,
        worker: WorkerKind,
        processes_max: int = 1,
        *,
        descriptors: Sequence[int] = (),
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._worker = worker
        self._command = command
        self._descriptors = tuple(descriptors)
        self._limit = trio.CapacityLimiter(processes_max)
        self._idle: list[Process] = []
        self._stderr: IO[bytes] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = lambda _: None
    ) -> AnswerT:
        """See Workers."""
        async with self._limit:
            process = self._idle.pop() if self._idle else await self._start()
            can_be_kept = False
            try:
                await process.send(messages.request_line(kind, job, len(payload)), payload)
                while isinstance(reply := messages.parse_reply(kind, await process.next_line()), messages.Progressed):
                    progress(reply.amount)
                if isinstance(reply, messages.Announced):
                    reply = reply.with_payload(await process.next_bytes(reply.size))
                can_be_kept = True
            except messages.WorkerError as error:
                can_be_kept = error.kind in (messages.STORAGE, messages.NO_ROOM)
                raise
            finally:
                if can_be_kept:
                    self._idle.append(process)
                else:
                    await process.end()
        return reply

    async def end(self) -> None:
        """End all processes; returns when they have ended."""
        while self._idle:
            await self._idle.pop().end()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    async def _start(self) -> "Process":
        if self._stderr is None:
            self._stderr = scratch_file()  # closed by ``end``
        name = self._worker.name
        return await Process.start(name, [*self._command, name], self._stderr, self._descriptors)


def scratch_file() -> IO[bytes]:
    """A file without a name, in memory where the system has such files: all other places may be read-only."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("seglog-workers", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


class Process:
    """A process that is told lines, and says lines. Its owner calls ``end``."""

    def __init__(self, name: str, process: trio.Process, stderr: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._name = name
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self._stderr = stderr
        self._received = b""

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], stderr: IO[bytes], descriptors: Sequence[int] = ()
    ) -> "Process":
        """Start one, which inherits ``descriptors``; it is called ``name`` in errors. Raises OSError."""
        process = await trio.lowlevel.open_process(
            [*command],
            stdin=PIPE,  # the process ends when this is closed
            stdout=PIPE,
            stderr=stderr,  # a file, because a full pipe would block the process
            pass_fds=descriptors,
        )
        return cls(name, process, stderr)

    async def send(self, line: bytes, payload: Buffer = b"") -> None:
        """Tell it a line, or a part of one, and what follows. One that is dead gets nothing."""
        try:
            await self._stdin.send_all(line)
            await self._stdin.send_all(payload)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the process is dead, so ``next_line`` raises, or has just raised to another task

    async def next_line(self) -> bytes:
        """The next line that the process writes. Raises WorkerError if it has died."""
        while b"\n" not in self._received:
            self._received += await self._receive()
        line, _, self._received = self._received.partition(b"\n")
        return line

    async def next_bytes(self, size: int) -> bytearray:
        """The next ``size`` bytes that the process writes. Raises WorkerError if it has died."""
        found = bytearray(self._received[:size])
        self._received = self._received[size:]
        while len(found) < size:
            found += await self._receive(size - len(found))
        return found

    async def _receive(self, size_max: int | None = None) -> bytes | bytearray:
        data = await self._stdout.receive_some(size_max)
        if not data:
            await self.end()
            self._stderr.seek(0)
            last_words = self._stderr.read()[-_STDERR_BYTES_MAX:].decode(errors="replace").strip()
            message = f"the {self._name} ended with status {self._process.returncode}. {last_words}"
            raise messages.WorkerError(messages.DIED, message.strip())
        return data

    async def end(self) -> None:
        """Kill the process; returns when it has ended, or END_SECONDS later: it does nothing more when it goes on."""
        if self._process.returncode is None:
            self._process.kill()
        with trio.move_on_after(END_SECONDS, shield=True):
            await self._stdin.aclose()
            await self._stdout.aclose()
            await self._process.wait()
