"""The real thing: `seglogd` and `seglog` as processes of their own, on a free port of this machine."""

import json
import os
import pty
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seglog_broker.storage.io import filenames
from tests.soundness import assert_left_sound
from tests.support import REPOSITORY


def _home(package: str) -> str:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parents[1])


PACKAGES = os.pathsep.join(dict.fromkeys(map(_home, ("seglog_broker", "seglog_protocol", "seglog"))))
"""Where the packages under test are: in this checkout, or where a wheel of it is installed."""
PATIENCE_SECONDS = 600
"""Before a test gives up something that always happens, on the busiest machine."""
_STOP_SECONDS = 900  # a clean stop writes and syncs a file for each partition, and there may be ten thousand


def clean_environment(**more: str) -> dict[str, str]:
    """Ours, without what configures seglog, and with the packages under test. Kafka and HTTP have no ports."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    return (
        kept
        | {"PYTHONPATH": PACKAGES, "PYTHONUNBUFFERED": "1", "SEGLOG_LISTENERS": "", "SEGLOG_HTTP_LISTEN": ""}
        | more
    )


def started_into_files(command: Sequence[str], output: Path, errors: Path) -> "subprocess.Popen[bytes]":
    """A process with the packages under test, whose stdout and stderr go to two new files."""
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )


def signalled_at_import(folder: Path, module: str, number: signal.Signals) -> dict[str, str]:
    """An environment in which every Python process sends itself a signal when it begins to import ``module``.

    It says ``sent`` on stderr before. ``folder`` is where the hook that does so is written.
    """
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.write(2, b'sent\\n')\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n",
        encoding="utf-8",
    )
    return clean_environment(PYTHONPATH=f"{folder}{os.pathsep}{PACKAGES}")


SEGLOGD = (sys.executable, "-W", "error", "-m", "seglog_broker")
"""The beginning of a command line."""


def finished(
    command: Sequence[str | Path], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, without input, in a clean environment with ``more`` variables if none is given."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment(**more) if environment is None else environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def seglogd(*arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `seglogd` to its end."""
    return finished([*SEGLOGD, *arguments], environment=clean_environment(**variables))


