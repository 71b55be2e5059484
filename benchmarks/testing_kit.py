"""``seglog.testing``: import, start and stop of a broker inside a test process, and the way to the first record."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.harness import REPOSITORY, Bench, Benchmark, BenchmarkError, Goal, Row, take_turns
from benchmarks.processes import environment, open_files, resident_bytes
from seglog.testing import Broker

BROKERS: Final = 100
BROKERS_QUICK: Final = 10

_DEPENDENCIES: Final = "import trio, msgpack, msgspec, structlog"
_PROGRAM: Final = """
import sys, time
began = time.perf_counter()
from seglog.testing import Broker
imported = time.perf_counter()
memory = sys.argv[1] == "memory"
with Broker(memory=memory) as broker:
    ready = time.perf_counter()
    broker.produce("first", b"one")
    assert broker.records("first")
    first = time.perf_counter()
    broker.create_topic("compacted", cleanup_policy="compact", segment_ms=60_000, min_cleanable_dirty_ratio=0.01)
    for number in range(10):
        broker.produce("compacted", b"%d" % number, key="k")
        broker.jump_clock(90)
    broker.create_topic("expiring", retention_ms=60_000, segment_ms=30_000)
    broker.produce("expiring", b"one")
    broker.jump_clock(86_400)
    assert not broker.records("expiring")
    assert len(broker.records("compacted")) < 10
    with broker.client.consumer("first", group="g", follow=False) as consumer:
        assert len(list(consumer)) == 1
    broker.crash()
    broker.start()
    assert broker.records("first")
    everything = time.perf_counter()
print(*[1000 * (to - since) for since, to in [
    (began, imported), (imported, ready), (began, first), (began, everything), (everything, time.perf_counter())
]])
"""


def run(bench: Bench) -> Iterator[Row]:
    """The import beside those of what it stands on; then brokers one after the other."""
    ours, theirs = take_turns(
        bench.rounds, lambda: _importing("from seglog.testing import Broker"), lambda: _importing(_DEPENDENCIES)
    )
    yield Row("import", "ms", ours, theirs, "trio, msgpack, msgspec, structlog", Goal("≤", 250, "value"))
    for memory in (False, True):
        where = "in memory" if memory else "on disk"
        runs = [_program("memory" if memory else "disk") for _ in range(bench.rounds)]
        yield Row(f"import to first record, {where}", "ms", [times[2] for times in runs])
        yield Row(f"and compaction, retention, a group, a crash, {where}", "ms", [times[3] for times in runs])
        yield from _many(bench, memory=memory, where=where)
    with Broker(process=True) as daemon:
        daemon.stop()
        yield Row("start, process=True", "ms", [_ms(daemon.restart) for _ in range(bench.rounds)])


def _many(bench: Bench, *, memory: bool, where: str) -> Iterator[Row]:
    """Brokers that start, take a record, and stop, one after the other in this process."""
    count = bench.pick(BROKERS, BROKERS_QUICK)
    starts, stops = [], []
    _life(memory=memory)  # what is imported or allocated once
    files, resident = open_files(os.getpid()), resident_bytes(os.getpid())
    for _ in range(count):
        started, stopped = _life(memory=memory)
        starts.append(started)
        stops.append(stopped)
    if open_files(os.getpid()) != files:
        raise BenchmarkError(f"{count} brokers left {open_files(os.getpid()) - files} files open")
    for name, times in (("start", starts), ("stop", stops)):
        yield Row(f"{name}, {where}, median of {count}", "ms", [statistics.median(times)], goal=Goal("≤", 50, "value"))
        yield Row(f"{name}, {where}, p95", "ms", [statistics.quantiles(times, n=20)[-1]])
    grown = (resident_bytes(os.getpid()) - resident) / 2**20
    yield Row(f"memory that {count} brokers left, {where}", "MiB", [grown])


def _life(*, memory: bool) -> tuple[float, float]:
    """Milliseconds of start and stop."""
    broker = Broker(memory=memory)
    started = _ms(broker.start)
    broker.produce("t", b"one")
    return started, _ms(broker.close)


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _importing(statement: str) -> float:
    code = f"import time; began = time.perf_counter(); {statement}; print(1000 * (time.perf_counter() - began))"
    return float(_python("-c", code)[0])


def _program(kind: str) -> list[float]:
    return [float(word) for word in _python("-c", _PROGRAM, kind)]


def _python(*arguments: str) -> Sequence[str]:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"a Python failed: {done.stderr[-2000:]}")
    return done.stdout.split()


BENCHMARK: Final = Benchmark("testing", "a broker inside a test process", "what it stands on", run)
