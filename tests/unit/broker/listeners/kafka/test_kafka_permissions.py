"""Rules that change between requests: what repeats is asked anew, and a fetch that waits has been asked."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule, Rules
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.structs import Request
from tests.logs import batch
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, fetch, found, kafka, latest, produce

ENFORCED: Final = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"

ROUNDS: Final = 3
"""Requests that are allowed before one is refused: the first makes a template, which the others have."""


@pytest.fixture
async def served() -> AsyncIterator[KafkaServed]:
    async with kafka(ENFORCED, "super.users=User:admin") as served:
        yield served


def allow(served: KafkaServed, *allowed: tuple[Operation, Kind, str]) -> None:
    """Have these rules in force, and no others."""
    served.broker.authority.adopt(
        Rules.of(
            Rule(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", operation, Permission.ALLOW)
            for operation, kind, name in allowed
        )
    )


def _codes(answer: Any) -> set[int]:
    """The error codes of partitions."""
    topics = getattr(answer, "topics", None) or answer.responses
    parts = [getattr(topic, "partitions", None) or topic.partition_responses for topic in topics]
    return {part.error_code for each in parts for part in each}


def _produced(served: KafkaServed) -> Request:
    return produce(("plain", 0, batch(b"x")), ("plain", 1, batch(b"x")), served=served)


def _fetched(served: KafkaServed) -> Request:
    request = fetch(("plain", 0, 0))
    request.topics[0].topic_id = served.id_of("plain")
    return request


@pytest.mark.parametrize(
    ("request_of", "version", "operation", "refused"),
    [
        pytest.param(_produced, 12, Operation.WRITE, 29, id="Produce"),
        pytest.param(_produced, 13, Operation.WRITE, 29, id="Produce by id"),
        pytest.param(_fetched, 12, Operation.READ, 29, id="Fetch"),
        pytest.param(_fetched, 18, Operation.READ, 29, id="Fetch by id"),
        pytest.param(lambda _: latest("plain", 0), 8, Operation.DESCRIBE, 29, id="ListOffsets"),
    ],
)
async def test_a_request_that_repeats_is_asked_anew_when_rules_change(
    served: KafkaServed,
    peer: KafkaPeer,
    request_of: Callable[[KafkaServed], Request],
    version: int,
    operation: Operation,
    refused: int,
) -> None:
    request = request_of(served)
    for expected in (0, refused, 0):
        allow(served, *([] if expected else [(operation, Kind.TOPIC, "plain")]))
        for _ in range(ROUNDS):
            assert _codes(await peer.ask(request, version)) == {expected}
    wire = (await served.connection_of(peer)).wire
    assert isinstance(wire, KafkaWire)
    assert wire.templates._templates


async def test_a_fetch_that_waits_is_answered_whatever_rules_have_become(served: KafkaServed, peer: KafkaPeer) -> None:
    """As in Kafka, which decides about a fetch when it comes."""
    may_write, may_read = (Operation.WRITE, Kind.TOPIC, "plain"), (Operation.READ, Kind.TOPIC, "plain")
    allow(served, may_write, may_read)
    await peer.send(fetch(("plain", 0, 0), max_wait_ms=60_000), 12)
    await wait_all_tasks_blocked(0.005)
    allow(served, may_write)
    await (await served.connect()).ask(produce(("plain", 0, batch(b"x"))), 12)
    [(code, _, size)] = found(await peer.receive(messages.FetchResponse))
    assert (code, size > 0) == (0, True)
    assert _codes(await peer.ask(fetch(("plain", 0, 0)), 12)) == {29}
