"""Commits of offsets, each committer one at a time: how many a second, beside a real Kafka in the same rounds."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.group_wire import (
    TOPIC,
    Contest,
    Measured,
    answers_in,
    commit_frame,
    measured,
    prepare,
    real_kafka,
    set_flush,
)
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.kafka_frames import KafkaError
from benchmarks.peers.servers import PeerServer
from benchmarks.peers.sides import KafkaServer
from benchmarks.raw_client import connect, encode
from seglog_protocol.messages import CommitOffset, CommitOffsetsRequest, HelloRequest

COMMITTERS: Final = (1, 16, 64)
OFFSETS: Final = 50
"""The offsets that a committer commits, round and round."""


def _measure(pid: int, port: int, frames: Sequence[Sequence[bytes]], seconds: float, greeting: bytes = b"") -> Measured:
    return measured(pid, partial(answers_in, port, frames, seconds, greeting=greeting))


def measure_kafka(server: KafkaServer, committers: int, seconds: float) -> Measured:
    """Through Kafka's protocol. ``prepare_native`` or ``prepare_kafka`` comes before."""
    frames = [[commit_frame(group, offset) for offset in range(OFFSETS)] for group in _groups(committers)]
    return _measure(server.pid, server.port, frames, seconds)


def measure_native(opened: Door, committers: int, seconds: float) -> Measured:
    """Through the native protocol. ``prepare_native`` comes before."""
    return _measure(opened.pid, opened.running.port, _native_frames(committers), seconds, _GREETING)


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
    with daemon_with_door(bench) as opened, real_kafka(bench) as server:
        prepare_native(opened)
        if isinstance(server, PeerServer):
            prepare(server.port, _groups(max(COMMITTERS)))
        contest = Contest("commits/s", opened, server, measure_kafka, measure_native, [_OFFSETS_TOPIC])
        contest.warm_up(bench.pick(8, 0.2), 16)
        for committers in COMMITTERS:
            name = f"{committers} committer{'s' * (committers > 1)}"
            yield from contest.rows(bench, name, committers, bench.pick(4, 0.2))
        yield from contest.absence()


_OFFSETS_TOPIC: Final = "__consumer_offsets"
_GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))

BENCHMARK: Final = Benchmark(
    "group-commits", "commits of one offset, each committer one at a time, durable", "", _run, 900
)
