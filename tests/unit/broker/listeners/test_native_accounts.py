"""Clients that authenticate on the native wire: before hello, again before their session ends, or not at all."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
import trio
import trio.testing

from seglog_broker.api.users import UserDeletion
from seglog_broker.listeners.serving import serve_native
from seglog_broker.listeners.session import Listener
from seglog_protocol.messages import (
    PROTOCOL_NAME,
    AppendPartition,
    AppendRequest,
    AuthenticateRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    HelloRequest,
    Request,
    TopicsRequest,
    TruncatePartition,
    TruncateRequest,
)
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.fake_broker import Listening, Peer, code_of
from tests.unit.broker.listeners.kafka import test_sasl
from tests.unit.broker.listeners.kafka.test_sasl import PASSWORDS

ACCOUNTS: Final = Listener("", "SASL_PLAINTEXT")
HELLO: Final = HelloRequest(PROTOCOL_NAME)


@asynccontextmanager
async def accounts(*flags: str) -> AsyncIterator[Listening]:
    async with test_sasl.accounts(*flags, serve=partial(serve_native, kind=ACCOUNTS)) as served:
        yield served._served


@pytest.fixture
async def served() -> AsyncIterator[Listening]:
    async with accounts() as served:
        yield served


@pytest.fixture
async def peer(served: Listening) -> Peer:
    return await served.connect()


async def plain(peer: Peer, user: str, password: str | None = None) -> Mapping[str, Any]:
    token = f"\0{user}\0{PASSWORDS[user] if password is None else password}".encode()
    return await peer.ask(1, AuthenticateRequest("PLAIN", token))


async def logged_in(served: Listening, user: str) -> Peer:
    peer = await served.connect()
    assert (await plain(peer, user))["principal"] == f"User:{user}"
    assert (await peer.ask(1, HELLO))["principal"] == f"User:{user}"
    return peer


async def test_hello_before_the_login_is_refused_with_the_mechanisms(peer: Peer) -> None:
    refused = await peer.ask(1, HELLO)
    assert code_of(refused) == "ILLEGAL_SASL_STATE"
    assert refused["error"]["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
    assert (await plain(peer, "alice"))["is_done"]
    assert (await peer.ask(1, HELLO))["principal"] == "User:alice"


async def test_other_requests_before_the_login_are_refused(peer: Peer) -> None:
    refused = await peer.ask(1, TopicsRequest())
    assert code_of(refused) == "INVALID_REQUEST"
    assert await peer.rest() == b""


async def test_an_ended_session_refuses_requests_until_the_next_login(autojump_clock: trio.testing.MockClock) -> None:
    async with accounts("connections.max.reauth.ms=60000") as served:
        peer = await served.connect()
        assert (await plain(peer, "alice"))["session_ms"] == 60_000
        await peer.ask(1, HELLO)
        await trio.sleep(61)
        assert code_of(await peer.ask(1, TopicsRequest())) == "ILLEGAL_SASL_STATE"
        record = batch(b"x")
        append = AppendRequest([AppendPartition("plain", 0, len(record))], "os")
        assert code_of(await peer.ask(1, append, record)) == "ILLEGAL_SASL_STATE"
        assert (await plain(peer, "alice"))["session_ms"] == 60_000
        assert "error" not in await peer.ask(1, append, record)
        assert code_of(await plain(peer, "admin")) == "SASL_AUTHENTICATION_FAILED"
        assert await peer.rest() == b""


@each_case(
    ("request_", "refusal"),
    [
        (CreateTopicRequest("new"), "TOPIC_AUTHORIZATION_FAILED"),
        (DeleteTopicRequest("plain"), "TOPIC_AUTHORIZATION_FAILED"),
        (TruncateRequest([TruncatePartition("plain", 0, 0)]), "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
async def test_administrators_alone_change_what_is_not_theirs(request_: Request, refusal: str) -> None:
    async with accounts() as served:
        alice, admin = await logged_in(served, "alice"), await logged_in(served, "admin")
        answer = await alice.ask(1, request_)
        [refused] = answer.get("partitions", [answer])
        assert code_of(refused) == refusal
        assert refused["error"]["principal"] == "User:alice"
        assert served.broker.directory.accounts.has("admin")
        assert "error" not in await admin.ask(1, request_)


async def test_an_append_creates_a_topic_for_administrators_alone(served: Listening) -> None:
    record = batch(b"x")
    append = AppendRequest([AppendPartition("fresh", 0, len(record))], "os", create=True)
    refused = await (await logged_in(served, "alice")).ask(1, append, record)
    assert refused["partitions"][0]["error"]["code"] == "TOPIC_AUTHORIZATION_FAILED"
    accepted = await (await logged_in(served, "admin")).ask(1, append, record)
    assert "error" not in accepted["partitions"][0]


async def test_logins_and_refusals_are_counted(served: Listening) -> None:
    metrics, counts = served.broker.metrics, served.broker.metrics.listener("native")
    alice = await logged_in(served, "alice")
    assert counts.authentications == {"PLAIN": 1}
    stranger = await served.connect()
    await plain(stranger, "alice", "wrong")
    assert await stranger.rest() == b""
    assert (counts.authentications, counts.authentication_failures) == ({"PLAIN": 1}, {"PLAIN": 1})
    await alice.ask(1, DeleteTopicRequest("plain"))
    assert metrics.authorization_refusals == 1
    await served.broker.users.change([UserDeletion("alice", "SCRAM-SHA-256")], [], "User:admin")
    assert await alice.rest() == b""
    assert metrics.connections_ended == {"authentication_failed": 1, "account_deleted": 1}
