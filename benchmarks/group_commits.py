"""Commits of offsets, each committer one at a time: how many a second, beside a real Kafka in the same rounds."""

from collections.abc import Iterator
from itertools import cycle
from typing import Final

from benchmarks.group_wire import TOPIC, commit_frame, contest, prepare, set_flush
from benchmarks.harness import Bench, Benchmark, Row
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.kafka_frames import KafkaError
from benchmarks.peers.sides import KafkaServer
from benchmarks.raw_client import GREETING, encode
from benchmarks.talks import Repeated
from seglog_protocol.messages import CommitOffset, CommitOffsetsRequest

COMMITTERS: Final = (1, 16, 64)
OFFSETS: Final = 50
"""The offsets that a committer commits, round and round."""

_OFFSETS_TOPIC: Final = "__consumer_offsets"


def kafka_committer(number: int) -> Repeated:
    """Through Kafka's protocol, for a group of its own. ``prepare_server`` comes before, as for the next."""
    return Repeated(cycle([commit_frame(f"bench-{number}", offset) for offset in range(OFFSETS)]))


def native_committer(number: int) -> Repeated:
    """Through the native protocol."""
    asked = ([CommitOffset(TOPIC, 0, offset)] for offset in range(OFFSETS))
    frames = [encode(CommitOffsetsRequest(f"bench-{number}", offsets)) for offsets in asked]
    return Repeated(cycle(frames), (GREETING, frames[0]))


def prepare_server(server: KafkaServer) -> None:
    """Make the topic, and see that commits of all groups are answered without an error."""
    with connect_kafka(server.port) as kafka:
        kafka.create_topic(TOPIC)
    prepare(server.port, [f"bench-{number}" for number in range(max(COMMITTERS))])


def prepare_kafka(name: str, server: KafkaServer) -> str:
    """The same, and have commits synced before they are answered; a note where that is refused, or nothing."""
    prepare_server(server)
    try:
        set_flush(server, True, _OFFSETS_TOPIC)
    except KafkaError as error:
        return f"{name} was measured without what it refused: flush.messages=1 of __consumer_offsets ({error})"
    return ""


def _run(bench: Bench) -> Iterator[Row]:
    with contest(bench, "commits", prepare_server, _OFFSETS_TOPIC) as beside:
        beside.warm_up(bench.pick(8, 0.2), 16)
        for committers in COMMITTERS:
            name = f"{committers} committer{'s' * (committers > 1)}"
            yield from beside.rows(bench, name, committers, bench.pick(4, 0.2))
        yield from beside.absence()


BENCHMARK: Final = Benchmark(
    "group-commits", "commits of one offset, each committer one at a time, durable", "", _run, 900
)
