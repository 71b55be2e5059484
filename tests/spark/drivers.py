"""Drivers of Spark as processes of their own, which can be killed with all that they started."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.processes import clean_environment
from tests.support import REPOSITORY, soak_seed

SHORT_LIVED = {
    "spark.ui.enabled": "false",
    # A JVM that lives for seconds does not earn back what its second compiler costs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""What a driver sets that starts soon and ends soon."""

ORIGIN = "array(struct('from' as key, cast(concat(partition, ' ', offset) as binary) as value)) as headers"
"""A header that says where a row comes from, in SQL."""

_PASSING = ("Python worker failed to connect back", "ConnectionLostError", "NotReachableError")
_OURS = "clients/seglog"
"""In every traceback that has a line of ours."""

GIVEN_UP_MAX = 5
"""How often what passes may come before it does not pass."""


class GivenUpError(Exception):
    """A driver ended over something that passes, and is started again, as whoever runs a stream would do.

    Spark gives a Python worker ten seconds to start, which on a busy machine may not do, and a task of a local driver
    one try, which may fall into the moments of a daemon that is killed twice in a row. And Spark may fail by itself:
    then nothing of ours is in what the driver said.
    """


def is_passing(said: str) -> bool:
    """Whether what ended a driver that said this is known to pass."""
    return any(reason in said for reason in _PASSING)


class Driver:
    """A module of this folder, running in a session of its own; ``log`` is for what it prints."""

    def __init__(self, module: str, *arguments: str, log: Path, **environment: str) -> None:
        self._log = log
        self._given_up = log.with_suffix(".given-up")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.spark.{module}", *arguments],
                cwd=REPOSITORY,
                env=clean_environment(**environment),
                start_new_session=True,
                stdout=output,
                stderr=output,
            )

    def watch(self, seconds: float) -> None:
        """Wait so long for its end, which would be bad: GivenUpError, or an AssertionError with what it said."""
        with suppress(subprocess.TimeoutExpired):
            self._ended(self._process.wait(seconds))
            raise AssertionError(f"the driver came to the end of its work: {self._said()}")

    def finish(self) -> None:
        """Wait for its good end; raises as ``watch`` does for another."""
        self._ended(self._process.wait())

    def _ended(self, code: int) -> None:
        said = self._said()
        if code and (is_passing(said) or _OURS not in said):
            print(f"given up: {said}")
            with self._given_up.open("a") as earlier:
                earlier.write("x")
            if self._given_up.stat().st_size <= GIVEN_UP_MAX:
                raise GivenUpError
        assert code == 0, said

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-50_000:]

    def command_lines(self) -> dict[int, str]:
        """Whatever it started, by process id."""
        return _command_lines(self._process.pid)

    def kill(self) -> bool:
        """SIGKILL to all of it; whether the driver was running until then."""
        return _kill(self._process)


def dice() -> random.Random:
    """Other choices in every run; the seed is printed, so that those of a failed one can be made again."""
    seed = soak_seed()
    print(f"seed {seed}")
    return random.Random(seed)


def _command_lines(session: int) -> dict[int, str]:
    """Of a session, by process id: JVMs and Python workers are in process groups of their own."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # it has just ended, or is no process
            state, *numbers = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(numbers[2]) == session:
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return found


def _kill(leader: "subprocess.Popen[bytes]") -> bool:
    while running := _command_lines(leader.pid):
        for process in running:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    return leader.wait() == -signal.SIGKILL


@contextmanager
def killed_in_the_end(leader: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """A process that leads a session of its own; gone afterwards, with all that it started."""
    try:
        yield leader
    finally:
        _kill(leader)


@contextmanager
def driver(module: str, *arguments: str, log: Path, **environment: str) -> Iterator[Driver]:
    """A driver that is running; gone afterwards."""
    started = Driver(module, *arguments, log=log, **environment)
    try:
        yield started
    finally:
        started.kill()


def newest(folder: Path) -> int:
    """The newest micro-batch in a folder of a checkpoint, ``offsets`` or ``commits``; -1 when there is none."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)
