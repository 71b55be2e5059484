"""Appends over one connection, against a socket sink that writes, and with ack disk one that also syncs."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.batches import batch_of, one_record
from benchmarks.harness import MB, MIB, Bench, Benchmark, Goal, Row, take_turns
from benchmarks.peers.load import flood
from benchmarks.peers.sides import answered_as_stored
from benchmarks.processes import Daemon, bare_server, daemon
from benchmarks.raw_client import append_frame, connect, open_socket
from seglog_protocol.messages import Ack

TOPIC = "bench-append"


class _Case(NamedTuple):
    """``batch_bytes`` 0 is one record of 100 bytes, counted in round trips; others are counted in MB."""

    name: str
    batch_bytes: int
    depth: int
    ack: Ack
    goal: Goal | None


_SMALL, _LARGE = Goal("≥", 0.5, "ratio"), Goal("≥", 0.7, "ratio")
_CASES = (
    _Case("100 B, depth 1, ack os", 0, 1, "os", _SMALL),
    _Case("100 B, 64 deep, ack os", 0, 64, "os", _SMALL),
    _Case("16 KiB batches, 5 deep, ack os", 16 * 1024, 5, "os", _LARGE),
    _Case("256 KiB batches, 5 deep, ack os", 256 * 1024, 5, "os", _LARGE),
    _Case("1 MiB batches, 5 deep, ack os", MIB, 5, "os", _LARGE),
    _Case("100 B, depth 1, ack disk", 0, 1, "disk", _SMALL),
    _Case("100 B, 64 deep, ack disk", 0, 64, "disk", _SMALL),
    _Case("16 KiB batches, 5 deep, ack disk", 16 * 1024, 5, "disk", _LARGE),
    _Case("256 KiB batches, 5 deep, ack disk", 256 * 1024, 5, "disk", _LARGE),
    _Case("1 MiB batches, 5 deep, ack disk", MIB, 5, "disk", _LARGE),
)


def run(bench: Bench) -> Iterator[Row]:
    """One row a case."""
    with bench.fresh_directory() as directory, daemon(bench) as running:
        for case in _CASES:
            yield _measure(bench, case, running, directory / "sink")


def _measure(bench: Bench, case: _Case, running: Daemon, sink: Path) -> Row:
    batch, records = batch_of(case.batch_bytes) if case.batch_bytes else (one_record(), 1)
    frame = append_frame(TOPIC, [batch], case.ack)
    scale, unit = (1.0, "trips/s") if not case.batch_bytes else (len(batch) / MB, "MB/s")
    seconds, bytes_max = bench.pick(1.0, 0.1), bench.pick(512, 64) * MIB
    loop = "write" if case.ack == "os" else "sync"

    def ours() -> float:
        with connect(running.port) as connection:
            connection.create_topic(TOPIC)
            answered, took = flood([connection.sock], [frame], case.depth, seconds, bytes_max)
            answered_as_stored("seglog", answered, records, connection.end_offset(TOPIC))
            connection.delete_topic(TOPIC)
        return answered / took * scale

    with bare_server(loop, str(sink)) as port:

        def bare() -> float:
            with open_socket(port) as sock:
                answered, took = flood([sock], [frame], case.depth, seconds, bytes_max)
            return answered / took * scale

        found, beside = take_turns(bench.rounds, ours, bare)
    return Row(case.name, unit, found, beside, "write" if case.ack == "os" else "write+fdatasync", case.goal)


BENCHMARK = Benchmark(
    "append",
    "one connection, ready-made batches, replies counted",
    "a process that receives, writes (and syncs once a read), and answers",
    run,
)
