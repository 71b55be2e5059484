"""Servers of others, started and stopped by the scripts of a directory: ``DIRECTORY/kafka/kafka``, ``redis/redis``.

A script has three verbs. ``setup`` gets the server, ``start DATA_DIR PORT [KEY=VALUE...]`` returns when it serves,
``stop DATA_DIR`` when it is gone; keys are the server's own settings. It leaves the process id in ``DATA_DIR/pid`` and
the server's output in ``DATA_DIR/server.log``.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import BenchmarkError

SETUP_SECONDS_MAX: Final = 900
START_SECONDS_MAX: Final = 120


class PeerAbsentError(BenchmarkError):
    """A peer cannot be measured here; the text says why."""


@dataclass(frozen=True, slots=True)
class PeerServer:
    """A server that runs on ``port`` of 127.0.0.1 with everything in ``directory``."""

    name: str
    directory: Path
    port: int

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return int((self.directory / "pid").read_text())

    def log(self) -> str:
        """What it has said so far."""
        return (self.directory / "server.log").read_text(errors="replace")

    def search_log(self, pattern: str) -> str:
        """The first group of the first match, or ``unknown``."""
        found = re.search(pattern, self.log())
        return found[1] if found else "unknown"


@contextmanager
def script_server(
    script: Path, directory: Path, settings: Sequence[str] = (), *, needs: Sequence[str] = (), port: int = 0
) -> Iterator[PeerServer]:
    """A running server, on a free ``port`` if none is given.

    PeerAbsentError where it cannot be started: no script, a program it ``needs`` ..
    """
    if not script.is_file():
        raise PeerAbsentError(f"{script} is missing")
    name, script = script.name, script.absolute()
    for program in needs:
        if shutil.which(program) is None:
            raise PeerAbsentError(f"the program {program} is missing")
    _run(script, "setup", seconds=SETUP_SECONDS_MAX)
    port = port or free_ports()
    server = PeerServer(name, directory, port)
    try:
        _run(script, "start", str(directory), str(port), *settings, seconds=START_SECONDS_MAX)
        yield server
    finally:
        try:
            _run(script, "stop", str(directory), seconds=START_SECONDS_MAX)
        except PeerAbsentError:  # it never ran, or hangs
            with suppress(OSError, ValueError):
                os.kill(server.pid, signal.SIGKILL)


def _run(script: Path, *arguments: str, seconds: float) -> None:
    try:
        done = subprocess.run(
            [script, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerAbsentError(f"{script.name} {arguments[0]}: {error}") from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerAbsentError(f"{script.name} {arguments[0]} ended with {done.returncode}: {' | '.join(said[-3:])}")


def free_ports(count: int = 2) -> int:
    """A port that is free, and so are the next ones: some servers take several."""
    for _ in range(1000):
        with ExitStack() as stack, suppress(OSError):
            port = 0
            for number in range(count):
                sock = stack.enter_context(socket.socket())
                sock.bind(("127.0.0.1", port and port + number))
                port = port or int(sock.getsockname()[1])
            return port
    raise BenchmarkError(f"no {count} free ports in a row")
