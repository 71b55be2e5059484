"""Kafka's clients in Python, as they come from their registry, against ``seglog.testing.Broker`` and its faults.

kafka-python in this process, and the client of this project, are in ``tests/unit/clients/testing/test_clients.py``.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

from seglog.testing import Broker
from tests.interop.client_programs import PROGRAMS, Client, Program, client
from tests.interop.clients.conversation import Consumed, Record
from tests.processes import wait_until
from tests.support import numbers_of

pytestmark = [pytest.mark.timeout(300)]

IN_PYTHON: Final = [program for program in PROGRAMS if program.name in {"kafka-python", "confluent-kafka", "aiokafka"}]
TIME_MS: Final = 1_700_000_000_000
ONE: Final[Record] = (b"key", b"one", [], TIME_MS)
TWO: Final[Record] = (b"key", b"two", [], TIME_MS)


@pytest.fixture(scope="module", params=IN_PYTHON, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    assert isinstance(request.param, Program)
    return request.param


@pytest.fixture(scope="module", params=["directory", "memory"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(memory=request.param == "memory", log_retention_ms=-1) as started:
        yield started
        assert [line for line in started.log if line["level"] == "error"] == []


@pytest.fixture(scope="module")
def foreign(program: Program, broker: Broker) -> Iterator[Client]:
    with client(program, broker.kafka_address) as running:
        yield running


@pytest.fixture
def topic(program: Program, broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"{program.name}-{request.function.__name__.removeprefix('test_')}"
    broker.create_topic(name)
    yield name
    assert broker.pending_faults == []


def test_a_lost_ack_leaves_the_record_once(foreign: Client, broker: Broker, topic: str) -> None:
    lost = broker.lose_next_ack(topic)
    assert foreign.produce(topic, 0, [ONE], acks="all", codec="none", idempotent=True) == 0
    assert lost.met == 1
    assert [record.value for record in broker.records(topic)] == [b"one"]


def test_failed_requests_are_sent_again(foreign: Client, broker: Broker, topic: str) -> None:
    produces = broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic)
    assert foreign.produce(topic, 0, [ONE], acks="all", codec="none", idempotent=True) == 0
    fetches = broker.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic)
    assert foreign.consume(topic, 0, 0, 1) == [(0, *ONE)]
    joins = broker.fail_next("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS")
    assert foreign.read_as_member(topic, topic, 1) == [(0, 0)]
    assert [fault.met for fault in (produces, fetches, joins)] == [1, 1, 1]


def _fetches(broker: Broker) -> float:
    """How often Kafka's clients have fetched."""
    return numbers_of(broker.client).get("requests_kafka_fetch_total", 0)


def test_cut_connections_are_made_again(foreign: Client, broker: Broker, topic: str) -> None:
    broker.produce(topic, "one", key="key", timestamp=TIME_MS)
    with ThreadPoolExecutor(1) as pool:
        before = _fetches(broker)
        consumed: Future[list[Consumed]] = pool.submit(foreign.consume, topic, 0, 0, 2)
        wait_until(lambda: _fetches(broker) > before, "a fetch")  # aiokafka gives up where its first connection is cut
        assert broker.cut_connections() > 0
        broker.produce(topic, "two", key="key", timestamp=TIME_MS)
        assert consumed.result() == [(0, *ONE), (1, *TWO)]