def start_daemon(
    folder: Path,
    stderr: int,
    *arguments: str,
    under: Sequence[str] = (),
    stdin: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """A daemon on any free port that logs JSON to ``stderr``; ``under`` as for `Daemon`, in a session of its own."""
    command = [*under, *SEGLOGD, "--data", str(folder), "--listen", "127.0.0.1:0", "--log-format", "json"]
    return subprocess.Popen(
        [*command, *arguments],
        env=clean_environment(**(variables or {})),
        stdin=stdin,
        stderr=stderr,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for background work. No test depends on how long that takes: only what never happens fails."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.02)


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """The process is gone afterwards."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


class Lines:
    """The log of a daemon as it comes out of a pipe, read only when it is asked for."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def until(self, event: str) -> list[dict[str, Any]]:
        """Every line up to the first of this event."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["event"] != event:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                found.append(json.loads(line))
                continue
            readable, _, _ = select.select([self.descriptor], [], [], PATIENCE_SECONDS)
            data = os.read(self.descriptor, 1 << 16) if readable else b""
            assert data, f"no {event} behind {found}"
            self._rest += data
        return found


@contextmanager
def watched(
    folder: Path, *arguments: str, **how: Any
) -> Iterator[tuple["subprocess.Popen[bytes]", Lines, list[dict[str, Any]]]]:
    """A daemon that serves, its log from then on, and what it has logged so far; ``how`` as for ``start_daemon``."""
    process = start_daemon(folder, subprocess.PIPE, *arguments, **how)
    assert process.stderr is not None
    with ended(process):
        lines = Lines(process.stderr.fileno())
        yield process, lines, lines.until("broker_ready")


def port_of(ready: dict[str, Any]) -> int:
    """The port that a daemon listens on, from its line ``broker_ready``."""
    return int(ready["listen"].rsplit(":", 1)[1])


class Daemon:
    """A running `seglogd` on ``directory``; restarted, it keeps its port, so that clients find it again.

    ``under`` is a command that becomes the daemon, given as its arguments: a limit, a namespace.
    """

    def __init__(self, directory: Path, *arguments: str, under: Sequence[str] = ()) -> None:
        self.directory = directory
        self.arguments = arguments
        self.under = under
        self.is_hurt = False  # a test has damaged what it keeps
        self.port = 0
        self.kafka_port = 0  # the first of ``listeners``, where there are some
        self.http_port = 0  # where there is one
        self.process: subprocess.Popen[bytes] | None = None
        self.logged: list[dict[str, Any]] = []
        self._log = directory.parent / f"{directory.name}.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it serves."""
        self._log.unlink(missing_ok=True)
        with self._log.open("a") as log:  # a test may write into it
            process = self.process = subprocess.Popen(
                [
                    *self.under,
                    *(sys.executable, "-m", "seglog_broker", "--data", str(self.directory)),
                    *("--listen", f"127.0.0.1:{self.port}", "--log-format", "json", *self.arguments),
                ],
                env=clean_environment(),
                stderr=log,
            )
        with self._log.open() as lines:
            while True:
                for line in lines:
                    event = json.loads(line)
                    self.logged.append(event)
                    if event["event"] == "broker_ready":
                        self.port = int(event["listen"].rsplit(":", 1)[1])
                        if "kafka" in event:
                            self.kafka_port = int(event["kafka"].partition(",")[0].rsplit(":", 1)[1])
                        if "http" in event:
                            self.http_port = int(event["http"].partition(",")[0].rsplit(":", 1)[1])
                        return
                try:
                    code = process.wait(0.01)
                except subprocess.TimeoutExpired:
                    continue
                raise AssertionError(f"seglogd ended with {code}: {self._log.read_text()}")

    def stop(self) -> int:
        """SIGTERM, and its exit code. What it leaves in order must pass a check, unless it ``is_hurt``."""
        code = self._end(signal.SIGTERM)
        if code == 0 and not self.is_hurt and (self.directory / filenames.CLEAN_SHUTDOWN_FILE).exists():
            assert_left_sound(self.directory, self.arguments)
        return code

    def kill(self) -> None:
        """SIGKILL: the process is gone between two instructions."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(_STOP_SECONDS)
        self.process = None
        return code

    def state(self) -> str:
        """Whether it runs, and its last lines: what a failed test needs to tell."""
        code = None if self.process is None else self.process.poll()
        told = "was ended by the test" if self.process is None else "runs" if code is None else f"ended with {code}"
        return f"seglogd {told}; its log ends with:\n{self.log_text()[-4000:]}"

    def log_text(self) -> str:
        """What it has logged since its last start."""
        return self._log.read_text()


@contextmanager
def daemon(directory: Path, *arguments: str, under: Sequence[str] = ()) -> Iterator[Daemon]:
    """A daemon that is ready; gone afterwards."""
    running = Daemon(directory, *arguments, under=under)
    running.start()
    try:
        yield running
    except BaseException as error:
        error.add_note(running.state())
        raise
    finally:
        if running.process is not None:
            running.kill()


@contextmanager
def kafka_daemon(directory: Path, *settings: str) -> Iterator[Daemon]:
    """The same with a Kafka listener, whose port it also keeps when it is started again, and more ``settings``."""
    listener, more = "listeners=PLAINTEXT://127.0.0.1:", [flag for setting in settings for flag in ("--set", setting)]
    with daemon(directory, "--set", f"{listener}0", *more) as running:
        running.arguments = ("--set", f"{listener}{running.kafka_port}", *more)
        yield running


def copy_data(directory: Path, copy: Path) -> None:
    """Copy what a daemon keeps in its directory. The socket at which it is asked for snapshots cannot be copied."""
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns(filenames.BACKUP_SOCKET))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free, and so is the next one.

    They lie below those that the kernel gives to connections that go out: one of these would take a port that a server
    is to listen on later, as when its neighbours in a cluster try to reach it before it is there.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_700)  # of no seed, which tests that run side by side may share
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


def seglog_command(server: str, *arguments: str) -> list[str]:
    """The command line of a `seglog` that speaks to ``server``."""
    return [sys.executable, "-m", "seglog.cli", "--server", server, *arguments]


def seglog(server: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `seglog` to its end; its output is bytes, because values are."""
    return subprocess.run(
        seglog_command(server, *arguments),
        input=stdin,
        capture_output=True,
        env=clean_environment(),
        timeout=120,
        check=False,
    )


def on_terminal(command: Sequence[str], *, columns: int = 80, **variables: str) -> tuple[int, str]:
    """Run a command on a terminal of its own: exit code, and what it wrote to standard output and standard error."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, columns))
    inherited = {k: v for k, v in clean_environment().items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    environment = inherited | {"TERM": "xterm"} | variables
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
        os.close(its)
        shown = b""
        with suppress(OSError):  # EIO: it has ended
            while data := screen.read(65536):
                shown += data
    return process.wait(PATIENCE_SECONDS), shown.decode(errors="backslashreplace").replace("\r\n", "\n")


def seglog_json(server: str, *arguments: str) -> Any:
    """What `seglog … --json` prints, which must succeed."""
    done = seglog(server, *arguments, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def workers(kind: str, parent: int | None = None) -> list[int]:
    """Process ids of the children of a process, this one unless another is named, that are workers of a kind."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid() if parent is None else parent)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if f"seglog_broker.workers {kind}" in line]


def worker(kind: str) -> "subprocess.Popen[bytes]":
    """A process of the broker's that works beside it, without a broker."""
    return subprocess.Popen(
        [sys.executable, "-m", "seglog_broker.workers", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
    )


def answer_to(process: "subprocess.Popen[bytes]", job: bytes) -> Any:
    """What a worker says next, given a job."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(job)
    process.stdin.flush()
    return json.loads(process.stdout.readline())
