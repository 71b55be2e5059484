"""Rules of access on the native wire: what is refused as a whole, what in part, and what is left out."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.native.permissions import ASKS, ITEMS, answered
from seglog_broker.listeners.native.wire import WRITABLE_MAX, NativeWire
from seglog_protocol import messages
from seglog_protocol.access import CLUSTER, Kind, Operation, PatternType, Permission, Rule, Rules
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages.hello import REQUESTS
from tests.logs import batch
from tests.unit.broker.listeners.fake_broker import Listening, Peer, code_of
from tests.unit.broker.listeners.real_broker import open_session, real

ENFORCED: Final = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"

V: Final = batch(b"v")

Granted = tuple[Operation, Kind, str]


@pytest.fixture
async def served() -> AsyncIterator[Listening]:
    made = real(ENFORCED, "super.users=User:admin", topics=("commits", "other"))
    async with made as served, trio.open_nursery() as tasks:
        tasks.start_soon(served.broker.groups.run)
        tasks.start_soon(served.broker.transactions.run)
        await wait_all_tasks_blocked()
        yield served
        await served.close_peers()
        tasks.cancel_scope.cancel()


@pytest.fixture
async def peer(served: Listening) -> Peer:
    return await served.greeted()


def allow(served: Listening, *allowed: Granted) -> None:
    """Have these rules in force, and no others."""
    served.broker.authority.adopt(
        Rules.of(
            Rule(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", operation, Permission.ALLOW)
            for operation, kind, name in allowed
        )
    )


def topic(operation: Operation, name: str = "commits") -> Granted:
    return operation, Kind.TOPIC, name


def _append(*topics: str, create: bool | None = None) -> tuple[messages.AppendRequest, bytes]:
    parts = [messages.AppendPartition(name, 0, len(V)) for name in topics]
    return messages.AppendRequest(parts, "os", create=create), V * len(topics)


def outcomes(header: dict[str, Any], field: str = "partitions") -> dict[str, str | None]:
    """The code of each topic's result, None without an error."""
    return {each["topic"]: each["error"]["code"] if each.get("error") else None for each in header[field]}


REFUSED: Final = "TOPIC_AUTHORIZATION_FAILED"


async def test_an_append_that_repeats_is_asked_anew_when_rules_change(served: Listening, peer: Peer) -> None:
    for number, expected in enumerate((None, REFUSED, None)):
        allow(served, *([] if expected else [topic(Operation.WRITE)]))
        for repeat in range(3):
            answer = await peer.ask(10 * number + repeat + 1, *_append("commits"))
            assert outcomes(answer) == {"commits": expected}
    assert served.broker.partitions.readable("commits", 0).log.log_end_offset == 6
    allow(served, topic(Operation.WRITE, "*"))
    for number in range(3):
        await peer.ask(number, *_append(*(f"{number}-{each}" for each in range(WRITABLE_MAX - 1))))
        wire = (await served.connection_of(peer.stream)).wire
        assert isinstance(wire, NativeWire)
        assert len(wire._writable) == WRITABLE_MAX - 1


async def test_topics_that_are_refused_do_not_hinder_others(served: Listening, peer: Peer) -> None:
    allow(served, topic(Operation.WRITE), topic(Operation.READ), (Operation.READ, Kind.GROUP, "g"))
    expected = {"other": REFUSED, "commits": None}
    names = ("other", "commits")
    cls = messages
    assert outcomes(await peer.ask(1, *_append(*names))) == expected
    wanted: list[tuple[messages.Request, str]] = [
        (cls.FetchRequest([cls.FetchPartition(name, 0, 0) for name in names], max_wait_ms=60_000), "partitions"),
        (cls.FetchRequest([cls.FetchPartition(name, 0, 1) for name in names], max_wait_ms=60_000), "partitions"),
        (cls.OffsetsRequest([cls.OffsetsPartition(name, 0) for name in names]), "partitions"),
        (cls.OffsetsRequest([cls.OffsetsPartition(name) for name in names]), "partitions"),
        (cls.LagRequest([cls.LagPartition(name, 0, 0) for name in names]), "partitions"),
        (cls.FlushRequest([cls.FlushPartition(name, 0) for name in names]), "partitions"),
        (cls.CommitOffsetsRequest("g", [cls.CommitOffset(name, 0, 1) for name in names]), "offsets"),
        (cls.CommittedOffsetsRequest("g", [cls.GroupPartition(name, 0) for name in names]), "offsets"),
    ]
    for number, (request, field) in enumerate(wanted, start=2):
        assert outcomes(await peer.ask(number, request), field) == expected, request


