"""Appends with ack disk from many producers to many partitions, against a loop that shares the same fdatasyncs."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.bare import partition_of
from benchmarks.batches import batch_of, one_record
from benchmarks.harness import MB, MIB, Bench, Benchmark, Goal, Row, take_turns
from benchmarks.processes import Daemon, bare_server, daemon
from benchmarks.raw_client import append_frame, appends_per_second_of_many, connect, open_socket

GOAL = Goal("≥", 0.8, "ratio")


class _Case(NamedTuple):
    """``batch_bytes`` 0 is one record of 100 bytes, counted in acks; others are counted in MB."""

    producers: int
    partitions: int
    batch_bytes: int
    depth: int


_CASES = tuple(
    _Case(producers, partitions, batch_bytes, depth)
    for batch_bytes, depth in ((0, 1), (16 * 1024, 5))
    for partitions in (1, 200)
    for producers in (1, 16, 64)
)


def run(bench: Bench) -> Iterator[Row]:
    """One row a case. All write to the same two topics: what they leave there is on the disk, and slows nobody."""
    with daemon(bench) as running:
        with connect(running.port) as admin:
            for partitions in {case.partitions for case in _CASES}:
                admin.create_topic(_topic(partitions), partitions)
        for case in _CASES:
            yield _measure(bench, case, running)


def _topic(partitions: int) -> str:
    return f"bench-durable-{partitions}"


def _measure(bench: Bench, case: _Case, running: Daemon) -> Row:
    batch = one_record() if not case.batch_bytes else batch_of(case.batch_bytes)[0]
    by_partition = [append_frame(_topic(case.partitions), [batch], "disk", number) for number in range(case.partitions)]
    frames = [
        [by_partition[partition_of(producer, number, case.partitions)] for number in range(case.partitions)]
        for producer in range(case.producers)
    ]
    seconds, bytes_max = bench.pick(1.0, 0.1), bench.pick(64, 8) * MIB

    def measure(port: int, *, hello: bool) -> float:
        with ExitStack() as stack:
            if hello:
                socks = [stack.enter_context(connect(port)).sock for _ in frames]
            else:
                socks = [stack.enter_context(open_socket(port)) for _ in frames]
            return appends_per_second_of_many(socks, frames, depth=case.depth, seconds=seconds, bytes_max=bytes_max)

    with (
        bench.fresh_directory() as directory,
        bare_server("syncs", "--files", str(case.partitions), str(directory)) as port,
    ):
        ours_rates, bare_rates = take_turns(
            bench.rounds, lambda: measure(running.port, hello=True), lambda: measure(port, hello=False)
        )
    scale, unit = (1.0, "acks/s") if not case.batch_bytes else (len(batch) / MB, "MB/s")
    what = "100 B" if not case.batch_bytes else f"{case.batch_bytes // 1024} KiB, {case.depth} deep"
    return Row(
        f"{what}, {case.producers} producers, {case.partitions} partitions",
        unit,
        [rate * scale for rate in ours_rates],
        [rate * scale for rate in bare_rates],
        "write+shared sync",
        GOAL if case.producers == 16 else None,
    )


BENCHMARK = Benchmark(
    "durable",
    "many producers, ack disk, ready-made batches, replies counted",
    "a process that receives, writes, syncs all written files at once, and answers",
    run,
)
