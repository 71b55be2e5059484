"""Starts of one partition with many segments, beside a start with one: processor time and memory until it serves."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.batches import one_record
from benchmarks.harness import MIB, Bench, Goal, Row, take_turns
from benchmarks.processes import Daemon, cpu_seconds, resident_bytes
from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.record_batch import parse_header

COUNTS: Final = (100, 1_000, 10_000)
COUNTS_QUICK: Final = (100, 1_000)
_TOPIC: Final = "bench-segments"
_SEGMENT_BYTES: Final = 1024


class _Start(NamedTuple):
    cpu_seconds: float
    resident_mib: float
    listing_seconds: float  # of the partition's directory, by this process


def rows(bench: Bench, directory: Path) -> Iterator[Row]:
    """Each count after a clean stop, in turns with a partition of one segment."""
    one = _built(bench, directory, 1)
    for count in bench.pick(COUNTS, COUNTS_QUICK):
        many = _built(bench, directory, count)
        found, beside = take_turns(bench.rounds, partial(_start, many), partial(_start, one))
        name = f"seglogd ready, {count:,} segments"
        cpu, beside_cpu = [start.cpu_seconds for start in found], [start.cpu_seconds for start in beside]
        yield Row(f"{name}, processor time", "s", cpu, beside_cpu, "one segment", Goal("≤", 2, "ratio"))
        yield Row(f"{name}, listing alone", "s", [start.listing_seconds for start in found])
        yield Row(
            f"{name}, resident memory",
            "MiB",
            [start.resident_mib for start in found],
            [start.resident_mib for start in beside],
            "one segment",
        )


def _built(bench: Bench, directory: Path, count: int) -> Daemon:
    """A daemon, stopped, on a directory with one partition of so many segments."""
    path = directory / f"segments-{count}"
    build(path, count)
    return Daemon(bench, path)


def build(path: Path, count: int) -> None:
    """One partition of ``count`` small segments, stopped in good order."""
    config, _ = load_config(None, "", {}, [f"log.dir={path}", "seglog.disk.ballast.bytes=0"])
    log_directory = open_log_directory(PosixFileSystem(), SystemClock(), config, str(path))
    log_directory.topics.create_topic(_TOPIC, 1, {"segment.bytes": str(_SEGMENT_BYTES), "retention.ms": "-1"})
    log = log_directory.logs[_TOPIC, 0]
    batch = one_record()
    while len(log.segments) < count or not log.active.size:
        encoded = memoryview(bytearray(batch))
        log.append([encoded], [parse_header(encoded)])
    assert not log_directory.close()


def _start(running: Daemon) -> _Start:
    running.start()
    try:
        began = time.process_time()
        PosixFileSystem().list_directory(f"{running.directory}/{_TOPIC}-0")
        listing = time.process_time() - began
        return _Start(cpu_seconds(running.pid), resident_bytes(running.pid) / MIB, listing)
    finally:
        running.stop()
