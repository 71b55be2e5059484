"""What a client that appends at ack disk notices of backups beside it, to the same disk, one after the other.

Each backup is the first one in its place: it copies the whole log directory, as fast as it goes.
"""

import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.batches import batch_of, one_record
from benchmarks.cold import OTHER, others
from benchmarks.harness import MB, MIB, Bench, Benchmark, BenchmarkError, Row, latency_rows, take_turns
from benchmarks.processes import Daemon, daemon, worker
from benchmarks.raw_client import append_frame, connect, fill

TOPIC: Final = "bench-backed-up"
_SEGMENT_BYTES: Final = 64 * MIB
_PACE_SECONDS: Final = 0.005


def run(bench: Bench) -> Iterator[Row]:
    """Latency of appends with and without backups, and how fast a backup is."""
    size, seconds = bench.pick((512 * MIB, 10.0), (16 * MIB, 1.0))
    with bench.fresh_directory() as path, daemon(bench) as running, connect(running.port) as connection:
        connection.create_topic(TOPIC, segment_bytes=_SEGMENT_BYTES)
        connection.create_topic(OTHER)
        connection.ask_frame(append_frame(OTHER, [one_record()], "disk"))
        batch = batch_of(64 * 1024)[0]
        fill(connection, TOPIC, (batch for _ in range(size // len(batch))))
        taken: list[float] = []
        load = partial(_latencies, running, seconds)
        alone, beside = take_turns(bench.rounds, load, partial(_beside, load, running.directory, path, taken))
        yield from latency_rows("append at ack disk, backups beside", beside, alone, "no backup")
        yield Row("the backup beside them", "MB/s", [size / MB / one for one in taken])
        yield Row("the backup alone", "MB/s", [size / MB / _backup(running.directory, path / "alone")])
        yield Row("another one in the same place", "s", [_backup(running.directory, path / "alone")])


def _latencies(running: Daemon, seconds: float) -> list[float]:
    """Seconds from when an append was due until its answer."""
    with connect(running.port) as connection:
        times: list[float] = others(connection, time.perf_counter() + seconds, _PACE_SECONDS, "disk")["append"]
        return times


def _beside(load: partial[list[float]], data: Path, path: Path, taken: list[float]) -> list[float]:
    """The same beside backups, the seconds of which are noted; the load goes on until it was at least one."""
    ends = threading.Event()

    def back_up() -> None:
        while not ends.is_set():
            taken.append(_backup(data, path / f"beside-{len(taken)}"))

    before = len(taken)
    backups = threading.Thread(target=back_up)
    backups.start()
    try:
        times = load()
    finally:
        ends.set()
        backups.join()
    if len(taken) == before:
        raise BenchmarkError("no backup was taken")
    for place in path.glob("beside-*"):
        shutil.rmtree(place)
    return times


def _backup(data: Path, to: Path) -> float:
    """Take a backup; its seconds."""
    began = time.perf_counter()
    with worker("seglog_broker", "backup", str(data), "--to", str(to)) as process:
        output, _ = process.communicate()
    if process.returncode != 0:
        raise BenchmarkError(f"a backup ended with {process.returncode}: {output}")
    return time.perf_counter() - began


BENCHMARK = Benchmark(
    "beside-backup",
    "100 appends a second at ack disk beside backups of 512 MiB, one after the other",
    "no backup",
    run,
)
