"""Rules that change between requests: what repeats is asked anew, and a fetch that waits has been asked."""

from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any, Final

import pytest
from trio.testing import wait_all_tasks_blocked

from seglog_broker.coordinators.groups.membership import GroupDescription
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.turns import PARTITIONS_A_TURN
from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_broker.storage.directory.topic_registry import Topic, Topics
from seglog_protocol.access import CLUSTER, Kind, Operation, PatternType, Permission, Rule, Rules
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.structs import Request
from seglog_protocol.messages import CreateTopicRequest
from tests.logs import batch
from tests.unit.broker.listeners.kafka.group_requests import FakeGroups, context_of
from tests.unit.broker.listeners.kafka.kafka_peer import (
    NOW,
    KafkaPeer,
    KafkaServed,
    fetch,
    found,
    kafka,
    latest,
    produce,
)

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
    """The error codes of partitions, or the only one."""
    if hasattr(answer, "error_code") and not hasattr(answer, "responses"):
        return {answer.error_code}
    topics = getattr(answer, "topics", None) or answer.responses
    parts = [getattr(topic, "partitions", None) or topic.partition_responses for topic in topics]
    return {part.error_code for each in parts for part in each}


def _produced(served: KafkaServed) -> Request:
    return produce(("plain", 0, batch(b"x")), ("plain", 1, batch(b"x")), served=served)


def _fetched(served: KafkaServed) -> Request:
    request = fetch(("plain", 0, 0))
    request.topics[0].topic_id = served.id_of("plain")
    return request


def _heartbeat(_served: KafkaServed) -> Request:
    return messages.HeartbeatRequest(group_id="group", generation_id=1, member_id="nobody")


def _committed(_served: KafkaServed) -> Request:
    cls = messages.OffsetCommitRequest
    topic = cls.OffsetCommitRequestTopic(name="plain", partitions=[cls.OffsetCommitRequestPartition()])
    return cls(group_id="group", generation_id_or_member_epoch=-1, topics=[topic])


def _committed_in_transaction(_served: KafkaServed) -> Request:
    cls = messages.TxnOffsetCommitRequest
    topic = cls.TxnOffsetCommitRequestTopic(name="plain", partitions=[cls.TxnOffsetCommitRequestPartition()])
    return cls(transactional_id="tx", group_id="group", producer_id=7, topics=[topic])


WRITE, READ = (Operation.WRITE, Kind.TOPIC, "plain"), (Operation.READ, Kind.TOPIC, "plain")
LOOK = (Operation.DESCRIBE, Kind.TOPIC, "plain")
GROUP, TRANSACTION = (Operation.READ, Kind.GROUP, "group"), (Operation.WRITE, Kind.TRANSACTIONAL_ID, "tx")


@pytest.mark.parametrize(
    ("request_of", "version", "needed", "allowed", "refused"),
    [
        pytest.param(_produced, 12, [WRITE], 0, [29], id="Produce"),
        pytest.param(_produced, 13, [WRITE], 0, [29], id="Produce by id"),
        pytest.param(_fetched, 12, [READ], 0, [29], id="Fetch"),
        pytest.param(_fetched, 18, [READ], 0, [29], id="Fetch by id"),
        pytest.param(lambda _: latest("plain", 0), 8, [LOOK], 0, [29], id="ListOffsets"),
        pytest.param(_heartbeat, 4, [GROUP], 25, [30], id="Heartbeat"),
        pytest.param(_committed, 9, [GROUP, READ], 0, [30, 29], id="OffsetCommit"),
        pytest.param(_committed_in_transaction, 3, [TRANSACTION, GROUP, READ], 49, [53, 30, 29], id="TxnOffsetCommit"),
    ],
)
async def test_a_request_that_repeats_is_asked_anew_when_rules_change(
    served: KafkaServed,
    peer: KafkaPeer,
    request_of: Callable[[KafkaServed], Request],
    version: int,
    needed: list[tuple[Operation, Kind, str]],
    allowed: int,
    refused: list[int],
) -> None:
    request = request_of(served)
    without = [[each for each in needed if each is not missing] for missing in needed]
    for rules, expected in ((needed, allowed), *zip(without, refused, strict=True), (needed, allowed)):
        allow(served, *rules)
        for _ in range(ROUNDS):
            assert _codes(await peer.ask(request, version)) == {expected}
    wire = (await served.connection_of(peer)).wire
    assert isinstance(wire, KafkaWire)
    assert wire.templates._templates


async def test_a_fetch_that_waits_is_answered_whatever_rules_have_become(served: KafkaServed, peer: KafkaPeer) -> None:
    """As in Kafka, which decides about a fetch when it comes."""
    allow(served, WRITE, READ)
    await peer.send(fetch(("plain", 0, 0), max_wait_ms=60_000), 12)
    await wait_all_tasks_blocked(0.005)
    allow(served, WRITE)
    await (await served.connect()).ask(produce(("plain", 0, batch(b"x"))), 12)
    [(code, _, size)] = found(await peer.receive(messages.FetchResponse))
    assert (code, size > 0) == (0, True)
    assert _codes(await peer.ask(fetch(("plain", 0, 0)), 12)) == {29}


