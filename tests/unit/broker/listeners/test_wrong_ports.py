"""Clients that have reached the port of the other wire: each learns it at once, and the log says which is theirs."""

from functools import partial

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock

from seglog_broker.listeners.kafka.first_bytes import answer_to_http, native_client
from seglog_broker.listeners.serving import serve_kafka, serve_native
from seglog_broker.listeners.session import Listener
from seglog_protocol.errors import TlsRequiredError, WrongPortError, error_from_wire
from seglog_protocol.frames import FrameReader, encode_frame
from seglog_protocol.kafka import read_response, write_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.messages import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from seglog_protocol.messages import PROTOCOL_NAME, AuthenticateRequest, HelloRequest, request_header
from tests.unit.broker.listeners.fake_broker import OFFSETS, FakeBroker, serving
from tests.unit.broker.listeners.wires import WIRES, serving_wire

KAFKA = WIRES[1]
AUTHENTICATE = encode_frame(request_header(1, AuthenticateRequest("", b"")))
HELLO = encode_frame(request_header(1, HelloRequest(PROTOCOL_NAME, "seglog-python")))

# --- Kafka's clients on the native port -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 9])
async def test_a_kafka_client_gets_an_error_of_its_own_protocol_and_the_log_has_its_port(version: int) -> None:
    serve = partial(serve_native, kafka=["127.0.0.1:9092"])
    request = write_request(7, "librdkafka", ApiVersionsRequest(), min(version, 4))
    first = bytearray(b"".join(request))
    first[7] = version
    async with serving(FakeBroker(), serve) as served:
        with capture_logs() as logged:
            peer = await served.connect()
            await peer.stream.send_all(first)
            answer = await peer.rest()
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    correlation_id, response = read_response(18, min(version, 4), memoryview(answer)[4:])
    assert isinstance(response, ApiVersionsResponse)
    assert (correlation_id, response.error_code) == (7, ErrorCode.LISTENER_NOT_FOUND)
    [entry] = logged
    assert (entry["event"], entry["kind"]) == ("connection_refused", "kafka")
    assert entry["reason"] == "a Kafka client on seglog's own port: its port is 127.0.0.1:9092 (listeners)"


async def test_a_kafka_client_that_begins_otherwise_is_hung_up_on() -> None:
    async with serving(FakeBroker()) as served:
        with capture_logs() as logged:
            peer = await served.connect()
            await peer.stream.send_all(b"".join(write_request(1, "old", MetadataRequest(topics=None), 1)))
            assert await peer.rest() == b""
    assert [entry["reason"] for entry in logged] == [
        "a Kafka client on seglog's own port: listeners is empty, so it has no port"
    ]


@pytest.mark.parametrize(
    ("version", "cut", "reason"),
    [
        (1, 5, "no whole hello came within 10 s"),
        (2, None, "no other hello came within 10 s: hello is spoken in versions 1 to 1, not 2"),
    ],
    ids=["half", "another version"],
)
async def test_a_hello_that_never_becomes_good_is_logged_as_that(
    version: int, cut: int | None, reason: str, autojump_clock: MockClock
) -> None:
    hello = encode_frame({"id": 1, "api": "hello", "v": version, "protocol": "seglog"})
    async with serving(FakeBroker()) as served:
        with capture_logs() as logged:
            peer = await served.connect()
            await peer.stream.send_all(hello[:cut])
            answer = await peer.rest()
    assert (b"native port" in answer) == (cut is not None), "who speaks the protocol gets no line of text"
    assert [entry["reason"] for entry in logged] == [reason]


# --- seglog's clients on the port of Kafka's --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("first", [HELLO, AUTHENTICATE], ids=["hello", "authenticate"])
@pytest.mark.parametrize("pieces", [1, 7, 1000])
async def test_a_seglog_client_gets_an_error_of_its_own_protocol_with_the_native_port(
    pieces: int, first: bytes, protocol: str
) -> None:
    kinds = [Listener("CLIENT", protocol)]
    kit = KAFKA._replace(serve=partial(serve_kafka, native_port=9192, kinds=kinds))
    async with serving_wire(kit) as served:
        with capture_logs() as logged:
            peer = await served.connect()
            for at in range(0, len(first), pieces):
                await peer.stream.send_all(first[at : at + pieces])
            reader = FrameReader()
            while data := await peer.stream.receive_some():
                reader.receive_data(data)
        frame = reader.next_frame()
        assert frame is not None
        header = frame.header
        assert served.broker.metrics.request_errors["WRONG_PORT"] == 1
    assert header["id"] is None
    error = error_from_wire(header["error"])
    assert isinstance(error, WrongPortError)
    assert (error.port, error.retriable) == (9192, False)
    assert error.message == "this port is for Kafka's clients; seglog's own is 9192 (seglog.listen)"
    assert [entry["reason"] for entry in logged if entry["event"] == "connection_refused"] == [error.message]


# --- Scrapers on the port of Kafka's clients --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "CONNECT"])
async def test_a_client_of_http_gets_a_response_in_words_and_a_close(method: str, protocol: str) -> None:
    kit = KAFKA._replace(serve=partial(serve_kafka, native_port=9192, kinds=[Listener("CLIENT", protocol)]))
    async with serving_wire(kit) as served:
        peer = await served.connect()
        await peer.stream.send_all(f"{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await peer.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert f"Content-Length: {len(body)}".encode() in head.splitlines()
    assert b"a port of a seglog broker for Kafka's clients" in body
    assert b"(seglog.http.listen)" in body


def test_what_a_client_without_tls_begins_with_is_looked_at_too() -> None:
    error = TlsRequiredError("this port speaks TLS")
    assert answer_to_http(error, b"GET / HTTP/1.1").startswith(b"HTTP/1.0 400 ")
    assert answer_to_http(error, b"GE") == answer_to_http(error, b"\0\0\0\x14\0\x12") == answer_to_http(error) == b""


def test_only_what_comes_first_is_taken_for_that_of_a_seglog_client() -> None:
    assert native_client(memoryview(HELLO)[4:], 9192) is not None
    assert native_client(memoryview(AUTHENTICATE)[4:], 9192) is not None
    unknown_version = encode_frame({"id": 1, "api": "hello", "v": 99, "protocol": "seglog", "more": 1})
    assert native_client(memoryview(unknown_version)[4:], 9192) is not None
    for other in (b"", b"\0", b"\0\0\0\x0d", HELLO[4:20], encode_frame(request_header(1, OFFSETS))[4:], bytes(40)):
        assert native_client(memoryview(other), 9192) is None
