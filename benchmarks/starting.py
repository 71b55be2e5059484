"""Imports, starts and memory at rest: small things that users meet first."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.batches import batch_of
from benchmarks.harness import MIB, REPOSITORY, Bench, Benchmark, BenchmarkError, Goal, Row, take_turns
from benchmarks.processes import Daemon, environment, open_files, resident_bytes
from benchmarks.raw_client import connect, fill

PARTITIONS: Final = 1_000
LARGE_BYTES: Final = 2_500_000_000
_READY_GOAL: Final = Goal("≤", 0.3, "value")
_DEPENDENCIES: Final = "import sys, trio, msgpack, structlog; print(flush=True); sys.stdin.read()"


def run(bench: Bench) -> Iterator[Row]:
    """Imports first, then daemons on an empty, a wide and a large directory."""
    modules = ("seglog.client", "seglog.cli", "seglog_broker.server", "trio")
    for module, times in zip(modules, take_turns(bench.rounds, *[_importing(m) for m in modules]), strict=True):
        yield Row(f"import {module}", "ms", times)
    with bench.fresh_directory() as directory:
        empty = Daemon(bench, directory / "empty")
        wide = Daemon(bench, directory / "wide")
        large = Daemon(bench, directory / "large")
        try:
            yield from _empty(bench, empty)
            yield from _wide(bench, wide, empty)
            if bench.quick:
                yield Row("seglogd ready, 2.5 GB", "s", note="left out of a quick run")
            else:
                yield from _large(bench, large)
        finally:
            for running in (empty, wide, large):
                running.kill()


def _empty(bench: Bench, running: Daemon) -> Iterator[Row]:
    running.directory.mkdir()
    running.start()
    fresh = running.ready_seconds
    with connect(running.port) as connection:
        for number in range(3):
            connection.create_topic(f"bench-start-{number}")
    listing = [sys.executable, "-m", "seglog.cli", "--server", running.address, "topic", "list"]
    times, bare = take_turns(bench.rounds, lambda: _wall(listing), _python)
    yield Row("seglog topic list", "ms", _ms(times), _ms(bare), "python -c pass", Goal("≤", 100, "value"))
    running.stop()
    yield Row("seglogd ready, new directory", "s", [fresh], goal=_READY_GOAL)
    yield _ready(bench, running, "seglogd ready, 3 empty topics")


def _wide(bench: Bench, wide: Daemon, empty: Daemon) -> Iterator[Row]:
    wide.directory.mkdir()
    wide.start()
    with connect(wide.port) as connection:
        connection.create_topic("bench-wide", PARTITIONS)
    wide.stop()
    yield _ready(bench, wide, "seglogd ready, 1,000 partitions")

    files: list[float] = []

    def resting(running: Daemon) -> float:
        running.start()
        try:
            time.sleep(0.2)
            if running is wide:
                files.append(open_files(running.pid))
            return resident_bytes(running.pid) / MIB
        finally:
            running.stop()

    idle, full, bare = take_turns(bench.rounds, lambda: resting(empty), lambda: resting(wide), _resident_dependencies)
    yield Row("resident memory, idle", "MiB", idle, bare, "its imports", Goal("≤", 47, "value"))
    yield Row("resident memory, 1,000 partitions", "MiB", full, idle, "idle", Goal("≤", 60, "value"))
    more = [(wide_one - idle_one) * 1024 / PARTITIONS for wide_one, idle_one in zip(full, idle, strict=True)]
    yield Row("resident memory for each partition", "KiB", more)
    yield Row("open files, 1,000 partitions", "files", files)


def _large(bench: Bench, running: Daemon) -> Iterator[Row]:
    running.directory.mkdir()
    running.start()
    batch, _ = batch_of(64 * 1024)
    with connect(running.port) as connection:
        connection.create_topic("bench-large")
        fill(connection, "bench-large", iter([batch] * (LARGE_BYTES // len(batch))))
    running.stop()
    yield _ready(bench, running, "seglogd ready, 2.5 GB, clean stop")


def _ready(bench: Bench, running: Daemon, name: str) -> Row:
    def start() -> float:
        running.start()
        running.stop()
        return running.ready_seconds

    times, bare = take_turns(bench.rounds, start, _python)
    return Row(name, "s", times, bare, "python -c pass", _READY_GOAL)


# --- Processes --------------------------------------------------------------------------------------------------------


def _importing(module: str) -> Callable[[], float]:
    """What ``-X importtime`` says of a module and all it imports, in ms."""

    def measure() -> float:
        command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
        done = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for line in reversed(done.stderr.splitlines()):
            columns = line.split("|")  # self, with what it imports, name
            if len(columns) == 3 and columns[2].strip() == module:
                return int(columns[1]) / 1000
        raise BenchmarkError(f"-X importtime said nothing of {module}")

    return measure


def _wall(command: Sequence[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-300:]}")
    return time.perf_counter() - began


def _python() -> float:
    return _wall([sys.executable, "-c", "pass"])


def _resident_dependencies() -> float:
    """MiB of a Python that has imported the daemon's dependencies and nothing of it."""
    with subprocess.Popen(
        [sys.executable, "-c", _DEPENDENCIES], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident_bytes(process.pid) / MIB


def _ms(seconds: Sequence[float]) -> list[float]:
    return [one * 1000 for one in seconds]


BENCHMARK = Benchmark(
    "starting",
    "imports, time until ready after a clean stop, memory at rest",
    "a Python that does nothing, or has only imported the dependencies",
    run,
)
