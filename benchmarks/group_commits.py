"""Commits of offsets, each committer one at a time: how many a second, beside a real Kafka in the same rounds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.group_wire import (
    KAFKA_DISK,
    KAFKA_OS,
    TOPIC,
    answers_in,
    commit_frame,
    pairs_of,
    prepare,
    real_kafka,
    set_flush,
)
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.kafka_frames import KafkaError
from benchmarks.peers.servers import PeerServer
from benchmarks.peers.sides import KafkaServer
from benchmarks.processes import cpu_seconds
from benchmarks.raw_client import connect, encode
from seglog_protocol.messages import CommitOffset, CommitOffsetsRequest, HelloRequest

COMMITTERS: Final = (1, 16, 64)
OFFSETS: Final = 50
"""The offsets that a committer commits, round and round."""


class Measured(NamedTuple):
    """Of one side in one round."""

    commits_per_second: float
    server_cpu_us: float
    """Processor time of the server for each commit."""


Side = Callable[[], Measured]


def _measure(pid: int, port: int, frames: Sequence[Sequence[bytes]], seconds: float, greeting: bytes = b"") -> Measured:
    cpu = cpu_seconds(pid)
    answered, elapsed = answers_in(port, frames, seconds, greeting=greeting)
    return Measured(answered / elapsed, (cpu_seconds(pid) - cpu) / answered * 1e6)


def measure_kafka(server: KafkaServer, committers: int, seconds: float) -> Measured:
    """Through Kafka's protocol. ``prepare_native`` or ``prepare_kafka`` comes before."""
    frames = [[commit_frame(group, offset) for offset in range(OFFSETS)] for group in _groups(committers)]
    return _measure(server.pid, server.port, frames, seconds)


def measure_native(opened: Door, committers: int, seconds: float) -> Measured:
    """Through the native protocol. ``prepare_native`` comes before."""
    return _measure(opened.pid, opened.running.port, _native_frames(committers), seconds, _GREETING)


def _measure_flushing(server: PeerServer, flush: bool, committers: int, seconds: float) -> Measured:
    set_flush(server, flush, _OFFSETS_TOPIC)
    return measure_kafka(server, committers, seconds)


def _groups(committers: int) -> list[str]:
    return [f"bench-{number}" for number in range(committers)]


def _native_frames(committers: int) -> list[list[bytes]]:
    return [
        [encode(CommitOffsetsRequest(group, [CommitOffset(TOPIC, 0, offset)])) for offset in range(OFFSETS)]
        for group in _groups(committers)
    ]


def prepare_native(opened: Door) -> None:
    """Make the topic, and see that a commit is answered without an error."""
    with connect(opened.running.port) as native:
        native.create_topic(TOPIC)
        prepare(opened.port, _groups(max(COMMITTERS)))
        header, _ = native.ask_frame(_native_frames(1)[0][0])
        errors: list[Any] = [each["error"] for each in header["offsets"] if "error" in each]
        if errors:
            raise BenchmarkError(f"a commit was answered with {errors[0]}")


def prepare_kafka(name: str, server: KafkaServer) -> str:
    """Make the topic, and have commits synced before they are answered; a note where that is refused, or nothing."""
    with connect_kafka(server.port) as kafka:
        kafka.create_topic(TOPIC)
    prepare(server.port, _groups(max(COMMITTERS)))
    try:
        set_flush(server, True, _OFFSETS_TOPIC)
    except KafkaError as error:
        return f"{name} was measured without what it refused: flush.messages=1 of __consumer_offsets ({error})"
    return ""


def _run(bench: Bench) -> Iterator[Row]:
    with daemon_with_door(bench) as opened, real_kafka(bench) as kafka:
        prepare_native(opened)
        if isinstance(kafka, PeerServer):
            prepare(kafka.port, _groups(max(COMMITTERS)))
            for flush in (False, True):  # Java compiles what runs often
                _measure_flushing(kafka, flush, 16, bench.pick(8, 0.2))
        seconds = bench.pick(4, 0.2)
        for committers in COMMITTERS:
            sides: dict[str, Side] = {
                "Kafka's listener": partial(measure_kafka, opened, committers, seconds),
                "native": partial(measure_native, opened, committers, seconds),
            }
            if isinstance(kafka, PeerServer):
                sides[KAFKA_DISK] = partial(_measure_flushing, kafka, True, committers, seconds)
                sides[KAFKA_OS] = partial(_measure_flushing, kafka, False, committers, seconds)
            found = dict(zip(sides, take_turns(bench.rounds, *sides.values()), strict=True))
            yield from _rows(f"{committers} committer{'s' * (committers > 1)}", found)
        if isinstance(kafka, str):
            yield Row("beside a real Kafka", "commits/s", note=kafka)


def _rows(name: str, found: Mapping[str, Sequence[Measured]]) -> Iterator[Row]:
    for side, beside in pairs_of(found):
        what = f"{name}, {side}"
        rates, rates_beside = ([one.commits_per_second for one in found[each]] for each in (side, beside))
        yield Row(what, "commits/s", rates, rates_beside, beside)
        times, times_beside = ([one.server_cpu_us for one in found[each]] for each in (side, beside))
        yield Row(f"{what}, CPU", "µs", times, times_beside, beside)


_OFFSETS_TOPIC: Final = "__consumer_offsets"
_GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))

BENCHMARK: Final = Benchmark(
    "group-commits", "commits of one offset, each committer one at a time, durable", "", _run, 900
)
