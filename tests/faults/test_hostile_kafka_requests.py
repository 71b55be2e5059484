"""Hostile requests on Kafka's port beside a healthy client: it is not affected, and the broker reports no bug.

SEGLOG_SOAK_MUTATED and SEGLOG_SOAK_HOSTILE say how many in the soak; otherwise its minutes do.
"""

import os
import random
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import messages, write_request
from tests.faults.besieged import SETTINGS, Healthy, beset, judge, make_topics
from tests.faults.hostile_kafka_peer import Peer, fetch, one_thing_many_times, produce, versions_of
from tests.faults.raw_peer import LAST
from tests.processes import Daemon, daemon
from tests.support import soak_scaled, soak_seed

KAFKA: Final = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")
MUTATING: Final = 8
"""Peers: they wait for much of their time, because fetches of nothing but errors are answered late."""


class HealthyKafkaClient(Healthy):
    """It speaks Kafka's protocol."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._peer = Peer(port)

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


def beset_on_kafkas_port(
    running: Daemon, mutated: int, hostile: int, seed: int, mutating: int = MUTATING
) -> dict[str, Any]:
    make_topics(running)
    peer = ("tests.faults.hostile_kafka_peer", str(running.kafka_port))
    found = beset(running, HealthyKafkaClient(running.kafka_port), peer, mutated, hostile, seed, mutating=mutating)
    assert "-1" not in found["answers"], "an unknown server error"
    return found


@pytest.mark.slow
def test_a_few_hundred_hostile_kafka_requests_affect_no_other_client(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *SETTINGS, *KAFKA) as running:
        judge(running, beset_on_kafkas_port(running, mutated=400, hostile=10, seed=2, mutating=1))


def test_every_hostile_request_can_be_written_in_the_version_that_is_chosen() -> None:
    for make in one_thing_many_times(random.Random(1)):
        request = make()
        for version in versions_of(request):
            assert write_request(1, "peer", request, version), request


def test_a_peer_expects_no_response_to_what_gets_none(tmp_path: Path) -> None:
    """A mutation can give such a request the correlation id of another that is answered."""
    batch = encode_batch([(-1, b"key", b"value", ())])
    with daemon(tmp_path / "data", *SETTINGS, *KAFKA) as running:
        make_topics(running)
        peer = Peer(running.kafka_port)
        requests = [(produce([("target", 0, batch)], {}, 0), 10), (messages.ApiVersionsRequest(), 0)]
        peer.send(*(b"".join(write_request(LAST, "peer", request, version)) for request, version in requests))
        [response] = peer.wait_for(LAST)
        assert isinstance(response, messages.ApiVersionsResponse)
        peer.close()


@pytest.mark.slow
@pytest.mark.alone
def test_a_few_thousand_hostile_kafka_requests_affect_no_other_client(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *SETTINGS, *KAFKA) as running:
        judge(running, beset_on_kafkas_port(running, mutated=4_000, hostile=200, seed=1))


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(14_400)
def test_very_many_hostile_kafka_requests_affect_no_other_client(tmp_path: Path) -> None:
    mutated = int(os.environ.get("SEGLOG_SOAK_MUTATED") or soak_scaled(250_000))
    hostile = int(os.environ.get("SEGLOG_SOAK_HOSTILE") or soak_scaled(5_000))
    with daemon(tmp_path / "data", *SETTINGS, *KAFKA) as running:
        judge(running, beset_on_kafkas_port(running, mutated=mutated, hostile=hostile, seed=soak_seed()))
