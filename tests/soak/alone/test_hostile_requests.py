"""Hostile requests of either wire beside a healthy client: it is not affected, and the broker reports no bug.

SEGLOG_SOAK_MUTATED and SEGLOG_SOAK_HOSTILE say how many in the soak; otherwise its minutes do.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import messages
from tests.process.faults import hostile_kafka_peer, hostile_peer
from tests.process.faults.besieged import SETTINGS, Healthy, beset, judge, make_topics
from tests.process.faults.hostile_kafka_peer import fetch, produce
from tests.processes import Daemon, daemon
from tests.support import soak_scaled, soak_seed
from tests.turns import judges_turns

KAFKA: Final = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")


class HealthyClient(Healthy):
    """It speaks the native protocol."""

    def __init__(self, peer: hostile_peer.Peer) -> None:
        super().__init__()
        self._peer = peer

    def append_and_fetch(self) -> None:
        batch = encode_batch([(-1, b"key", b"value", ())])
        place = {"topic": "healthy", "partition": 0}
        reply, _ = self._peer.ask({"api": "append", "partitions": [place | {"size": len(batch)}], "ack": "os"}, batch)
        assert "error" not in reply["partitions"][0], reply
        offset = reply["partitions"][0]["base_offset"]
        reply, size = self._peer.ask({"api": "fetch", "partitions": [place | {"offset": offset}], "max_wait_ms": 0})
        assert reply["partitions"][0].get("offset") == offset, reply
        assert size == len(batch)

    def close(self) -> None:
        self._peer.close()


class HealthyKafkaClient(Healthy):
    """It speaks Kafka's protocol."""

    def __init__(self, peer: hostile_kafka_peer.Peer) -> None:
        super().__init__()
        self._peer = peer

    def append_and_fetch(self) -> None:
        batch = encode_batch([(-1, b"key", b"value", ())])
        [response] = self._peer.ask(produce([("healthy", 0, batch)], {}, 1), 9)
        assert isinstance(response, messages.ProduceResponse)
        [result] = response.responses[0].partition_responses
        assert result.error_code == 0, result
        [fetched] = self._peer.ask(fetch([("healthy", 0, result.base_offset)], {}), 12)
        assert isinstance(fetched, messages.FetchResponse)
        [found] = fetched.responses[0].partitions
        assert (found.error_code, len(found.records or b"")) == (0, len(batch)), found
        assert self._peer.connections == 1

    def close(self) -> None:
        self._peer.close()


class Wire(NamedTuple):
    """How one wire is beset: ``mutating`` peers send mutated requests, and one the hostile ones, so many in full."""

    healthy: Callable[[Daemon], Healthy]
    peer: str
    port: Callable[[Daemon], int]
    mutating: int
    mutated: int
    hostile: int


NATIVE: Final = Wire(
    lambda running: HealthyClient(hostile_peer.Peer(running.port)),
    "tests.process.faults.hostile_peer",
    lambda running: running.port,
    2,
    120_000,
    12_000,
)
ON_KAFKAS_PORT: Final = Wire(
    lambda running: HealthyKafkaClient(hostile_kafka_peer.Peer(running.kafka_port)),
    "tests.process.faults.hostile_kafka_peer",
    lambda running: running.kafka_port,
    8,  # they wait for much of their time, because fetches of nothing but errors are answered late
    250_000,
    5_000,
)
EACH_WIRE: Final = pytest.mark.parametrize("wire", [NATIVE, ON_KAFKAS_PORT], ids=["native", "kafka"])


@pytest.mark.timeout(14_400)
@EACH_WIRE
@judges_turns
def test_hostile_requests_affect_no_other_client(tmp_path: Path, wire: Wire) -> None:
    mutated = int(os.environ.get("SEGLOG_SOAK_MUTATED") or max(4_000, soak_scaled(wire.mutated)))
    hostile = int(os.environ.get("SEGLOG_SOAK_HOSTILE") or max(200, soak_scaled(wire.hostile)))
    with daemon(tmp_path / "data", *SETTINGS, *KAFKA) as running:
        make_topics(running)
        peer = (wire.peer, str(wire.port(running)))
        found = beset(running, wire.healthy(running), peer, mutated, hostile, soak_seed(), mutating=wire.mutating)
        assert "-1" not in found["answers"], "an unknown server error"
        judge(running, found)