async def test_topics_are_created_by_those_who_may(served: Listening, peer: Peer) -> None:
    allow(served, *(topic(Operation.WRITE, name) for name in ("new", "newer")), topic(Operation.CREATE, "new"))
    answer = await peer.ask(1, *_append("new", "newer", "newest", create=True))
    assert outcomes(answer) == {"new": None, "newer": REFUSED, "newest": REFUSED}
    assert set(served.broker.directory.registry.topics) >= {"new"}
    assert not {"newer", "newest"} & set(served.broker.directory.registry.topics)


@pytest.mark.parametrize(
    ("request_", "needed", "refused"),
    [
        (messages.JoinGroupRequest("g", 10_000, 10_000, []), (Operation.READ, Kind.GROUP, "g"), "GROUP"),
        (messages.GroupHeartbeatRequest("g", "m", 1), (Operation.READ, Kind.GROUP, "g"), "GROUP"),
        (messages.DescribeGroupRequest("g"), (Operation.DESCRIBE, Kind.GROUP, "g"), "GROUP"),
        (messages.ExplainRequest("commits", 0, 0), topic(Operation.DESCRIBE), "TOPIC"),
        (messages.ExplainSegmentsRequest("commits", 0), topic(Operation.DESCRIBE), "TOPIC"),
        (messages.DeleteTopicRequest("commits"), topic(Operation.DELETE), "TOPIC"),
        (messages.AlterTopicRequest("commits", partitions=2), topic(Operation.ALL), "TOPIC"),
        (messages.CreateTopicRequest("made"), topic(Operation.CREATE, "made"), "TOPIC"),
        (messages.InitProducerRequest(), topic(Operation.WRITE, "any"), "CLUSTER"),
        (
            messages.InitProducerRequest("tx"),
            (Operation.WRITE, Kind.TRANSACTIONAL_ID, "tx"),
            "TRANSACTIONAL_ID",
        ),
        (messages.MetricsRequest(), (Operation.DESCRIBE, Kind.CLUSTER, CLUSTER), "CLUSTER"),
        (messages.SamplesRequest(), (Operation.DESCRIBE, Kind.CLUSTER, CLUSTER), "CLUSTER"),
        (
            messages.AbortTransactionRequest("tx"),
            (Operation.CLUSTER_ACTION, Kind.CLUSTER, CLUSTER),
            "CLUSTER",
        ),
        (messages.DescribeBrokerRequest(), (Operation.DESCRIBE_CONFIGS, Kind.CLUSTER, CLUSTER), "CLUSTER"),
    ],
    ids=lambda value: getattr(value, "api", ""),
)
async def test_a_request_is_refused_to_who_has_no_rule(
    served: Listening, peer: Peer, request_: messages.Request, needed: Granted, refused: str
) -> None:
    assert code_of(await peer.ask(1, request_)) == f"{refused}_AUTHORIZATION_FAILED"
    allow(served, needed)
    answer = await peer.ask(2, request_)
    assert "AUTHORIZATION" not in str(answer.get("error")), answer


