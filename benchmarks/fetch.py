"""Fetches of warm data over one connection, one at a time, the payload thrown away; against a sendfile loop."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.batches import batch_of
from benchmarks.harness import MB, MIB, Bench, Benchmark, BenchmarkError, Goal, Row, percentile, take_turns
from benchmarks.processes import Daemon, bare_server, daemon
from benchmarks.raw_client import (
    Connection,
    connect,
    exchange_seconds,
    fetch_frame,
    fetched_bytes_per_second,
    fill,
    open_socket,
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
    seconds = bench.pick(1.0, 0.15)

    def ours() -> float:
        with connect(running.port) as mine:
            return fetched_bytes_per_second(mine.sock, frames, seconds=seconds)

    # The bare loop sends the very same files, in pieces of the same size.
    paths = [str(running.directory / f"{topic}-{number}" / f"{0:020}.log") for number in range(case.partitions)]
    with bare_server("sendfile", "--chunk", str(chunk), *paths) as port:

        def bare() -> float:
            with open_socket(port) as sock:
                return fetched_bytes_per_second(sock, frames, seconds=seconds)

        ours_rates, bare_rates = take_turns(bench.rounds, ours, bare)
    return Row(
        case.name,
        "MB/s",
        [rate / MB for rate in ours_rates],
        [rate / MB for rate in bare_rates],
        "sendfile",
        Goal("≥", 0.7, "ratio"),
    )


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


def requests_through(
    connection: Connection, topic: str, partition_bytes: int, partitions: int = 1, *, batch_size: int, records: int
) -> tuple[Sequence[bytes], int]:
    """The fetches that lead once through a topic of equal batches, and the bytes of each answer for a partition."""
    numbers = range(partitions)
    end = connection.end_offset(topic)
    offset, frames, chunk = 0, [], 0
    while offset < end:
        frame = fetch_frame(topic, offset, partitions=numbers, partition_bytes=partition_bytes)
        header, _ = connection.ask_frame(frame)
        sizes = {item["size"] for item in header["partitions"]}
        size = min(sizes)
        if not size or len(sizes) > 1 or size % batch_size:
            raise BenchmarkError(f"a fetch of equal partitions at offset {offset} gave {sorted(sizes)} bytes")
        frames.append(frame)
        chunk = max(chunk, size)
        offset += size // batch_size * records
    return frames, chunk


BENCHMARK = Benchmark(
    "fetch",
    "one connection, one request at a time, warm data, payload thrown away",
    "a process that sends pieces of the same files with sendfile",
    run,
)
