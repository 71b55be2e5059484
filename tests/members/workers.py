"""Processes that are members of groups: started, killed, stopped, resumed."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.processes import started_into_files

_END_SECONDS: Final = 60
_TOLD_MAX: Final = 3_000


class Program(NamedTuple):
    """A member program; it gets the server, the topic, the group and its name as arguments."""

    name: str
    command: Sequence[str]
    is_native: bool = False
    """Whether it speaks to the native port."""


def python_program(module: str, *, is_native: bool = False) -> Program:
    """A program of ``tests.members.programs``."""
    command = [sys.executable, "-m", f"tests.members.programs.{module}"]
    return Program(module.removesuffix("_member").replace("_", "-"), command, is_native)


class Worker:
    """A running member. What it tells goes to ``NAME.jsonl``, what it complains of to ``NAME.err``."""

    def __init__(self, folder: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.stopped_at: float | None = None
        self.is_late = False
        self._errors = folder / f"{name}.err"
        self._process = started_into_files(command, folder / f"{name}.jsonl", self._errors)

    def check(self) -> None:
        """It runs: a member ends by being killed alone."""
        code = self._process.poll()
        told = self._errors.read_text(encoding="utf-8", errors="replace")[-_TOLD_MAX:]
        assert code is None, f"{self.name} ended with {code}: {told}"

    def kill(self) -> None:
        """SIGKILL, also where it is stopped."""
        self._process.kill()
        self._process.wait(_END_SECONDS)

    def stop(self, *, is_late: bool) -> None:
        """SIGSTOP: it does nothing more, and its connections stay open. ``is_late``: as in `Step`."""
        self._process.send_signal(signal.SIGSTOP)
        self.stopped_at, self.is_late = time.monotonic(), is_late

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        self.stopped_at = None


class Crew:
    """The members of all groups: a program has its number in its group, and another process each time it starts."""

    def __init__(
        self, folder: Path, groups: Mapping[str, Sequence[Program]], topic: str, native: str, kafka: str
    ) -> None:
        self.workers: dict[tuple[str, int], Worker] = {}
        self._folder = folder
        self._groups = groups
        self._topic = topic
        self._servers = (kafka, native)
        self._started = 0

    def start(self, group: str, number: int) -> None:
        """Start this member, or another process in its place."""
        program = self._groups[group][number]
        self._started += 1
        name = f"{group}-{number}-{program.name}-{self._started}"
        command = [*program.command, self._servers[program.is_native], self._topic, group, name]
        self.workers[group, number] = Worker(self._folder, name, command)

    def start_all(self) -> None:
        """Start all members of all groups."""
        for group, programs in self._groups.items():
            for number in range(len(programs)):
                self.start(group, number)

    def of(self, group: str) -> list[Worker]:
        """The members of a group that run, or are stopped."""
        return [worker for (its, _), worker in self.workers.items() if its == group]

    def check(self) -> None:
        """None has ended by itself."""
        for worker in self.workers.values():
            worker.check()

    def kill(self) -> None:
        """End them all."""
        for worker in self.workers.values():
            worker.kill()
