"""One Kafka connection: requests in their order, responses in the same order, and when it is closed.

Sources: Kafka's SocketServer and RequestContext, and what its clients do.
"""

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.handlers.produce import PARTITIONS_MAX, ResultPart
from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_broker.listeners.request_errors import append_errors
from seglog_broker.listeners.sender import AckQueue
from seglog_broker.runtime.request_memory import HELD_BYTES_MAX
from seglog_protocol.errors import StorageError
from seglog_protocol.frame_receiver import RECEIVE_BYTES
from seglog_protocol.kafka import messages, read_response
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.frames import SMALL_FRAME_BYTES_MAX
from tests.logs import batch
from tests.support import ON_SOURCES, each_case
from tests.unit.broker.listeners.kafka.kafka_peer import (
    KafkaPeer,
    KafkaServed,
    codes,
    fetch,
    found,
    kafka,
    latest,
    produce,
    results,
)

BATCH = batch(b"value")
PRODUCED = messages.ProduceResponse


def raw(api_key: int, version: int, body: bytes, *, correlation_id: int = 7, length: int | None = None) -> bytes:
    """A frame of any content, with a header of version 1; ``length`` is what it says of itself."""
    content = struct.pack(">hhih", api_key, version, correlation_id, -1) + body
    return struct.pack(">i", len(content) if length is None else length) + content


async def is_alive(served: KafkaServed) -> None:
    """Another client is served as ever."""
    peer = await served.connect()
    [(code, _)] = results(await peer.ask(produce(("plain", 2, BATCH)), 9))
    assert code == 0
    await peer.stream.aclose()


async def wire_of(served: KafkaServed, peer: KafkaPeer) -> KafkaWire:
    wire = (await served.connection_of(peer)).wire
    assert isinstance(wire, KafkaWire)
    return wire


def reasons(logged: list[Any], event: str = "connection_refused") -> list[str]:
    return [entry["reason"] for entry in logged if entry["event"] == event]


# --- ApiVersions, and what is not known -------------------------------------------------------------------------------


async def test_api_versions_in_an_unknown_version(served: KafkaServed, peer: KafkaPeer) -> None:
    """It is answered in its turn, in version 0, and the client tries again."""
    await peer.stream.send_all(peer.frame(produce(("plain", 0, BATCH)), 9) + raw(18, 99, b"what nobody knows"))
    assert results(await peer.receive(PRODUCED)) == [(0, 0)]
    correlation_id, response = read_response(18, 0, memoryview(await peer.receive_frame()))
    assert correlation_id == 7
    assert isinstance(response, messages.ApiVersionsResponse)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    [offered] = response.api_keys
    assert (offered.api_key, offered.min_version, offered.max_version) == (18, 0, 5)
    ask = messages.ApiVersionsRequest(client_software_name="client", client_software_version="1.0")
    answer = await peer.ask(ask, offered.max_version)
    assert answer.error_code == 0
    assert {item.api_key for item in answer.api_keys} == set(apis.APIS)
    assert answer.finalized_features_epoch == served.broker.features_epoch


@each_case(
    ("api_key", "body", "answer"),
    [
        (38, "00000000ffffffffffffffff", "00400004557365720009414e4f4e594d4f5553" + 24 * "ff" + 10 * "00"),
        (39, "00000001610000000000000001", "0040ffffffffffffffff00000000"),
        (40, "00000001610000000000000001", "0040ffffffffffffffff00000000"),
        (41, "ffffffff", "00400000000000000000"),
    ],
)
async def test_requests_about_delegation_tokens_get_the_bytes_of_a_kafka(
    api_key: int, body: str, answer: str, peer: KafkaPeer
) -> None:
    await peer.stream.send_all(raw(api_key, 1, bytes.fromhex(body)))
    assert (await peer.receive_frame()).hex() == "00000007" + answer


