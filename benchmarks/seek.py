"""Seeks in logs of 10^5, 10^6 and 10^7 records, warm: they should take the same time in all of them.

Through the daemon a seek by offset is a fetch of one 16 KiB batch, one by time an ``offsets`` request; beside the
smallest log stands an ``offsets`` request that seeks nothing, beside the larger ones the smallest. In process it is
``PartitionLog.read`` and ``find_timestamp`` on the very same files.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.batches import FIRST_TIMESTAMP, batch_of, dated
from benchmarks.harness import Bench, Benchmark, Goal, Row, percentile, take_turns
from benchmarks.processes import daemon
from benchmarks.raw_client import Connection, connect, exchange_seconds, fetch_frame, fill, time_frame
from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog

_BATCH_BYTES: Final = 16 * 1024
_STEP_MS: Final = 1
_SEGMENT_BYTES: Final = 2**31 - 1  # the largest there is: all records in one
_P99_GOAL: Final = Goal("≤", 1000, "value")  # µs
_PARTS: Final = (("p50", 0.5), ("p99", 0.99))


class _Log(NamedTuple):
    """``records`` are at least as many as asked for: batches are equal."""

    exponent: int
    topic: str
    records: int


def run(bench: Bench) -> Iterator[Row]:
    """By offset and by time, through the daemon and in process."""
    exponents = bench.pick((5, 6, 7), (5, 6))
    seeks = bench.pick(2_000, 200)
    with daemon(bench) as running:
        with connect(running.port) as connection:
            logs = [_build(connection, exponent) for exponent in exponents]
            yield from _through_daemon(bench, connection, logs, seeks)
        running.stop()
        yield from _in_process(bench, running.directory, logs, seeks)
    if len(exponents) < 3:
        yield Row("10^7 records", "µs", note="left out of a quick run")


def _build(connection: Connection, exponent: int) -> _Log:
    batch, records = batch_of(_BATCH_BYTES)
    count = -(-(10**exponent) // records)
    log = _Log(exponent, f"bench-seek-{exponent}", count * records)
    connection.create_topic(log.topic, segment_bytes=_SEGMENT_BYTES)
    fill(connection, log.topic, dated(batch, count, _STEP_MS))
    return log


def _offsets(log: _Log, count: int) -> Sequence[int]:
    source = random.Random(log.exponent)
    return [source.randrange(log.records) for _ in range(count)]


def _timestamps(log: _Log, count: int) -> Sequence[int]:
    # Records of a batch share a timestamp, so the last batch's is the largest there is.
    last = (log.records - 1) * _STEP_MS * 9 // 10
    source = random.Random(log.exponent)
    return [FIRST_TIMESTAMP + source.randrange(last) for _ in range(count)]


# --- Through the daemon -----------------------------------------------------------------------------------------------


def _through_daemon(bench: Bench, connection: Connection, logs: Sequence[_Log], seeks: int) -> Iterator[Row]:
    by_offset = [[fetch_frame(log.topic, at, partition_bytes=1) for at in _offsets(log, seeks)] for log in logs]
    by_time = [[time_frame(log.topic, at) for at in _timestamps(log, seeks)] for log in logs]
    nothing = [time_frame(logs[0].topic, None)] * seeks
    for kind, frames in (("offset", by_offset), ("time", by_time)):
        for checked in (nothing, *frames):  # answers are thrown away below: here an error would show
            connection.ask_frame(checked[0])
            connection.ask_frame(checked[-1])
        sides = [partial(exchange_seconds, connection.sock, one) for one in (nothing, *frames)]
        none, *found = take_turns(bench.rounds, *sides)
        yield from _rows(f"by {kind}, daemon", logs, found, none)


def _rows(
    what: str, logs: Sequence[_Log], found: Sequence[list[list[float]]], none: list[list[float]] | None
) -> Iterator[Row]:
    for log, times in zip(logs, found, strict=True):
        is_first = log is logs[0]
        beside = none if is_first else found[0]
        for part, share in _PARTS:
            yield Row(
                f"{what}, 10^{log.exponent}: {part}",
                "µs",
                [percentile(one, share) * 1e6 for one in times],
                [percentile(one, share) * 1e6 for one in beside or ()],
                "" if not beside else "no seek" if is_first else f"10^{logs[0].exponent}",
                _P99_GOAL if part == "p99" else None,
            )


# --- In process -------------------------------------------------------------------------------------------------------


def _in_process(bench: Bench, directory: Path, logs: Sequence[_Log], seeks: int) -> Iterator[Row]:
    fs = PosixFileSystem()
    handles = HandlePool(fs)
    opened = []
    for log in logs:
        path = str(directory / f"{log.topic}-0")
        opened.append(PartitionLog(load(fs, handles, SystemClock(), path, TopicConfig(), clean=True)))
    try:
        for kind, places, seek in (
            ("offset", [_offsets(log, seeks) for log in logs], seek_offset),
            ("time", [_timestamps(log, seeks) for log in logs], seek_time),
        ):
            sides = [
                partial(time_seeks, partial(seek, partition), where)
                for partition, where in zip(opened, places, strict=True)
            ]
            yield from _rows(f"by {kind}, in process", logs, take_turns(bench.rounds, *sides), None)
    finally:
        for partition in opened:
            partition.release()
        handles.close()


def seek_offset(log: PartitionLog, offset: int) -> None:
    """Find one batch by offset and let it go."""
    found = log.read(offset, 1)
    assert found is not None
    found.release()


def seek_time(log: PartitionLog, timestamp: int) -> None:
    """Find the first record from a time (ms) on."""
    assert log.find_timestamp(timestamp) is not None


def time_seeks(seek: Callable[[int], None], places: Sequence[int]) -> list[float]:
    """Seconds for each."""
    clock = time.perf_counter
    times = []
    for place in places:
        began = clock()
        seek(place)
        times.append(clock() - began)
    return times


BENCHMARK = Benchmark(
    "seek",
    "random seeks, warm, one segment, batches of 16 KiB",
    "an offsets request that seeks nothing; for the larger logs the smallest one",
    run,
)
