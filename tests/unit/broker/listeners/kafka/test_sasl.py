"""Clients that authenticate on Kafka's wire: before their first request, again before their session ends, or not."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import pytest
import scramp
import trio
import trio.testing

from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.serving import serve_kafka
from seglog_broker.listeners.session import EXCHANGE_SECONDS, Listener
from seglog_broker.storage.directory.accounts import Change, Credential
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka

PASSWORDS: Final = {"alice": "wonderland", "admin": "secret"}
ACCOUNTS: Final = Listener("CLIENT", "SASL_PLAINTEXT")
FOR_ACCOUNTS: Final = partial(serve_kafka, kinds=[ACCOUNTS])


def credential(password: str, mechanism: str = "SCRAM-SHA-256") -> Credential:
    salt, stored, server, iterations = scramp.ScramMechanism(mechanism).make_auth_info(password)
    return Credential(mechanism, iterations, salt, stored, server)


@asynccontextmanager
async def accounts(*flags: str, serve: Callable[..., Awaitable[None]] = FOR_ACCOUNTS) -> AsyncIterator[KafkaServed]:
    """A listener for accounts, of which ``admin`` administers."""
    async with kafka("super.users=User:admin", *flags, serve=serve) as served:
        store = served.broker.directory.accounts
        store.change(Change(name, "SCRAM-SHA-256", credential(password)) for name, password in PASSWORDS.items())
        yield served


@pytest.fixture
async def served() -> AsyncIterator[KafkaServed]:
    async with accounts() as served:
        yield served


async def handshake(peer: KafkaPeer, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return await peer.ask(messages.SaslHandshakeRequest(mechanism=mechanism), version)


async def authenticate(peer: KafkaPeer, token: bytes, version: int = 2) -> Any:
    return await peer.ask(messages.SaslAuthenticateRequest(auth_bytes=token), version)


async def log_in(peer: KafkaPeer, user: str = "alice", password: str | None = None) -> Any:
    """By PLAIN."""
    assert (await handshake(peer)).error_code == ErrorCode.NONE
    return await authenticate(peer, f"\0{user}\0{password or PASSWORDS[user]}".encode())


async def metadata(peer: KafkaPeer) -> Any:
    return await peer.ask(messages.MetadataRequest(topics=None), 12)


async def test_the_address_that_clients_use_is_told_with_the_name_of_their_listener(peer: KafkaPeer) -> None:
    await log_in(peer, "admin")
    asked = messages.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=["advertised.listeners"]
    )
    [result] = (await peer.ask(messages.DescribeConfigsRequest(resources=[asked]), 4)).results
    topic = messages.DescribeQuorumRequest.TopicData(
        topic_name="__cluster_metadata",
        partitions=[messages.DescribeQuorumRequest.PartitionData(partition_index=0)],
    )
    [node] = (await peer.ask(messages.DescribeQuorumRequest(topics=[topic]), 2)).nodes
    assert str(result.configs[0].value).startswith("CLIENT://127.0.0.1:")
    assert [listener.name for listener in node.listeners] == ["CLIENT"]


async def create(peer: KafkaPeer, topic: str) -> Any:
    asked = messages.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    [result] = (await peer.ask(messages.CreateTopicsRequest(topics=[asked], timeout_ms=1000), 7)).topics
    return result.error_code


async def test_a_client_asks_for_versions_then_logs_in_and_is_served(peer: KafkaPeer) -> None:
    versions = await peer.ask(messages.ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    assert {17, 36} <= {api.api_key for api in versions.api_keys}
    answered = await log_in(peer)
    assert (answered.error_code, answered.auth_bytes, answered.session_lifetime_ms) == (ErrorCode.NONE, b"", 0)
    assert {topic.name for topic in (await metadata(peer)).topics} >= {"plain", "keyed"}


async def test_a_listener_may_have_mechanisms_and_the_time_of_a_session_for_itself() -> None:
    flags = (
        "listeners=CLIENT://127.0.0.1:0",
        "listener.security.protocol.map=CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "listener.name.client.sasl.enabled.mechanisms=PLAIN",
        "listener.name.client.connections.max.reauth.ms=7000",
    )
    async with accounts(*flags) as served:
        peer = await served.connect()
        refused = await handshake(peer, "SCRAM-SHA-512")
        assert (refused.error_code, refused.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
        other = await served.connect()
        assert (await log_in(other)).session_lifetime_ms == 7000


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_proves_both_sides(mechanism: str, served: KafkaServed) -> None:
    store = served.broker.directory.accounts
    store.change([Change("alice", mechanism, credential(PASSWORDS["alice"], mechanism))])
    peer = await served.connect()
    assert (await handshake(peer, mechanism)).error_code == ErrorCode.NONE
    client = scramp.ScramClient([mechanism], "alice", PASSWORDS["alice"])
    first = await authenticate(peer, client.get_client_first().encode())
    client.set_server_first(bytes(first.auth_bytes).decode())
    final = await authenticate(peer, client.get_client_final().encode())
    client.set_server_final(bytes(final.auth_bytes).decode())
    assert (await metadata(peer)).topics


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "Wonderland"), ("nobody", "wonderland"), ("Alice", "wonderland"), ("alice", "x" * 9000)],
)
async def test_a_wrong_password_and_an_unknown_user_are_told_alike_and_the_connection_ends(
    user: str, password: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with accounts("connection.failed.authentication.delay.ms=7000") as served:
        peer = await served.connect()
        began = trio.current_time()
        answered = await log_in(peer, user, password)
        assert trio.current_time() - began >= 7
        assert answered.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answered.error_message == "Authentication failed: Invalid username or password"
        assert await peer.rest() == b""


async def test_requests_before_the_login_close_the_connection(served: KafkaServed) -> None:
    for request, version in (
        (messages.MetadataRequest(topics=None), 12),
        (messages.SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2),
        (messages.ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9),
    ):
        peer = await served.connect()
        await peer.send(cast("Any", request), version)
        assert await peer.rest() == b""


async def test_a_request_between_mechanism_and_token_is_refused(peer: KafkaPeer) -> None:
    await handshake(peer)
    assert (await peer.ask(messages.ListGroupsRequest(), 4)).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await peer.rest() == b""


async def test_a_large_request_between_mechanism_and_token_is_not_even_read(peer: KafkaPeer) -> None:
    """To answer all that it may name would hold up every other client, for one without an account."""
    await handshake(peer)
    deleted = messages.DeleteTopicsRequest.DeleteTopicState
    await peer.send(messages.DeleteTopicsRequest(topics=[deleted(name=f"t{n}") for n in range(15_000)]), 6)
    assert await peer.rest() == b""


async def test_tokens_come_as_frames_of_their_own_behind_the_old_handshake(peer: KafkaPeer) -> None:
    assert (await handshake(peer, version=0)).error_code == ErrorCode.NONE
    token = b"\0alice\0wonderland"
    await peer.stream.send_all(len(token).to_bytes(4, "big") + token)
    assert await peer.receive_frame() == b""
    assert (await metadata(peer)).topics


async def test_the_old_handshake_has_no_words_for_a_failure(served: KafkaServed) -> None:
    for token in (b"\0alice\0wrong", b"", b"x"):
        peer = await served.connect()
        await handshake(peer, version=0)
        await peer.stream.send_all(len(token).to_bytes(4, "big") + token)
        assert await peer.rest() == b""


async def test_a_frame_above_the_limit_ends_the_connection_before_it_comes() -> None:
    async with accounts("sasl.server.max.receive.size=1000") as served:
        peer = await served.connect()
        await peer.stream.send_all((1001).to_bytes(4, "big") + b"\0\x11")
        assert await peer.rest() == b""


async def test_a_client_that_says_nothing_is_closed_after_a_time(
    autojump_clock: trio.testing.MockClock, peer: KafkaPeer
) -> None:
    began = trio.current_time()
    assert await peer.rest() == b""
    assert trio.current_time() - began >= EXCHANGE_SECONDS


async def test_a_new_password_counts_at_the_next_login_and_a_deleted_account_is_out_at_once(
    served: KafkaServed, peer: KafkaPeer, autojump_clock: trio.testing.MockClock
) -> None:
    await log_in(peer)
    accounts = served.broker.directory.accounts
    accounts.change([Change("alice", "SCRAM-SHA-256", credential("another"))])
    assert (await metadata(peer)).topics
    assert (await log_in(await served.connect())).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    accounts.change([Change("alice", "SCRAM-SHA-256", None)])
    assert await peer.rest() == b""


# --- Sessions that end ------------------------------------------------------------------------------------------------


async def test_a_session_that_has_ended_goes_on_after_another_login(autojump_clock: trio.testing.MockClock) -> None:
    async with accounts("connections.max.reauth.ms=60000") as served:
        peer = await served.connect()
        assert (await log_in(peer)).session_lifetime_ms == 60_000
        await trio.sleep(59)
        assert (await metadata(peer)).topics
        await trio.sleep(2)
        assert (await log_in(peer)).session_lifetime_ms == 60_000
        assert (await metadata(peer)).topics
        await trio.sleep(61)
        await peer.send(messages.MetadataRequest(topics=None), 12)
        assert await peer.rest() == b""


async def test_an_open_connection_keeps_its_account(autojump_clock: trio.testing.MockClock) -> None:
    async with accounts("connections.max.reauth.ms=60000") as served:
        peer = await served.connect()
        await log_in(peer)
        answered = await log_in(peer, "admin")
        assert answered.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert (
            answered.error_message == "Cannot change principals during re-authentication from User:alice to User:admin"
        )
        assert await peer.rest() == b""


async def test_a_session_without_end_needs_no_other_login(peer: KafkaPeer) -> None:
    await log_in(peer)
    answered = await handshake(peer)
    assert (answered.error_code, answered.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    refused = await authenticate(peer, b"\0alice\0wonderland")
    assert refused.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert refused.error_message == "SaslAuthenticate request received after successful authentication"
    assert (await metadata(peer)).topics


async def test_a_listener_without_accounts_wants_none() -> None:
    async with kafka() as served:
        peer = await served.connect()
        assert (await handshake(peer)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await authenticate(peer, b"\0alice\0x")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await metadata(peer)).topics


# --- Who may do what --------------------------------------------------------------------------------------------------


async def test_administrators_alone_change_topics(served: KafkaServed) -> None:
    alice, admin = await served.connect(), await served.connect()
    await log_in(alice)
    await log_in(admin, "admin")
    assert await create(alice, "new") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "new" not in served.broker.directory.registry.topics
    assert await create(admin, "new") == ErrorCode.NONE
    asked = messages.MetadataRequest.MetadataRequestTopic(name="newer")
    for peer, code in ((alice, ErrorCode.TOPIC_AUTHORIZATION_FAILED), (admin, ErrorCode.NONE)):
        [topic] = (await peer.ask(messages.MetadataRequest(topics=[asked], allow_auto_topic_creation=True), 12)).topics
        assert topic.error_code == code


async def test_a_refusal_says_what_it_is_about(peer: KafkaPeer) -> None:
    await log_in(peer)
    for kind, name, expected in (
        (2, "plain", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (32, "readers", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (4, "1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[]
        )
        [answered] = (await peer.ask(messages.IncrementalAlterConfigsRequest(resources=[resource]), 1)).responses
        assert answered.error_code == expected


async def test_a_topic_that_is_not_there_is_said_to_be_missing(served: KafkaServed, peer: KafkaPeer) -> None:
    await log_in(peer)
    refusal = (await served.connection_of(peer)).session.refusal(Operation.CREATE, Kind.TOPIC, "nwe", is_new=True)
    assert refusal is not None
    assert "there is no topic nwe, and User:alice may not create it" in refusal.message


async def test_clients_are_told_what_they_may_do(served: KafkaServed) -> None:
    for user, operations in (("alice", 1304), ("admin", 3576)):
        peer = await served.connect()
        await log_in(peer, user)
        asked = messages.MetadataRequest.MetadataRequestTopic(name="plain")
        request = messages.MetadataRequest(topics=[asked], include_topic_authorized_operations=True)
        [topic] = (await peer.ask(request, 12)).topics
        assert topic.topic_authorized_operations == operations


def test_every_api_is_for_everyone_or_for_administrators() -> None:
    """Those that are not here are refused to others; ListGroups, say, reads, and joins and commits are of one's own."""
    everyone = {
        "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup",
        "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups", "ListGroups", "SaslHandshake", "ApiVersions",
        "InitProducerId", "OffsetForLeaderEpoch", "DescribeAcls", "DescribeConfigs", "DescribeLogDirs",
        "SaslAuthenticate", "ListPartitionReassignments", "DescribeClientQuotas", "DescribeQuorum", "DescribeCluster",
        "DescribeProducers", "DescribeTransactions", "ListTransactions", "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe", "ListConfigResources", "DescribeTopicPartitions", "AddPartitionsToTxn",
        "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", "CreateDelegationToken", "RenewDelegationToken",
        "ExpireDelegationToken", "DescribeDelegationToken", "ShareGroupHeartbeat", "ShareGroupDescribe",
        "DescribeShareGroupOffsets", "ShareFetch", "ShareAcknowledge",
        "WriteTxnMarkers",  # its handler asks: there are two operations for it
    }  # fmt: skip
    assert {api.name for api in APIS.values() if api.needs is None} == everyone