async def test_what_one_may_not_describe_is_left_out(served: Listening, peer: Peer) -> None:
    everything = [(Operation.ALL, kind, "*") for kind in (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID)]
    allow(served, *everything)
    commit = [messages.CommitOffset(name, 0, 1) for name in ("commits", "other")]
    for number, group in enumerate("ab", start=1):
        await peer.ask(number, messages.CommitOffsetsRequest(group, commit))
        await peer.ask(number + 10, messages.InitProducerRequest(f"t{group}"))
    sees = Operation.DESCRIBE
    allow(served, topic(sees, "other"), (sees, Kind.GROUP, "b"), (sees, Kind.TRANSACTIONAL_ID, "tb"))
    await peer.send(20, messages.TopicsRequest(limit=1))
    frame = await peer.receive()
    assert [each["name"] for each in msgspec.msgpack.decode(frame.payload)] == ["other"]
    for number, granted in enumerate((sees, Operation.DESCRIBE_CONFIGS), start=30):
        allow(served, topic(sees, "other"), topic(granted, "other"))
        await peer.send(number, messages.TopicsRequest(["other"], config=True))
        [described] = messages.decode_descriptions((await peer.receive()).payload)
        assert (described.config is None) == (granted is sees)
    allow(served, topic(sees, "other"), (sees, Kind.GROUP, "b"), (sees, Kind.TRANSACTIONAL_ID, "tb"))
    assert not frame.header["more"]
    named = await peer.ask(21, messages.TopicsRequest(["commits", "other"]))
    assert [error["code"] for error in named["unknown"]] == [REFUSED]
    groups = await peer.ask(22, messages.ListGroupsRequest(limit=1))
    assert [each["group"] for each in groups["groups"]] == ["b"]
    listed = await peer.ask(23, messages.TransactionsRequest(limit=1))
    assert [each["transactional_id"] for each in listed["transactions"]] == ["tb"]
    refused = await peer.ask(24, messages.TransactionsRequest(["ta"]))
    assert code_of(refused) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    committed = await peer.ask(25, messages.CommittedOffsetsRequest("b"))
    assert [each["topic"] for each in committed["offsets"]] == ["other"]


async def test_hidden_groups_are_passed_over_in_long_pages_however_short_those_of_the_client_are(
    served: Listening, peer: Peer
) -> None:
    allow(served, topic(Operation.ALL), (Operation.ALL, Kind.GROUP, "*"))
    for number, group in enumerate("abcd"):
        await peer.ask(number, messages.CommitOffsetsRequest(group, [messages.CommitOffset("commits", 0, 1)]))
    allow(served, *((Operation.DESCRIBE, Kind.GROUP, group) for group in "cd"))
    asked: list[messages.Request] = []

    async def answer(request: messages.Request) -> Any:
        asked.append(request)
        return await served.broker.answer(request)

    broker = SimpleNamespace(authority=served.broker.authority, turn=served.broker.turn, answer=answer)
    for after, expected in (None, ("c", True)), ("c", ("d", False)):
        request = messages.ListGroupsRequest(after, limit=1)
        reply, _ = await answered(cast("Broker", broker), open_session(served.broker), request, "")
        assert isinstance(reply, messages.ListGroupsReply)
        assert (*[each.group for each in reply.groups], reply.more) == expected
    assert len(asked) == 2


async def test_no_one_takes_part_in_a_transaction_whose_id_they_may_not_use(served: Listening, peer: Peer) -> None:
    others, id_ = (
        [topic(Operation.ALL), (Operation.READ, Kind.GROUP, "g")],
        (Operation.WRITE, Kind.TRANSACTIONAL_ID, "t"),
    )
    allow(served, *others, id_)
    begun = await peer.ask(1, messages.InitProducerRequest("t"))
    producer = begun["producer_id"], begun["producer_epoch"]
    await peer.ask(2, messages.ExtendTransactionRequest("t", *producer, [messages.TransactionPartition("commits", 0)]))
    data = encode_batch(
        [(0, None, b"v", ())],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )
    append = messages.AppendRequest([messages.AppendPartition("commits", 0, len(data))], "os"), data
    commit = messages.CommitOffsetsRequest(
        "g", [messages.CommitOffset("commits", 0, 1)], producer_id=producer[0], producer_epoch=producer[1]
    )
    allow(served, *others)
    refused = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert outcomes(await peer.ask(3, *append)) == {"commits": refused}
    assert code_of(await peer.ask(4, commit)) == refused
    allow(served, *others, id_)
    assert outcomes(await peer.ask(5, *append)) == {"commits": None}


async def test_the_broker_introduces_itself_with_its_problems_to_who_may_describe_it(served: Listening) -> None:
    for allowed in ([], [(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER)]):
        allow(served, *allowed)
        answer = await (await served.connect()).ask(1, messages.HelloRequest("seglog", "c"))
        assert bool(answer.get("log_dir")) == bool(allowed)


def test_every_request_asks_for_something_or_is_for_everyone() -> None:
    everyone = {"authenticate", "cancel", "hello", "kafka"}
    hide = {"list_groups", "topics", "transactions"}
    others = {"create_topic"}
    assert set(REQUESTS) == {*ASKS, *ITEMS, *everyone, *hide, *others}
