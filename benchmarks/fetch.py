"""Fetches of warm data over one connection, one at a time, the payload thrown away; against a sendfile loop."""

import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.batches import batch_of
from benchmarks.harness import MB, MIB, Bench, Benchmark, Goal, Row, percentile, take_turns
from benchmarks.peers.load import exchanges
from benchmarks.processes import Daemon, bare_server, daemon
from benchmarks.raw_client import (
    Connection,
    connect,
    exchange_seconds,
    fetch_frame,
    fill,
    open_socket,
    requests_through,
    time_frame,
)

TOPIC: Final = "bench-fetch"
_BATCH_BYTES: Final = 16 * 1024


class _Case(NamedTuple):
    name: str
    partitions: int
    partition_bytes: int


_CASES: Final = (
    _Case("one partition, 1 MiB a fetch", 1, MIB),
    _Case("one partition, 8 MiB a fetch", 1, 8 * MIB),
    _Case("64 partitions, 128 KiB each", 64, 128 * 1024),
)


def run(bench: Bench) -> Iterator[Row]:
    """One row a case."""
    batch, records = batch_of(_BATCH_BYTES)
    with daemon(bench) as running, connect(running.port) as connection:
        for case in _CASES:
            count = bench.pick(1024, 64) * MIB // case.partitions // len(batch)
            topic = f"{TOPIC}-{case.partitions}"
            if case.partitions > 1 or case.partition_bytes == MIB:
                connection.create_topic(topic, case.partitions)
                for number in range(case.partitions):
                    fill(connection, topic, iter([batch] * count), number)
            yield _measure(bench, case, running, connection, topic, batch_size=len(batch), records=records)
        yield _empty_answers(bench, connection, f"{TOPIC}-1")


def _measure(
    bench: Bench, case: _Case, running: Daemon, connection: Connection, topic: str, *, batch_size: int, records: int
) -> Row:
    frames, chunk = requests_through(
        connection, topic, case.partition_bytes, case.partitions, batch_size=batch_size, records=records
    )

    def rate(sock: socket.socket) -> float:
        times, received = exchanges(sock, frames, bench.pick(1.0, 0.15))
        return received / sum(times) / MB

    def ours() -> float:
        with connect(running.port) as mine:
            return rate(mine.sock)

    # The bare loop sends the very same files, in pieces of the same size.
    paths = [str(running.directory / f"{topic}-{number}" / f"{0:020}.log") for number in range(case.partitions)]
    with bare_server("sendfile", "--chunk", str(chunk), *paths) as port:

        def bare() -> float:
            with open_socket(port) as sock:
                return rate(sock)

        found, beside = take_turns(bench.rounds, ours, bare)
    return Row(case.name, "MB/s", found, beside, "sendfile", Goal("≥", 0.7, "ratio"))


def _empty_answers(bench: Bench, connection: Connection, topic: str) -> Row:
    """How long it takes to be told that there is nothing new, which is what a consumer that has caught up asks."""
    count = bench.pick(20, 5)
    at_the_end = [fetch_frame(topic, connection.end_offset(topic), partition_bytes=MIB)] * count
    ends = [time_frame(topic, None)] * count
    empty, other = take_turns(
        bench.rounds,
        lambda: percentile(exchange_seconds(connection.sock, at_the_end), 0.5) * 1e6,
        lambda: percentile(exchange_seconds(connection.sock, ends), 0.5) * 1e6,
    )
    return Row("at the end, nothing there: p50", "µs", empty, other, "offsets request")


BENCHMARK = Benchmark(
    "fetch",
    "one connection, one request at a time, warm data, payload thrown away",
    "a process that sends pieces of the same files with sendfile",
    run,
)
