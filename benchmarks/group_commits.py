"""Commits of offsets, each committer one at a time: how many a second, beside a real Kafka in the same rounds."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.group_wire import TOPIC, answers_in, commit_frame, prepare, real_kafka
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.servers import PeerServer
from benchmarks.processes import cpu_seconds
from benchmarks.raw_client import connect, encode
from seglog_protocol.messages import CommitOffset, CommitOffsetsRequest, HelloRequest

COMMITTERS: Final = (1, 16, 64)
OFFSETS: Final = 50
"""The offsets that a committer commits, round and round."""

_FLUSH: Final = {True: "1", False: "9223372036854775807"}
_SETTING_SECONDS: Final = 0.5
"""Kafka applies a changed setting after it has answered."""


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


def _measure_kafka(server: PeerServer, flush: bool, frames: Sequence[Sequence[bytes]], seconds: float) -> Measured:
    with connect_kafka(server.port) as kafka:
        kafka.alter_topic("__consumer_offsets", {"flush.messages": _FLUSH[flush]})
    time.sleep(_SETTING_SECONDS)
    return _measure(server.pid, server.port, frames, seconds)


def _groups(committers: int) -> list[str]:
    return [f"bench-{number}" for number in range(committers)]


def _kafka_frames(committers: int) -> list[list[bytes]]:
    return [[commit_frame(group, offset) for offset in range(OFFSETS)] for group in _groups(committers)]


def _native_frames(committers: int) -> list[list[bytes]]:
    return [
        [encode(CommitOffsetsRequest(group, [CommitOffset(TOPIC, 0, offset)])) for offset in range(OFFSETS)]
        for group in _groups(committers)
    ]


def _prepare_native(opened: Door) -> None:
    """Make the topic, and see that a commit is answered without an error."""
    with connect(opened.running.port) as native:
        native.create_topic(TOPIC)
        prepare(opened.port, _groups(max(COMMITTERS)))
        header, _ = native.ask_frame(_native_frames(1)[0][0])
        errors: list[Any] = [each["error"] for each in header["offsets"] if "error" in each]
        if errors:
            raise BenchmarkError(f"a commit was answered with {errors[0]}")


def _run(bench: Bench) -> Iterator[Row]:
    with daemon_with_door(bench) as opened, real_kafka(bench) as kafka:
        _prepare_native(opened)
        if isinstance(kafka, PeerServer):
            prepare(kafka.port, _groups(max(COMMITTERS)))
            for flush in (False, True):  # Java compiles what runs often
                _measure_kafka(kafka, flush, _kafka_frames(16), bench.pick(8, 0.2))
        seconds = bench.pick(4, 0.2)
        for committers in COMMITTERS:
            frames = _kafka_frames(committers)
            sides: dict[str, Side] = {
                "Kafka's listener": partial(_measure, opened.pid, opened.port, frames, seconds),
                "native": partial(
                    _measure, opened.pid, opened.running.port, _native_frames(committers), seconds, _GREETING
                ),
            }
            if isinstance(kafka, PeerServer):
                sides[_KAFKA_DISK] = partial(_measure_kafka, kafka, True, frames, seconds)
                sides[_KAFKA_OS] = partial(_measure_kafka, kafka, False, frames, seconds)
            found = dict(zip(sides, take_turns(bench.rounds, *sides.values()), strict=True))
            yield from _rows(f"{committers} committer{'s' * (committers > 1)}", found)
        if isinstance(kafka, str):
            yield Row("beside a real Kafka", "commits/s", note=kafka)


def _rows(name: str, found: Mapping[str, Sequence[Measured]]) -> Iterator[Row]:
    """Each way to seglog beside each Kafka; without one, the two ways beside each other."""
    ours = [side for side in found if side not in {_KAFKA_DISK, _KAFKA_OS}]
    pairs = [(side, beside) for beside in (_KAFKA_DISK, _KAFKA_OS) if beside in found for side in ours]
    for side, beside in pairs or [(ours[0], ours[1])]:
        what = f"{name}, {side}"
        rates, rates_beside = ([one.commits_per_second for one in found[each]] for each in (side, beside))
        yield Row(what, "commits/s", rates, rates_beside, beside)
        times, times_beside = ([one.server_cpu_us for one in found[each]] for each in (side, beside))
        yield Row(f"{what}, CPU", "µs", times, times_beside, beside)


_GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))
_KAFKA_DISK: Final = "Kafka, disk"
_KAFKA_OS: Final = "Kafka, os"

BENCHMARK: Final = Benchmark(
    "group-commits", "commits of one offset, each committer one at a time, durable", "", _run, 900
)