async def test_the_metadata_version_in_force_is_that_of_the_log_directory(served: KafkaServed, peer: KafkaPeer) -> None:
    """As in Kafka it stays when it is set to what it is."""
    for level in 30, 33:
        served.broker.directory.registry.metadata_version = level
        await peer.send(messages.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
        told = (await peer.receive(messages.ApiVersionsResponse)).finalized_features
        assert [each.max_version_level for each in told if each.name == "metadata.version"] == [level]
        for asked, code in (level, ErrorCode.NONE), (31, ErrorCode.INVALID_UPDATE_VERSION):
            update = messages.UpdateFeaturesRequest.FeatureUpdateKey(
                feature="metadata.version", max_version_level=asked
            )
            assert (await peer.ask(messages.UpdateFeaturesRequest(feature_updates=[update]), 1)).error_code == code


@each_case("name", ["", "-client", "two words", "client."])
async def test_a_client_software_with_an_impossible_name_is_an_invalid_request(name: str, peer: KafkaPeer) -> None:
    await peer.send(messages.ApiVersionsRequest(client_software_name=name, client_software_version="1"), 3)
    assert (await peer.receive(messages.ApiVersionsResponse)).error_code == ErrorCode.INVALID_REQUEST


async def test_the_log_has_a_client_that_leaves_three_times_when_it_knows_the_versions(served: KafkaServed) -> None:
    """The line comes once, however often it leaves, and another one when it goes on."""

    async def come(software: str, *then: Any) -> None:
        peer = await served.connect()
        asked = messages.ApiVersionsRequest(client_software_name=software, client_software_version="3.7.0")
        for request in (asked, *then):
            await peer.send(request, 3)
            await peer.receive_frame()
        await peer.stream.send_eof()
        assert await peer.rest() == b""

    goes_on = messages.MetadataRequest(topics=[])
    with capture_logs() as logged:
        for _ in range(4):
            await come("gives-up")
            await come("leaves-at-times")
            await come("leaves-at-times", goes_on)
            await come("produces", produce(("plain", 0, BATCH)))
            await served.connect()  # and asks nothing
        await come("gives-up", goes_on)
    told = [(entry["event"], entry["client"]) for entry in logged if entry["event"].startswith("client_")]
    assert told == [("client_gives_up", "gives-up 3.7.0"), ("client_goes_on", "gives-up 3.7.0")]


HERE = "the id of this cluster"


@each_case(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, ErrorCode.NONE),
        (HERE, 1, ErrorCode.NONE),
        (HERE, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (HERE, -2, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 1, ErrorCode.INVALID_REQUEST),
        (HERE, -1, ErrorCode.INVALID_REQUEST),
        ("", -1, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_client_that_meant_another_node_has_to_look_for_its_cluster_again(
    cluster_id: str | None, node_id: int, code: ErrorCode, served: KafkaServed
) -> None:
    if cluster_id == HERE:
        cluster_id = served.broker.directory.cluster_id
    asked = messages.ApiVersionsRequest(
        client_software_name="client", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    peer = await served.connect()
    answer = await peer.ask(asked, 5)
    assert (answer.error_code, bool(answer.api_keys), bool(answer.supported_features)) == (code, not code, not code)


@each_case(
    "data",
    [
        raw(999, 0, b""),
        raw(-1, 0, b""),
        raw(0, 2, bytes(100)),  # Produce is offered from version 0 on, and accepted from 3 on
        raw(0, 99, bytes(100)),
        raw(1, 3, bytes(100)),
        raw(3, 99, bytes(100)),
        raw(17, 2, b"\0\5PLAIN"),
        raw(3, 12, b"\xff" * 20),  # malformed
        raw(0, 9, b"\0" * 5),
        raw(0, 3, b"\xff\xff\0\1\0\0\0\0\x7f\xff\xff\xff"),
        raw(1, 4, b"", length=2**31 - 1),
        raw(1, 4, b"", length=-1),
        raw(1, 4, b"", length=0),
        raw(1, 4, b"", length=7),
        raw(0, 9, b"", length=100 * 1024 * 1024 + 1),
        raw(3, 12, b"", length=SMALL_FRAME_BYTES_MAX + 1),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS
    ],
)
async def test_a_malformed_request_closes_its_connection(data: bytes) -> None:
    """What cannot be understood closes its connection with a line in the log and no other."""
    async with kafka() as served:
        peer, beside = await served.connect(), await served.connect()
        await beside.send(fetch(("plain", 0, 0), max_wait_ms=60_000), 12)
        with capture_logs() as logged:
            before = peer.frame(produce(("plain", 1, BATCH)), 9)
            await peer.stream.send_all(before + data)
            assert results(await peer.receive(PRODUCED)) == [(0, 0)], "what came before is answered"
            assert await peer.rest() == b""
        assert len(reasons(logged)) == 1
        assert [entry["log_level"] for entry in logged if entry["event"] == "connection_refused"] == ["warning"]
        assert served.broker.metrics.request_errors["INVALID_REQUEST"] == 1
        await is_alive(served)
        await wait_all_tasks_blocked()
        assert beside.held == b""


async def test_unread_bytes_do_not_cost_earlier_responses(served: KafkaServed) -> None:
    """Closing a socket with unread bytes resets the connection."""
    served.broker.request_memory.note_held(HELD_BYTES_MAX + 1)  # so that little is received at a time
    peer = await served.connect()
    before = peer.frame(produce(("plain", 0, BATCH)), 9)
    data = before + raw(999, 0, b"") + bytes(200_000)
    assert os.write(peer.stream.socket.fileno(), data) > RECEIVE_BYTES + 1_000, "more than is read at once"
    assert results(await peer.receive(PRODUCED)) == [(0, 0)]
    assert await peer.stream.receive_some() == b"", "not reset"


async def test_a_produce_request_may_have_more_than_a_mebibyte_and_no_other() -> None:
    async with kafka("message.max.bytes=4000000") as served:
        peer = await served.connect()
        assert results(await peer.ask(produce(("plain", 0, batch(bytes(2_000_000)))), 9)) == [(0, 0)]
        names = [messages.MetadataRequest.MetadataRequestTopic(name=f"{number:030000}") for number in range(60)]
        response = await peer.ask(messages.MetadataRequest(topics=names[:30], allow_auto_topic_creation=False), 8)
        assert codes(response.topics) == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 30
        with suppress(trio.BrokenResourceError):  # it is closed before all is sent
            await peer.send(messages.MetadataRequest(topics=names, allow_auto_topic_creation=False), 8)
        assert await peer.rest() == b""


@each_case("version", [3, 9, 13])
async def test_a_produce_request_for_millions_of_partitions_closes_the_connection(version: int) -> None:
    cls = messages.ProduceRequest
    async with kafka() as served:
        peer = await served.connect()
        most = cls(
            acks=1,
            topic_data=[
                cls.TopicProduceData(
                    name="missing", partition_data=[cls.PartitionProduceData()] * (PARTITIONS_MAX // 2)
                )
            ]
            * 2,
        )
        assert len(results(await peer.ask(most, version))) == PARTITIONS_MAX
        most.topic_data.append(cls.TopicProduceData(name="missing"))
        with capture_logs() as logged:
            await peer.send(most, version)
            assert await peer.rest() == b""
        assert reasons(logged) == ["a Produce request for more than 10000 partitions"]
        await is_alive(served)


Epochs = messages.OffsetForLeaderEpochRequest
Deletions = messages.DeleteRecordsRequest
Metadata = messages.MetadataRequest
Enlarged = messages.CreatePartitionsRequest
Described = messages.DescribeTopicPartitionsRequest
Asked = Epochs.OffsetForLeaderTopic(topic="plain", partitions=[Epochs.OffsetForLeaderPartition()] * 5_000)
Emptied = Deletions.DeleteRecordsTopic(
    name="plain", partitions=[Deletions.DeleteRecordsPartition(partition_index=-1)] * 5_000
)
Gone = messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=bytes(15) + b"x")
NAMES = [f"n{number}" for number in range(5_000)]

MANY: list[tuple[Any, int, int]] = [
    (fetch(*[("plain", 0, 0)] * (PARTITIONS_MAX + 1)), 12, -1),
    (latest("plain", *range(5_000)), 5, 10),
    (Epochs(topics=[Asked]), 4, 10),
    (Deletions(topics=[Emptied]), 2, 10),
    (Metadata(topics=[Metadata.MetadataRequestTopic(name=n) for n in NAMES], allow_auto_topic_creation=False), 12, 100),
    (messages.CreateTopicsRequest(topics=[messages.CreateTopicsRequest.CreatableTopic(name="a")] * 5_000), 7, 1_000),
    (Enlarged(topics=[Enlarged.CreatePartitionsTopic(name="a")] * 5_000), 3, 1_000),
    (messages.DeleteTopicsRequest(topics=[Gone] * 5_000), 6, 1_000),
    (Described(topics=[Described.TopicRequest(name=name) for name in NAMES]), 0, 100),
]


@each_case(("request_", "version", "turns"), MANY, ids=lambda value: type(value).__name__)
async def test_a_request_for_very_much_lets_others_have_their_turns(request_: Any, version: int, turns: int) -> None:
    taken = 0
    async with kafka() as served:
        plain = served.broker.turn

        async def turn() -> None:
            nonlocal taken
            taken += 1
            await plain()

        served.broker.turn = turn
        peer = await served.connect()
        await peer.send(request_, version)
        if turns < 0:
            assert await peer.rest() == b""
        else:
            await peer.receive_frame()
            assert taken >= turns - 1


# --- What fails inside ------------------------------------------------------------------------------------------------


def failing(error: Callable[[], Exception]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error()

    return fail


ERRORS: list[Callable[[], Exception]] = [
    lambda: RuntimeError("a bug"),
    lambda: OSError(5, "Input/output error"),
    lambda: StorageError("the disk is broken"),
]


@each_case("error", [*ERRORS, None])  # without one, the response cannot be written
@each_case("api_key", [18, 3])  # one that is served at once, and one in a task
async def test_a_failing_handler_ends_its_connection(error: Callable[[], Exception] | None, api_key: int) -> None:
    """A handler that fails is logged and ends its connection when those before it are answered."""
    api = apis.APIS[api_key]
    cls = messages.MetadataResponse

    def fail(*_: object) -> Any:
        if error is not None:
            raise error()
        return cls(topics=[cls.MetadataResponseTopic(name=None)])

    async def fail_later(*_: object) -> Any:
        return fail()

    broken = api._replace(handle_now=fail) if api.handle_now else api._replace(handle=fail_later)
    async with kafka() as served:
        peer = await served.connect()
        (await wire_of(served, peer)).apis = {**apis.APIS, api_key: broken}
        request = messages.ApiVersionsRequest() if api_key == 18 else messages.MetadataRequest(topics=[])
        with capture_logs() as logged:
            await peer.stream.send_all(
                peer.frame(produce(("plain", 0, BATCH)), 9) + peer.frame(request, 1) + peer.frame(latest("plain", 0), 5)
            )
            assert results(await peer.receive(PRODUCED)) == [(0, 0)]
            assert await peer.rest() == b""
        [entry] = [entry for entry in logged if entry["event"] == "connection_refused"]
        assert entry["log_level"] == "error"
        assert entry["reason"].startswith(f"{api.name} failed: ")
        assert sum(served.broker.metrics.request_errors.values()) == 1
        await is_alive(served)


async def test_metadata_by_topic_id_is_an_invalid_request_before_version_12(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    topic = Metadata.MetadataRequestTopic(name=None, topic_id=served.id_of("plain"))
    for version, code in ((11, ErrorCode.INVALID_REQUEST), (12, ErrorCode.NONE)):
        assert codes((await peer.ask(Metadata(topics=[topic]), version)).topics) == [code]


@each_case("error", ERRORS)
@each_case("when", ["at once", "when it is retried", "in a task"])
async def test_a_fetch_that_fails_is_answered(error: Callable[[], Exception], when: str) -> None:
    failed = failing(error)

    async def fail(*_: object) -> Any:
        failed()

    def fail_again(_request: object, waiter: object = None) -> None:
        if waiter is not None:
            failed()

    async with kafka() as served:
        peer = await served.connect()
        broker = served.broker
        broker.fetch = fail  # type: ignore[assignment]
        if when != "in a task":
            broker.fetch_now = failed if when == "at once" else fail_again  # type: ignore[assignment]
        else:
            broker.wait_for = lambda *_: False
        with capture_logs():
            [(code, high_watermark, size)] = found(await peer.ask(fetch(("plain", 0, 0), max_wait_ms=10), 12))
        assert code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
        assert (high_watermark, size) == (-1, 0)
        assert (await peer.ask(latest("plain", 0), 5)).topics[0].partitions[0].offset == 0


@pytest.mark.parametrize("error", ERRORS)
async def test_an_append_that_fails_is_answered_also_amid_those_of_others(
    error: Callable[[], Exception], served: KafkaServed
) -> None:
    peers = [await served.connect() for _ in range(3)]
    append, served.broker.append = served.broker.append, failing(error)
    with capture_logs():
        for peer in peers:
            os.write(peer.stream.socket.fileno(), peer.frame(produce(("plain", 0, BATCH), ("plain", 1, BATCH)), 9))
        for peer in peers:
            told = results(await peer.receive(PRODUCED))
            assert [offset for _, offset in told] == [-1, -1]
            assert told[0][0] in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR)
    served.broker.append = append
    for number, peer in enumerate(peers):
        assert results(await peer.ask(produce(("plain", 0, BATCH)), 9)) == [(0, number)]


async def test_a_response_that_cannot_be_written_becomes_an_error(served: KafkaServed) -> None:
    peers = [await served.connect() for _ in range(3)]
    plain = served.broker.append

    def append(*arguments: Any, **options: Any) -> PendingAppends:
        pending = plain(*arguments, **options)
        for error in append_errors(pending.replies or ()):
            error.message = "\udc80"  # half a character
        return pending

    served.broker.append = append
    with capture_logs() as logged:
        for peer in peers:
            data = produce(("plain", 0, BATCH), ("plain", 3, BATCH), acks=1)
            os.write(peer.stream.socket.fileno(), peer.frame(data, 9))
        for peer in peers:
            assert results(await peer.receive(PRODUCED)) == [(ErrorCode.UNKNOWN_SERVER_ERROR, -1)] * 2
    assert [entry["event"] for entry in logged].count("request_crashed") == 3
    for peer in peers:
        assert (await peer.ask(latest("plain", 0), 5)).topics[0].partitions[0].offset == 3


@ON_SOURCES
async def test_frames_are_not_kept_until_their_ack() -> None:
    """A hundred mebibytes may wait for an fsync, and their buffers are wanted for other requests."""
    kept: list[list[Any]] = []

    class Looking(AckQueue):
        def add(self, request_ids: Sequence[Any], outcome: Any, size: int, began: float) -> None:
            (part,) = request_ids
            kept.append([part.produce.take_appends() if isinstance(part, ResultPart) else [], outcome._payloads])
            super().add(request_ids, outcome, size, began)

    async with kafka() as served:
        served.broker.sync_now = lambda: None  # so that it waits for its ack
        peer = await served.connect()
        connection = await served.connection_of(peer)
        connection.acks = Looking(connection.sender, connection.wire)
        for size in (10, 300_000):
            assert results(await peer.ask(produce(("plain", 0, batch(bytes(size)))), 9))[0][0] == 0
    assert kept == [[[], []]] * 2
