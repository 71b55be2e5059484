"""Imports, starts and memory at rest: small things that users meet first."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from benchmarks import unclean
from benchmarks.batches import batch_of
from benchmarks.harness import MIB, REPOSITORY, Bench, Benchmark, BenchmarkError, Goal, Row, take_turns
from benchmarks.processes import Daemon, environment, open_files, resident_bytes
from benchmarks.raw_client import connect, fill

PARTITIONS: Final = 1_000
LARGE_BYTES: Final = 2_500_000_000
_SETTLE_SECONDS: Final = 0.2
_READY_GOAL: Final = Goal("≤", 0.3, "value")
_PROGRAMS: Final = {
    "import seglog": "pass",
    "from seglog.cli import main; main(['--version'])": "pass",
    "from seglog import Client": "import msgpack, msgspec, socket, threading",
}
"""Each beside a Python that imports what it needs of others."""
_DEPENDENCIES: Final = "import sys, trio, msgpack, msgspec, structlog; print(flush=True); sys.stdin.read()"


class _Start(NamedTuple):
    """Seconds until ready, and what the daemon then holds while it has nothing to do."""

    ready_seconds: float
    resident_mib: float
    files: int


def run(bench: Bench) -> Iterator[Row]:
    """Imports first, then daemons on an empty, a wide and a large directory."""
    for program, needed in _PROGRAMS.items():
        programs = [partial(_wall, [sys.executable, "-c", each]) for each in (program, needed)]
        times, least = take_turns(10 * bench.rounds, *programs)
        goal = Goal("≤", 1.3, "ratio") if needed == "pass" else None
        yield Row(program.removeprefix("from seglog.cli import "), "ms", _ms(times), _ms(least), needed, goal)
    with bench.fresh_directory() as directory:
        empty = Daemon(bench, directory / "empty")
        wide = Daemon(bench, directory / "wide")
        large = Daemon(bench, directory / "large")
        try:
            yield from _prepare_empty(bench, empty)
            _prepare_wide(wide)
            yield from _at_rest(bench, empty, wide)
            if bench.quick:
                yield Row("seglogd ready, 2.5 GB", "s", note="left out of a quick run")
            else:
                _prepare_large(large)
                starts, bare = take_turns(bench.rounds, lambda: _start(large).ready_seconds, _python)
                yield _ready("seglogd ready, 2.5 GB, clean stop", starts, bare)
        finally:
            for running in (empty, wide, large):
                running.kill()
    with bench.fresh_directory() as directory:
        yield from unclean.rows(bench, directory)


def _prepare_empty(bench: Bench, running: Daemon) -> Iterator[Row]:
    running.directory.mkdir()
    running.start()
    with connect(running.port) as connection:
        for number in range(3):
            connection.create_topic(f"bench-start-{number}")
    listing = [sys.executable, "-m", "seglog.cli", "--server", running.address, "topic", "list"]
    times, bare = take_turns(bench.rounds, lambda: _wall(listing), _python)
    yield Row("seglog topic list", "ms", _ms(times), _ms(bare), "python -c pass", Goal("≤", 100, "value"))
    yield Row("seglogd ready, new directory", "s", [running.ready_seconds], goal=_READY_GOAL)
    running.stop()


def _prepare_wide(running: Daemon) -> None:
    running.directory.mkdir()
    running.start()
    with connect(running.port) as connection:
        connection.create_topic("bench-wide", PARTITIONS)
    running.stop()


def _prepare_large(running: Daemon) -> None:
    running.directory.mkdir()
    running.start()
    batch, _ = batch_of(64 * 1024)
    with connect(running.port) as connection:
        connection.create_topic("bench-large")
        fill(connection, "bench-large", iter([batch] * (LARGE_BYTES // len(batch))))
    running.stop()


def _at_rest(bench: Bench, empty: Daemon, wide: Daemon) -> Iterator[Row]:
    idle, full = take_turns(bench.rounds, lambda: _start(empty), lambda: _start(wide))
    python, imported = take_turns(bench.rounds, _python, _resident_dependencies)
    yield _ready("seglogd ready, 3 empty topics", [one.ready_seconds for one in idle], python)
    yield _ready("seglogd ready, 1,000 partitions", [one.ready_seconds for one in full], python)
    idle_mib, full_mib = [one.resident_mib for one in idle], [one.resident_mib for one in full]
    yield Row("resident memory, idle", "MiB", idle_mib, imported, "its imports", Goal("≤", 47, "value"))
    yield Row("resident memory, 1,000 partitions", "MiB", full_mib, idle_mib, "idle", Goal("≤", 57, "value"))
    more = [(wider - least) * 1024 / PARTITIONS for wider, least in zip(full_mib, idle_mib, strict=True)]
    yield Row("resident memory for each partition", "KiB", more)
    yield Row("open files, 1,000 partitions", "files", [one.files for one in full])


def _start(running: Daemon) -> _Start:
    """Start after a clean stop, look, and stop again."""
    running.start()
    try:
        time.sleep(_SETTLE_SECONDS)
        return _Start(running.ready_seconds, resident_bytes(running.pid) / MIB, open_files(running.pid))
    finally:
        running.stop()


def _ready(name: str, seconds: Sequence[float], bare: Sequence[float]) -> Row:
    return Row(name, "s", seconds, bare, "python -c pass", _READY_GOAL)


# --- Processes --------------------------------------------------------------------------------------------------------


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
    "imports, time until ready after a clean stop and after SIGKILL, memory at rest",
    "a Python that does nothing, or has only imported the dependencies",
    run,
)
