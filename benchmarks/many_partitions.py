"""Many partitions: appends that go round 1,000 of them, and fetches from 64 at once, beside a real Kafka."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.batches import batch_of, one_record
from benchmarks.group_wire import frame, real_kafka
from benchmarks.harness import MIB, Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.jobs import LoadProcess, exchange_job, flood_job, load_process
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.servers import PeerServer
from benchmarks.peers.sides import run_beside
from benchmarks.raw_client import append_frame, connect, encode, fetch_frame
from seglog_protocol.kafka import messages
from seglog_protocol.messages import HelloRequest

TOPIC: Final = "bench-partitions"
FIRST: Final = 256
"""Numbers from here to 65,535 are equally long in msgpack, as the load process wants its requests."""

DEPTH: Final = 64
FETCHED: Final = 64
FETCHED_BYTES: Final = 128 * 1024
_BATCH_BYTES: Final = 16 * 1024
_GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))
_READY_SECONDS_MAX: Final = 60
_PRODUCE, _FETCH = 9, 11
"""Versions."""


class Measured(NamedTuple):
    """Of one side in one round."""

    per_second: float
    server_cpu_us: float
    """Processor time of the server for each request."""


class _Side(NamedTuple):
    """A way to a server, by the requests that it takes."""

    pid: int
    port: int
    greeting: bytes
    append: Callable[[int, bytes], bytes]
    """To a partition."""
    fetch: bytes
    """From FETCHED partitions at once, FETCHED_BYTES each."""


def native_append_frame(number: int, batch: bytes) -> bytes:
    """Append to one partition, ack os."""
    return append_frame(TOPIC, [batch], "os", number)


def kafka_append_frame(number: int, batch: bytes) -> bytes:
    """Produce to one partition, acks=1."""
    cls = messages.ProduceRequest
    data = cls.PartitionProduceData(index=number, records=memoryview(batch))
    topic = cls.TopicProduceData(name=TOPIC, partition_data=[data])
    return frame(cls(acks=1, timeout_ms=30_000, topic_data=[topic]), _PRODUCE)


def kafka_fetch_frame() -> bytes:
    """Fetch from the beginning of FETCHED partitions."""
    cls = messages.FetchRequest
    asked = [
        cls.FetchPartition(
            partition=number,
            current_leader_epoch=-1,
            fetch_offset=0,
            log_start_offset=-1,
            partition_max_bytes=FETCHED_BYTES,
        )
        for number in range(FIRST, FIRST + FETCHED)
    ]
    topic = cls.FetchTopic(topic=TOPIC, partitions=asked)
    request = cls(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, session_id=0, session_epoch=-1, topics=[topic]
    )
    return frame(request, _FETCH)


def _native(opened: Door) -> _Side:
    numbers = range(FIRST, FIRST + FETCHED)
    return _Side(
        opened.pid,
        opened.running.port,
        _GREETING,
        native_append_frame,
        fetch_frame(TOPIC, 0, partitions=numbers, partition_bytes=FETCHED_BYTES),
    )


def _kafkas(server: Door | PeerServer) -> _Side:
    return _Side(server.pid, server.port, b"", kafka_append_frame, kafka_fetch_frame())


def _appends(load: LoadProcess, side: _Side, partitions: int, seconds: float) -> Measured:
    batch = one_record()
    frames = [side.append(number, batch) for number in range(FIRST, FIRST + partitions)]
    found = run_beside(
        load,
        flood_job(
            side.port, *frames, greeting=side.greeting, connections=1, depth=DEPTH, seconds=seconds, bytes_max=512 * MIB
        ),
        side.pid,
    )
    return Measured(found["answered"] / found["seconds"], found["server_cpu_seconds"] / found["answered"] * 1e6)


def _fetches(load: LoadProcess, side: _Side, seconds: float) -> Measured:
    found = run_beside(load, exchange_job(side.port, [side.fetch], greeting=side.greeting, seconds=seconds), side.pid)
    if not _is_whole(found):
        raise BenchmarkError(f"{found['answered']} fetches gave {found['received']} bytes")
    return Measured(found["answered"] / found["seconds"], found["server_cpu_seconds"] / found["answered"] * 1e6)


def _fill(load: LoadProcess, side: _Side) -> None:
    """Give the partitions what is fetched. Those of a new topic refuse appends for a while in Kafka."""
    batch, _ = batch_of(_BATCH_BYTES)
    frames = [side.append(number, batch) for number in range(FIRST, FIRST + FETCHED)]
    size = FETCHED * FETCHED_BYTES * 5 // 4
    job = flood_job(side.port, *frames, greeting=side.greeting, connections=1, depth=8, seconds=60, bytes_max=size)
    ends = time.monotonic() + _READY_SECONDS_MAX
    while True:
        load.run(job)
        found = load.run(exchange_job(side.port, [side.fetch], greeting=side.greeting, seconds=0))
        if _is_whole(found) or time.monotonic() > ends:
            return
        time.sleep(1)


def _is_whole(found: dict[str, Any]) -> bool:
    return bool(found["received"] >= found["answered"] * FETCHED * FETCHED_BYTES * 4 // 5)


def _run(bench: Bench) -> Iterator[Row]:
    partitions = bench.pick(1_000, 100)
    seconds = bench.pick(1.5, 0.1)
    with ExitStack() as stack:
        load = stack.enter_context(load_process("benchmarks.peers.load"))
        opened = stack.enter_context(daemon_with_door(bench))
        kafka = stack.enter_context(real_kafka(bench))
        with connect(opened.running.port) as native:
            native.create_topic(TOPIC, FIRST + partitions)
        sides = {"native": _native(opened), "Kafka's wire": _kafkas(opened)}
        _fill(load, sides["native"])
        if isinstance(kafka, PeerServer):
            with connect_kafka(kafka.port) as connection:
                connection.create_topic(TOPIC, partitions=FIRST + partitions)
            sides["Kafka"] = _kafkas(kafka)
            _fill(load, sides["Kafka"])
            for _ in range(bench.pick(4, 1)):  # Java compiles what runs often
                _appends(load, sides["Kafka"], partitions, seconds)
                _fetches(load, sides["Kafka"], seconds)
        fetches = {name: partial(_fetches, load, side, seconds) for name, side in sides.items()}
        yield from _rows(bench, f"fetch of {FETCHED} partitions, 128 KiB each", "fetches/s", fetches)
        for count in (1, partitions):
            appends = {name: partial(_appends, load, side, count, seconds) for name, side in sides.items()}
            what = f"{count:,} partition{'s in turn' if count > 1 else ''}, {DEPTH} deep"
            yield from _rows(bench, what, "appends/s", appends)
        if isinstance(kafka, str):
            yield Row("beside a real Kafka", "", note=kafka)


def _rows(bench: Bench, what: str, unit: str, sides: Mapping[str, Callable[[], Measured]]) -> Iterator[Row]:
    """Each way to seglog beside Kafka, or beside none."""
    found = dict(zip(sides, take_turns(bench.rounds, *sides.values()), strict=True))
    beside = found.pop("Kafka", [])
    name = "Kafka" if beside else ""
    for side, measured in found.items():
        rates, rates_beside = ([one.per_second for one in each] for each in (measured, beside))
        yield Row(f"{what}, {side}", unit, rates, rates_beside, name)
        times, times_beside = ([one.server_cpu_us for one in each] for each in (measured, beside))
        yield Row("  CPU", "µs", times, times_beside, name)


BENCHMARK: Final = Benchmark("partitions", "many partitions, ack os, one record of 100 bytes an append", "", _run, 600)
