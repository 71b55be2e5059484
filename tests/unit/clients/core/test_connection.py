"""The connection core, as bytes: whole, byte by byte, out of order, unknown, garbage."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.connection import Connection
from seglog_protocol.errors import LocalProtocolError, RemoteProtocolError, SeglogError
from seglog_protocol.frames import FrameReader, encode_frame
from seglog_protocol.messages import (
    AppendPartition,
    AppendRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    HelloRequest,
    reply_header,
)
from tests.support import each_case, request_of


def reply(request_id: int, payload: bytes = b"") -> bytes:
    return encode_frame(reply_header(request_id, DeleteTopicReply("t")), [payload])


def test_a_request_is_written_as_one_frame_that_the_broker_can_read() -> None:
    connection = Connection()
    request = AppendRequest([AppendPartition("t", 0, 6000)])
    _, buffers = connection.send(request, [b"x" * 4000, b"y" * 2000])
    assert len(buffers) == 3, "large payloads are not copied"
    reader = FrameReader()
    reader.receive_data(b"".join(buffers))
    frame = reader.next_frame()
    assert frame is not None
    assert request_of(frame.header) == request
    assert bytes(frame.payload) == b"x" * 4000 + b"y" * 2000


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_replies_come_out_whole_however_they_are_cut(step: int) -> None:
    connection = Connection()
    ids = [connection.send(DeleteTopicRequest("t"))[0] for _ in range(3)]
    data = reply(ids[2], b"c") + reply(ids[0], b"a" * 300) + reply(ids[1])
    got = []
    for position in range(0, len(data), step):
        connection.receive_data(data[position : position + step])
        while (one := connection.next_reply()) is not None:
            got.append((one.request_id, bytes(one.payload)))
    assert got == [(ids[2], b"c"), (ids[0], b"a" * 300), (ids[1], b"")]


def test_unknown_repeated_and_abandoned_ids_are_dropped() -> None:
    connection = Connection()
    first, _ = connection.send(DeleteTopicRequest("t"))
    second, _ = connection.send(DeleteTopicRequest("t"))
    unanswered, _ = connection.send(AppendRequest([], ack="none"), is_answered=False)
    connection.abandon(first)
    connection.receive_data(reply(999) + reply(first) + reply(unanswered) + reply(second) + reply(second))
    got = connection.next_reply()
    assert got is not None
    assert got.request_id == second
    assert connection.next_reply() is None


@each_case(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"-ERR unknown command\r\n", b"\0\0\0\1x"],
)
def test_a_stranger_on_the_port_is_named_and_the_port_to_use(greeting: bytes) -> None:
    connection = Connection("example:80")
    connection.send(HelloRequest("seglog"))
    connection.receive_data(greeting)
    with pytest.raises(RemoteProtocolError, match=r"example:80 does not speak the seglog protocol.*9192") as caught:
        connection.next_reply()
    assert type(caught.value) is RemoteProtocolError


def test_an_end_before_the_first_answer_may_be_a_broker_in_transit_or_a_stranger() -> None:
    connection = Connection("example:80")
    request_id, _ = connection.send(HelloRequest("seglog"))
    without_a_word = connection.receive_end()
    assert without_a_word.server == "example:80"
    assert re.search(r"starting or stopping.*does not speak the seglog protocol.*9192", without_a_word.message)
    connection.receive_data(reply(request_id))
    assert connection.next_reply() is not None
    assert re.search("between two answers", connection.receive_end().message)


def test_an_error_without_an_id_is_raised_as_it_is() -> None:
    connection = Connection()
    connection.receive_data(encode_frame({"error": {"code": "UNKNOWN_TOPIC", "message": "no", "retriable": False}}))
    with pytest.raises(SeglogError, match="no"):
        connection.next_reply()


def test_a_request_that_no_header_can_hold_changes_nothing() -> None:
    connection = Connection()
    with pytest.raises(LocalProtocolError, match="fewer partitions"):
        connection.send(DeleteTopicRequest("x" * 2_000_000))
    for number in (2**64, -(2**63) - 1, 10**30):
        with pytest.raises(LocalProtocolError, match="a number in the append request is out of range"):
            connection.send(AppendRequest([AppendPartition("t", number, 6000)]))
    assert connection.send(DeleteTopicRequest("t"))[0] == 1


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_give_replies_or_one_typed_error(data: bytes, is_known: bool) -> None:
    connection = Connection()
    request_id, _ = connection.send(HelloRequest("seglog"))
    if is_known:
        connection.receive_data(reply(request_id))
        assert connection.next_reply() is not None
    connection.receive_data(data)
    try:
        while connection.next_reply() is not None:
            pass
    except SeglogError:
        pass
