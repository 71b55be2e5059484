"""The processes of a benchmark: the daemon under test, bare servers, workers; and what /proc says of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import REPOSITORY, Bench, BenchmarkError
from benchmarks.raw_client import connect

STOP_SECONDS_MAX: Final = 60
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_FOLDERS: Final = ("broker", "protocol", "clients", ".")


def environment(packages: Path | None = None) -> dict[str, str]:
    """Ours, without what configures seglog or has each process compile it.

    seglog's packages are those of this checkout, or of the folder ``packages``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEGLOG_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed seglog was compiled by pip: so a start is measured
    folders = [REPOSITORY / folder for folder in _FOLDERS]
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, folders if packages is None else (packages, *folders)))}


class Build(NamedTuple):
    """A Python, and the environment in which it finds the packages of one build of seglog."""

    python: str
    environment: dict[str, str]


def sources() -> Build:
    """This checkout, on this Python."""
    return Build(sys.executable, environment())


# --- The daemon -------------------------------------------------------------------------------------------------------


class Daemon:
    """A real ``python -m seglog_broker`` on ``directory``; can be stopped and started again."""

    def __init__(self, bench: Bench, directory: Path, *arguments: str, build: Build | None = None) -> None:
        """``build`` None: the sources."""
        self.directory = directory
        self.port = 0
        self.http_port = 0
        """Where ``arguments`` open one."""
        self.ready_seconds = 0.0
        """From starting the process until it said that it serves."""
        self._bench = bench
        self._arguments = arguments
        self._build = sources() if build is None else build
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Return when it serves. BenchmarkError with what it said when it does not come to that."""
        began = time.perf_counter()
        process = self._process = subprocess.Popen(
            [
                *(self._build.python, "-m", "seglog_broker", "--data", str(self.directory)),
                *("--listen", f"127.0.0.1:{self.port}", "--log-format", "json"),
                *("--set", "listeners=", "--set", "seglog.http.listen=", *self._arguments),
            ],
            env=self._build.environment,
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            event = self._judge(line)
            if event.get("event") == "broker_ready":
                self.ready_seconds = time.perf_counter() - began
                self.port = int(str(event["listen"]).rsplit(":", 1)[1])
                self.http_port = int(str(event.get("http", ":0")).rsplit(":", 1)[1])
                break
        else:
            raise BenchmarkError(f"seglogd ended with {process.wait()}: {''.join(said[-5:])}")
        self._reader = threading.Thread(target=self._read_log, args=(process,), daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """SIGTERM, and wait. What was wrong becomes a problem of the run."""
        process = self._process
        if process is None:
            return
        self._note_longest_turn()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._bench.report(f"seglogd did not stop within {STOP_SECONDS_MAX} s of SIGTERM")
            self.kill()
            return
        if code != 0:
            self._bench.report(f"seglogd ended with exit code {code}")
        self._forget(process)

    def kill(self) -> None:
        """SIGKILL, for the end of a benchmark that failed."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            self._forget(process)

    def _forget(self, process: subprocess.Popen[str]) -> None:
        if self._reader is not None:
            self._reader.join(STOP_SECONDS_MAX)
        assert process.stderr is not None
        process.stderr.close()
        self._process = self._reader = None

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._judge(line)

    def _judge(self, line: str) -> dict[str, Any]:
        """The event of a line of the daemon's log; errors are kept."""
        try:
            event = json.loads(line)
        except ValueError:
            event = {"event": line.strip(), "level": "error"}
        if not isinstance(event, dict) or event.get("level") in {"error", "critical"}:
            self._bench.report(f"seglogd logged {line.strip()[:300]}")
        return event if isinstance(event, dict) else {}

    def _note_longest_turn(self) -> None:
        try:
            with connect(self.port) as connection:
                turn = connection.longest_turn_seconds()
        except (OSError, BenchmarkError) as error:
            self._bench.report(f"the metrics of seglogd could not be read: {error}")
            return
        self._bench.stalls[self._bench.group] = max(self._bench.stalls.get(self._bench.group, 0.0), turn)


@contextmanager
def daemon(bench: Bench, *arguments: str, build: Build | None = None) -> Iterator[Daemon]:
    """A daemon on a directory of its own that is ready, stopped in good order afterwards."""
    with bench.fresh_directory() as directory:
        running = Daemon(bench, directory / "data", *arguments, build=build)
        running.directory.mkdir()
        running.start()
        try:
            yield running
            running.stop()
        finally:
            running.kill()


# --- Bare servers and workers -----------------------------------------------------------------------------------------


@contextmanager
def bare_server(*arguments: str) -> Iterator[int]:
    """A bare loop in a process of its own; its port."""
    with worker("benchmarks.bare", *arguments) as process:
        assert process.stdout is not None
        text = process.stdout.readline()
        if not text:
            raise BenchmarkError(f"the bare server ended with {process.wait()}")
        yield int(text)


@contextmanager
def worker(
    module: str, *arguments: str, packages: Path | None = None, stdin: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """``python -m module`` with its output in a pipe; killed at the end if it still runs.

    ``packages``: see above; ``stdin`` is as in Popen.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment(packages),
        cwd=REPOSITORY,
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):  # what is left of a job for a process that has ended
                pipe.close()


def answer_of(process: subprocess.Popen[str]) -> Any:
    """The JSON a worker printed last; BenchmarkError when it failed."""
    output, _ = process.communicate()
    if process.returncode != 0 or not output.strip():
        raise BenchmarkError(f"{process.args!r} ended with {process.returncode}")
    return json.loads(output.strip().splitlines()[-1])


def run_worker(module: str, *arguments: str, packages: Path | None = None) -> Any:
    """Run a worker to its end; the JSON it printed."""
    with worker(module, *arguments, packages=packages) as process:
        return answer_of(process)


# --- /proc ------------------------------------------------------------------------------------------------------------


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """Resident memory of a process: VmRSS, or of it RssAnon or RssFile."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise BenchmarkError(f"/proc/{pid}/status has no {field}")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads; in steps of a clock tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def children(pid: int, part: str) -> list[int]:
    """Processes that a process has started, and in whose command this is."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if part in line]


def family_cpu_seconds() -> float:
    """User and system time of this process and of all that came of it, children that have ended and were awaited too.

    In steps of a clock tick (10 ms) for each process.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended meanwhile
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)] = int(fields[1])
            ticks[int(path.name)] = sum(int(field) for field in fields[11:15])
    ours = os.getpid()

    def is_family(pid: int) -> bool:
        while pid in parents and pid != ours:
            pid = parents[pid]
        return pid == ours

    return sum(ticks[pid] for pid in ticks if is_family(pid)) / _TICKS_PER_SECOND


def open_files(pid: int) -> int:
    """Descriptors of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