def transactional(sequence: int, producer_id: int, epoch: int) -> bytes:
    """A batch of a transaction."""
    return encode_batch(
        [(NOW, None, b"x", ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


@pytest.mark.parametrize("version", [11, 12])
async def test_what_repeats_in_a_transaction_is_asked_anew_when_rules_change(
    served: KafkaServed, peer: KafkaPeer, version: int
) -> None:
    allow(served, WRITE, TRANSACTION)
    begun = await peer.ask(messages.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=9000), 5)
    producer = ProducerIdAndEpoch(begun.producer_id, begun.producer_epoch)
    await served.broker.transactions.add_partitions("tx", producer, [("plain", 0)], version=1)
    sequence = 0
    for rules, expected in (([WRITE, TRANSACTION], 0), ([WRITE], 53), ([TRANSACTION], 29), ([WRITE, TRANSACTION], 0)):
        allow(served, *rules)
        for _ in range(ROUNDS):
            records = transactional(sequence, *producer)
            request = produce(("plain", 0, records))
            request.transactional_id = "tx"
            assert _codes(await peer.ask(request, version)) == {expected}
            sequence += not expected


async def test_a_partition_that_may_not_be_written_to_is_not_added_to_a_transaction(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    allow(served, WRITE, TRANSACTION)
    begun = await peer.ask(messages.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=9000), 5)
    records = transactional(0, begun.producer_id, begun.producer_epoch)
    request = produce(("plain", 0, records), ("keyed", 0, records))
    request.transactional_id = "tx"
    answered = (await peer.ask(request, 12)).responses
    assert [topic.partition_responses[0].error_code for topic in answered] == [0, 29]
    assert served.broker.transactions.describe("tx").facts.partitions == {"plain": {0}}


async def test_a_topic_and_the_broker_are_altered_by_one_request_for_whom_rules_allow_each(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    cls = messages.IncrementalAlterConfigsRequest
    resources = [
        cls.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        for kind, name in ((2, "plain"), (4, "1"))
    ]
    for allowed, codes in (((Kind.TOPIC, "plain"), [0, 31]), ((Kind.CLUSTER, CLUSTER), [29, 0])):
        allow(served, (Operation.ALTER_CONFIGS, *allowed))
        answer: Any = await peer.ask(cls(resources=resources, validate_only=True), 1)
        assert [each.error_code for each in answer.responses] == codes


async def test_a_share_fetch_that_repeats_is_asked_anew_when_rules_change(served: KafkaServed, peer: KafkaPeer) -> None:
    """Of a group that has no share partitions, which is told to those alone who may read the topic."""
    cls = messages.ShareFetchRequest
    topic = cls.FetchTopic(topic_id=served.id_of("plain"), partitions=[cls.FetchPartition(partition_index=0)])
    allow(served, GROUP, READ)
    epoch, asked = 0, cls()
    for rules, expected in (([GROUP, READ], 3), ([GROUP], 29), ([GROUP, READ], 3)):
        allow(served, *rules)
        for _ in range(ROUNDS):
            asked = cls(group_id="group", member_id="member", share_session_epoch=epoch, max_records=1, max_bytes=1000)
            asked.topics = [] if epoch else [topic]
            assert _codes(await peer.ask(asked, 2)) == {expected}
            epoch += 1
    allow(served, READ)
    assert (await peer.ask(asked, 2)).error_code == 30


async def test_an_expression_matches_what_its_member_may_describe(served: KafkaServed, peer: KafkaPeer) -> None:
    await served.broker.create_topic(CreateTopicRequest("plain-hidden", 1))
    allow(served, GROUP, (Operation.DESCRIBE, Kind.TOPIC, "plain"))
    cls = messages.ConsumerGroupHeartbeatRequest
    joins = cls(group_id="group", member_id="m", rebalance_timeout_ms=60_000, topic_partitions=[])
    joins.subscribed_topic_regex = "plain.*"
    answer = await peer.ask(joins, 1)
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [served.id_of("plain")]


async def test_what_is_hidden_is_passed_over_in_turns() -> None:
    names = [f"n{number}" for number in range(3 * PARTITIONS_A_TURN)]
    groups = FakeGroups()
    groups.descriptions = {name: GroupDescription(name, "classic", "Empty", 0, "", "", "", []) for name in names}
    for request in messages.ListGroupsRequest(), messages.MetadataRequest(topics=None, allow_auto_topic_creation=False):
        context = context_of(groups, 5)
        broker: Any = context.broker
        broker.authority.is_enforced = True
        broker.directory.cluster_id = "c"
        broker.directory.registry.topics = Topics({name: Topic(name, name, 1) for name in names})
        turns = count()

        async def turn(turns: Any = turns) -> None:
            next(turns)

        broker.turn = turn
        handle = APIS[request.API_KEY].handle
        assert handle is not None
        response: Any = await handle(context, request)
        assert not getattr(response, "groups", None)
        assert not getattr(response, "topics", None)
        assert next(turns) >= 2, request
