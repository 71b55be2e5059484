"""A continuous backup: what it costs beside none, what it writes, and how soon a broker serves again from it.

Appends come at a fixed rate, one at a time, at ack disk; one that is late counts from when it was due. Two daemons take
turns, of which one has a backup in a directory of the same disk; the other is idle meanwhile, and so is its backup.
"""

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import seglog
from benchmarks.batches import batch_of, dated
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Goal, Row, latency_rows, take_turns
from benchmarks.processes import Daemon, children, cpu_seconds, daemon
from benchmarks.raw_client import append_frame, connect, fill
from seglog_protocol.messages import BackupStatus

TOPIC: Final = "backed-up"
CASES: Final = {"20 MB/s, 256 KiB each": (260_000, 77), "1 KiB, 100/s": (1_000, 100)}
"""Bytes of a batch, and batches a second."""
_PATIENCE_SECONDS: Final = 600
_FETCHED_SECONDS: Final = 3_600
_AGENT: Final = "seglog_broker.backup.agent"


class Round(NamedTuple):
    """What a side did in a round: seconds of each append, and microseconds of processor time an append."""

    latencies: list[float]
    broker_us: float
    agent_us: float


def _status(running: Daemon) -> BackupStatus:
    with seglog.connect(running.address) as client:
        found = client.ping().backup
    assert found is not None
    return found


def wait_until_backed_up(running: Daemon) -> None:
    """Return when nothing would be lost. Raises BenchmarkError."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := _status(running)).published_ms is None or found.lost_records:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the backup does not come to an end: {found.reason}")
        time.sleep(0.1)


def _round(running: Daemon, topic: str, size: int, rate: int, seconds: float) -> Round:
    frame = append_frame(topic, [batch_of(size)[0]], "disk")
    pids = [running.pid, *children(running.pid, _AGENT)]
    with connect(running.port) as connection:
        connection.ask_frame(frame)
        before = [cpu_seconds(pid) for pid in pids]
        found = connection.ask_at_rate(frame, rate, seconds)
        used = [cpu_seconds(running.pid)]
        if len(pids) > 1:  # what it has yet to send is its work, too; being asked is none of the broker's
            wait_until_backed_up(running)
        used += map(cpu_seconds, pids[1:])
    broker, *beside = ((after - past) / len(found) * 1e6 for after, past in zip(used, before, strict=True))
    return Round(found, broker, sum(beside))


def run(bench: Bench) -> Iterator[Row]:
    """Rows of each case; then what was written, and the way back."""
    seconds = bench.pick(10.0, 1.0)
    with bench.fresh_directory() as folder, daemon(bench) as without:
        backed_up = Daemon(bench, folder / "data", "--set", f"seglog.backup.to={folder / 'backup'}")
        backed_up.directory.mkdir()
        backed_up.start()
        try:
            for running in (without, backed_up):
                with connect(running.port) as connection:
                    for number in range(len(CASES)):
                        connection.create_topic(f"{TOPIC}-{number}")
            for number, (name, (size, rate)) in enumerate(CASES.items()):
                wait_until_backed_up(backed_up)
                written = _status(backed_up).written_bytes
                sides = (
                    partial(_round, running, f"{TOPIC}-{number}", size, rate, seconds)
                    for running in (backed_up, without)
                )
                ours, theirs = take_turns(bench.rounds, *sides)
                yield from latency_rows(
                    f"{name}, disk", [each.latencies for each in ours], [each.latencies for each in theirs], "without"
                )
                yield Row(
                    f"{name}: broker's processor time an append",
                    "µs",
                    [each.broker_us for each in ours],
                    [each.broker_us for each in theirs],
                    "without",
                    Goal("≤", 1.1, "ratio"),
                )
                yield Row(f"{name}: the process beside it, an append", "µs", [each.agent_us for each in ours])
                appended = sum(len(each.latencies) for each in ours) * len(batch_of(size)[0])
                yield Row(
                    f"{name}: written a byte appended", "", [(_status(backed_up).written_bytes - written) / appended]
                )
            backed_up.stop()
        finally:
            backed_up.kill()
    with bench.fresh_directory() as folder:
        yield from _way_back(bench, folder)


def _way_back(bench: Bench, folder: Path) -> Iterator[Row]:
    """From the loss of a directory until a broker serves again, in each way."""
    size = int(bench.pick(bench.backup_gigabytes, 0.05) * 1e9)
    place = folder / "backup"
    running = Daemon(bench, folder / "data", "--set", f"seglog.backup.to={place}")
    running.directory.mkdir()
    running.start()
    try:
        template, records = batch_of(1_000_000)
        with connect(running.port) as connection:
            connection.create_topic(TOPIC)
            began = time.perf_counter()
            fill(connection, TOPIC, dated(template, size // len(template), step_ms=0))  # none in the future
            wait_until_backed_up(running)
        name = f"{size / 1e9:g} GB"
        yield Row(f"{name} appended and backed up", "MB/s", [size / (time.perf_counter() - began) / 1e6])
        yield Row(f"{name}: written a byte appended", "", [_status(running).written_bytes / size])
    finally:
        running.kill()
    shutil.rmtree(running.directory)
    again = Daemon(bench, folder / "again", "--from", str(place))
    again.directory.mkdir()
    began = time.perf_counter()
    again.start()
    try:
        yield Row(f"{name}: seglogd --from serves after", "s", [again.ready_seconds])
        for what, start in (("the newest record", size // len(template) * records - 1), ("the oldest record", 0)):
            with seglog.connect(again.address) as client, client.consumer(TOPIC, start=start, follow=True) as consumer:
                next(iter(consumer))
            yield Row(f"{name}: {what} was read after", "s", [time.perf_counter() - began])
        deadline = time.monotonic() + _FETCHED_SECONDS
        while any(again.directory.glob("*/*.awaited")):
            if time.monotonic() > deadline:
                raise BenchmarkError("segments are still awaited")
            time.sleep(0.2)
        yield Row(f"{name}: everything is there after", "s", [time.perf_counter() - began])
        again.stop()
    finally:
        again.kill()


BENCHMARK: Final = Benchmark(
    "backup", "a continuous backup in a directory, and the way back from it", "none", run, 7200
)
