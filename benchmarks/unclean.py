"""Starts with 5 GB on disk, after a clean stop and after SIGKILL: until ready, until somebody is served, until all are.

The 5 GB lie in active segments, so after the kill all of it has to be read: the worst that so much data can be.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.batches import batch_of, one_record
from benchmarks.harness import Bench, Goal, Row, take_turns
from benchmarks.processes import Daemon
from benchmarks.raw_client import append_frame, connect, encode, fetch_frame
from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.messages import MetricsRequest
from seglog_protocol.record_batch import parse_header

LARGE_BYTES: Final = 5_000_000_000
FREE_BYTES_MIN: Final = 12_000_000_000
_PARTITIONS: Final = 5
_LARGE: Final = "bench-large"
_UNTOUCHED: Final = "bench-untouched"
_BATCH_BYTES: Final = 256 * 1024
_READY_GOAL: Final = Goal("≤", 0.3, "value")
_LOOK_SECONDS: Final = 0.02
_FETCH_BYTES: Final = 4096


class _Start(NamedTuple):
    """Seconds from starting the process."""

    ready: float
    answered: float
    recovered: float


def rows(bench: Bench, directory: Path) -> Iterator[Row]:
    """Nothing of it where there is no room, or in a hurry."""
    free = shutil.disk_usage(directory).free
    if bench.quick or free < FREE_BYTES_MIN:
        note = "left out of a quick run" if bench.quick else f"left out: {free / 1e9:.0f} GB free, 12 GB are wanted"
        yield Row("seglogd ready, 5 GB", "s", note=note)
        return
    running = Daemon(bench, directory / "unclean")
    _build(running.directory)
    try:
        clean, killed = take_turns(bench.rounds, lambda: _start_clean(running), lambda: _start_killed(running))
    finally:
        running.kill()
    for name, unclean, stopped in (
        ("seglogd ready", [one.ready for one in killed], [one.ready for one in clean]),
        ("first answer from an untouched topic", [one.answered for one in killed], [one.answered for one in clean]),
    ):
        yield Row(f"{name}, 5 GB, SIGKILL", "s", unclean, stopped, "clean stop", _READY_GOAL)
    recovered = [one.recovered for one in killed]
    yield Row("all recovered, 5 GB, SIGKILL", "s", recovered)
    yield Row("recovery, 256 KiB batches", "MB/s", [LARGE_BYTES / 1e6 / seconds for seconds in recovered])


def _build(path: Path) -> None:
    config, _ = load_config(None, "", {}, [f"log.dir={path}"])
    directory = open_log_directory(PosixFileSystem(), SystemClock(), config, str(path))
    admin = directory.topics
    creation = admin.plan_creation([admin.new_topic(_UNTOUCHED, 1, {}), admin.new_topic(_LARGE, _PARTITIONS, {})])
    creation.run()
    admin.finish_creation(creation, None)
    small, large = memoryview(bytearray(one_record())), memoryview(bytearray(batch_of(_BATCH_BYTES)[0]))
    directory.logs[_UNTOUCHED, 0].append([small], [parse_header(small)])
    for number in range(LARGE_BYTES // len(large)):
        directory.logs[_LARGE, number % _PARTITIONS].append([large], [parse_header(large)])
    assert not directory.close()


def _start_clean(running: Daemon) -> _Start:
    try:
        return _start(running)
    finally:
        running.stop()


def _start_killed(running: Daemon) -> _Start:
    running.start()
    with connect(running.port) as connection:
        for partition in range(_PARTITIONS):
            connection.ask_frame(append_frame(_LARGE, [one_record()], "os", partition))
    running.kill()
    return _start_clean(running)


def _start(running: Daemon) -> _Start:
    began = time.perf_counter()
    running.start()
    with connect(running.port) as connection:
        connection.ask_frame(fetch_frame(_UNTOUCHED, 0, partition_bytes=_FETCH_BYTES))
        answered = time.perf_counter() - began
        metrics = encode(MetricsRequest())
        while connection.ask_frame(metrics)[0]["metrics"]["partitions_recovering"]:
            time.sleep(_LOOK_SECONDS)
    return _Start(running.ready_seconds, answered, time.perf_counter() - began)
