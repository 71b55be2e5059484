"""Packed headers: the same bytes as msgpack makes of the same map, and the same outcome as of the map they hold."""

import math
import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scripts.message_tables import fields
from seglog_protocol import messages
from seglog_protocol.errors import RemoteProtocolError, SeglogError, UnknownTopicError, error_to_wire
from seglog_protocol.frames import decode_map
from seglog_protocol.messages.headers import NAMED_BYTES_MAX
from tests.support import each_case, examples, memory_taken, request_of
from tests.unit.protocol.test_messages import ANY, HEADERS, REPLIES, comparable, decoded_codes, of_type
from tests.unit.protocol.test_refusals import Name, Numbers, OwnList

IDS: Final = st.integers(0, messages.INT64_MAX)


def as_map(value: Any) -> Any:
    """What a message is as plain maps, put together field by field."""
    if isinstance(value, SeglogError):
        return error_to_wire(value)
    if isinstance(value, messages.Message):
        named = {field.name: as_map(getattr(value, field.name)) for field in fields(type(value))}
        return {name: held for name, held in named.items() if held is not None}
    if isinstance(value, list):
        return [as_map(item) for item in value]
    if isinstance(value, dict):
        return {key: as_map(item) for key, item in value.items()}
    return value


def request_map(request_id: int, request: messages.Request) -> dict[str, Any]:
    """The header of a request, in the order it travels in."""
    own: dict[str, Any] = as_map(request)
    return {"id": request_id, "api": request.api, "v": request.version_needed()} | own


def packed(value: Any) -> bytes:
    """A value as msgpack itself packs it."""
    data: bytes = msgpack.packb(value)
    return data


def widely(value: Any) -> bytes:
    """A value packed in the widest way there is: any width may come."""
    if type(value) is int:
        return b"\xd3" + struct.pack(">q", value) if value <= messages.INT64_MAX else b"\xcf" + struct.pack(">Q", value)
    if type(value) is str:
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if type(value) is list:
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(widely, value))
    if type(value) is dict:
        entries = b"".join(widely(key) + widely(item) for key, item in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + entries
    return packed(value)


# --- The same bytes ---------------------------------------------------------------------------------------------------


@each_case("kind", list(messages.REQUESTS.values()))
@given(data=st.data(), request_id=IDS)
def test_a_request_is_packed_as_msgpack_packs_it(
    kind: type[messages.Request], data: st.DataObject, request_id: int
) -> None:
    request = data.draw(of_type(kind))
    expected = packed(request_map(request_id, request))
    assert messages.pack_request(request_id, request) == expected
    assert packed(messages.request_header(request_id, request)) == expected


def packed_in_pieces(reply: messages.Message, size: int) -> tuple[bytes, int]:
    """The fields of a reply, and how many pauses there were."""
    pieces, pauses = messages.pack_long_fields(reply, size), 0
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1


@each_case("count", [0, 1, 255, 256, 257, 1000])
def test_a_long_reply_is_packed_in_pieces_as_it_would_be_at_once(count: int) -> None:
    reply = messages.OffsetsReply(
        [messages.OffsetsResult("t", number, 0, number) for number in range(count)], {"t": "x"}
    )
    assert packed_in_pieces(reply, 256) == (messages.pack_fields(reply), count // 256)


@each_case("kind", REPLIES)
@given(data=st.data(), request_id=IDS)
def test_a_reply_is_packed_as_msgpack_packs_it_whole_or_in_pieces(
    kind: type[messages.Message], data: st.DataObject, request_id: int
) -> None:
    reply = data.draw(of_type(kind))
    expected = packed({"id": request_id} | as_map(reply))
    assert messages.pack_reply(request_id, reply) == expected
    assert packed(messages.reply_header(request_id, reply)) == expected
    fields_alone = messages.pack_fields(reply)
    assert messages.pack_reply_header(request_id, fields_alone) == expected
    assert packed_in_pieces(reply, 2)[0] == fields_alone


@each_case("kind", [messages.TopicDescription, messages.ExplainedSegment])
@given(data=st.data())
def test_a_page_is_packed_as_msgpack_packs_it(kind: type[messages.Message], data: st.DataObject) -> None:
    page = data.draw(st.lists(of_type(kind), max_size=20))
    assert messages.pack_page(page) == packed(as_map(page))


@given(data=st.data(), fill=st.booleans())
def test_the_longest_replies_are_packed_as_msgpack_packs_them(data: st.DataObject, *, fill: bool) -> None:
    """Of more than 15 fields, fewer or more than 15 travel."""
    reply = data.draw(of_type(messages.ExplainReply))
    left = {field.name: 0 if fill else None for field in fields(messages.ExplainReply) if field.default is None}
    reply = msgspec.structs.replace(reply, **left)
    assert (len(as_map(reply)) > 15) == fill
    assert messages.pack_reply(1, reply) == packed({"id": 1} | as_map(reply))
    assert messages.pack_fields(reply) == packed(as_map(reply))


def test_a_field_that_holds_its_default_travels_all_the_same() -> None:
    header = decode_map(messages.pack_request(1, messages.FetchRequest([messages.FetchPartition("t", 0)])), "header")
    assert header == {
        "id": 1,
        "api": "fetch",
        "v": 1,
        "max_bytes": 50 * 1024 * 1024,
        "min_bytes": 1,
        "max_wait_ms": 30_000,
        "partitions": [{"topic": "t", "partition": 0, "max_bytes": 1024 * 1024}],
    }
    assert decode_map(messages.pack_reply(1, messages.TopicsReply()), "header") == {
        "id": 1,
        "more": False,
        "unknown": [],
    }


def test_facts_of_types_made_of_plain_ones_travel_as_these() -> None:
    refused = UnknownTopicError("no", topic=Name("t"), seen=OwnList([b"raw", bytearray(b"raw"), Numbers.TWO]))
    reply = messages.AppendReply([messages.AppendResult("t", 0, error=refused)])
    assert decode_map(messages.pack_reply(1, reply), "header") == {
        "id": 1,
        "partitions": [{"topic": "t", "partition": 0, "error": error_to_wire(refused) | {"seen": [b"raw", b"raw", 2]}}],
    }


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_number_too_large_for_msgpack_is_an_overflow(number: int) -> None:
    with pytest.raises(OverflowError):
        messages.pack_request(1, messages.AppendRequest([messages.AppendPartition("t", number, 0)]))


# --- The same outcome -------------------------------------------------------------------------------------------------


def outcome(decode: Callable[[], Any]) -> Any:
    """What came of it: a message field by field, or an error with all that it says."""
    try:
        return comparable(decode())
    except SeglogError as error:
        return comparable(error)


@each_case("kind", list(messages.REQUESTS.values()))
@given(data=st.data(), request_id=IDS)
def test_a_request_of_any_order_and_width_is_opened_as_it_was(
    kind: type[messages.Request], data: st.DataObject, request_id: int
) -> None:
    request = data.draw(of_type(kind))
    header = request_map(request_id, request)
    shuffled = dict(data.draw(st.permutations(list(header.items()))))
    for found in (packed(header), packed(shuffled), widely(shuffled)):
        opened = messages.open_request(found)
        assert (opened.request_id, opened.api) == (request_id, kind.api)
        assert comparable(opened.request) == comparable(request)


@each_case("kind", REPLIES)
@given(data=st.data(), request_id=IDS)
def test_a_reply_of_any_order_and_width_is_decoded_as_it_was(
    kind: type[messages.Message], data: st.DataObject, request_id: int
) -> None:
    reply = data.draw(of_type(kind))
    header = {"id": request_id} | as_map(reply)
    shuffled = dict(data.draw(st.permutations(list(header.items()))))
    expected = comparable(decoded_codes(reply))
    assert comparable(messages.decode_reply(header, kind)) == expected
    for found in (packed(header), packed(shuffled), memoryview(bytearray(widely(shuffled)))):
        assert comparable(messages.decode_reply(found, kind)) == expected
        assert messages.reply_id_of(found) == request_id


@given(header=HEADERS, kind=st.sampled_from(REPLIES))
@settings(max_examples=examples(500))
def test_any_map_is_a_reply_or_the_error_that_it_is_as_a_map(
    header: dict[str, Any], kind: type[messages.Message]
) -> None:
    data = packed(header)
    assert outcome(lambda: messages.decode_reply(data, kind)) == outcome(
        lambda: messages.decode_reply(decode_map(data, "header"), kind)
    )


TELLING: Final = bytes.fromhex("00017f80819091a1c0c1c3c4cacbcfd3d4d9dcdddedfe0ff")
"""Bytes that begin something in msgpack."""


@st.composite
def damaged(draw: st.DrawFn, headers: st.SearchStrategy[dict[str, Any]]) -> bytes:
    """A packed header with bytes changed, put in and taken out, or an entry more than once."""
    header = draw(headers)
    entries = [packed(name) + packed(value) for name, value in header.items()]
    if entries:
        entries += draw(st.just([]) | st.lists(st.sampled_from(entries), max_size=2))
    data = bytearray(b"\xde" + len(entries).to_bytes(2, "big") + b"".join(entries))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        byte = draw(st.sampled_from(TELLING) | st.integers(0, 255))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] = byte
            case 1:
                data.insert(at, byte)
            case 2:
                data[at] = (data[at] + draw(st.sampled_from([-1, 1]))) % 256  # a length, or a name by one letter
            case _:
                del data[at : at + draw(st.integers(1, 3))]
                data = data or bytearray(b"\x80")
    return bytes(data)


REQUEST_MAPS: Final = st.sampled_from(list(messages.REQUESTS.values())).flatmap(
    lambda kind: st.builds(request_map, IDS, of_type(kind))
)


ENVELOPES: Final = st.fixed_dictionaries(
    {"id": IDS, "api": st.sampled_from(list(messages.REQUESTS)) | ANY, "v": st.just(1) | ANY}
)


@given(
    data=damaged(REQUEST_MAPS)
    | st.builds(lambda own, envelope: packed(own | envelope), HEADERS, ENVELOPES | st.just({}))
    | st.binary(max_size=200)
)
@example(data=packed({"id": 1, "api": "append", "v": 1, "ack": [math.nan]}))
@settings(max_examples=examples(2000))
def test_any_bytes_are_a_request_or_an_error_to_answer_it_with_or_end_the_connection(data: bytes) -> None:
    try:
        opened = messages.open_request(data)
    except RemoteProtocolError:
        return
    if isinstance(opened.request, SeglogError):
        assert opened.request.code in {"INVALID_REQUEST", "UNSUPPORTED_API", "UNSUPPORTED_VERSION"}
        assert messages.pack_reply(opened.request_id, opened.request)
        return
    assert comparable(opened.request) == comparable(request_of(decode_map(data, "header")))


REPLY_MAPS: Final = st.sampled_from(REPLIES).flatmap(
    lambda kind: st.tuples(st.just(kind), damaged(st.builds(lambda reply: {"id": 1} | as_map(reply), of_type(kind))))
)


@given(made=REPLY_MAPS)
@settings(max_examples=examples(2000))
def test_a_damaged_reply_is_a_reply_or_an_error(made: tuple[type[messages.Message], bytes]) -> None:
    kind, data = made
    messages.reply_id_of(data)
    try:
        reply = messages.decode_reply(data, kind)
    except SeglogError:
        return
    assert type(reply) is kind
    try:
        header = decode_map(data, "header")
    except RemoteProtocolError:
        return  # what nobody asks for need not be text or have text for its keys
    assert comparable(reply) == comparable(messages.decode_reply(header, kind))


# --- What it costs ----------------------------------------------------------------------------------------------------

ENVELOPE: Final = b"\xa2id\x01\xa3api\xa6append\xa1v\x01"
HOSTILE: Final = {
    "a list of four billion": b"\xaapartitions\xdd\xff\xff\xff\xff",
    "a list of a billion in a list": b"\xaapartitions\x91\xdd\x3f\xff\xff\xff",
    "a map of four billion": b"\xa9topic_ids\xdf\xff\xff\xff\xff",
    "a text of four billion": b"\xa3ack\xdb\xff\xff\xff\xff",
    "bytes of four billion": b"\xa3ack\xc6\xff\xff\xff\xff",
    "an extension of four billion": b"\xa3ack\xc9\xff\xff\xff\xff\x05",
    "an unknown list of four billion": b"\xa5newer\xdd\xff\xff\xff\xff",
    "an unknown text of four billion": b"\xa5newer\xdb\xff\xff\xff\xff",
    "lists in lists": b"\xaapartitions" + b"\x91" * 100_000,
    "lists in lists that are unknown": b"\xa5newer" + b"\x91" * 100_000,
    "maps in maps": b"\xaapartitions\x91" + b"\x81\xa5topic" * 100_000,
}


@each_case("what", HOSTILE)
@each_case("is_first", [False, True])
def test_announced_sizes_and_endless_nesting_take_no_memory(what: str, *, is_first: bool) -> None:
    field = HOSTILE[what]
    data = b"\x84" + (field + ENVELOPE if is_first else ENVELOPE + field)
    messages.open_request(packed({"id": 1, "api": "hello", "v": 1, "protocol": "seglog"}))  # what is made at first use
    with memory_taken() as most, pytest.raises(RemoteProtocolError, match="the header is"):
        messages.open_request(data)
    assert most() < 4 * len(data) + 200_000
    assert messages.reply_id_of(data) in {None, 1}
    with pytest.raises(RemoteProtocolError):
        messages.decode_reply(data, messages.AppendReply)


VERY_MANY: Final[dict[str, dict[str, Any]]] = {
    "lists": {"api": "topics", "names": [[]] * 900_000},
    "lists of names": {"api": "topics", "names": [["abc"]] * 180_000},
    "nothings": {"api": "topics", "names": [None] * 900_000},
    "different keys": {"api": "topics"} | {f"{number:05x}": None for number in range(140_000)},
    "different settings": {"api": "create_topic", "topic": "t", "config": {f"{n:05x}": "" for n in range(140_000)}},
    "maps in what is unknown": {"api": "topics", "newer": [{"a": 1}] * 200_000},
    "partitions": {"api": "fetch", "partitions": [{"topic": "t", "partition": 1, "offset": 1}] * 30_000},
    "a long api": {"api": "x" * 1_000_000},
    "lists for an api": {"api": [[]] * 900_000},
    "lists for a version": {"api": "topics", "v": [[]] * 900_000},
    "lists for an ack": {"api": "append", "partitions": [], "ack": [[]] * 900_000},
}


@each_case("what", VERY_MANY)
def test_a_mebibyte_that_is_no_request_is_refused_without_making_a_map_of_it(what: str) -> None:
    """A map of it takes up to 100 ms, during which no other connection is served, and tens of mebibytes."""
    data = packed({"id": 1, "v": 1} | VERY_MANY[what])
    assert NAMED_BYTES_MAX < len(data) < 1024 * 1024 + 200
    messages.open_request(packed({"id": 1, "api": "hello", "v": 1, "protocol": "seglog"}))  # what is made at first use
    with memory_taken() as most:
        opened = messages.open_request(data)
    assert most() < 3 * len(data)
    assert opened.request_id == 1
    assert isinstance(opened.request, SeglogError)
    assert len(opened.request.message) < 500
    assert opened.request.code in {"INVALID_REQUEST", "UNSUPPORTED_API", "UNSUPPORTED_VERSION"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\x91" * 5_000, "lists and maps are nested too deeply"), (b"\x81\xc1\x01", "a byte begins no value")],
)
def test_the_reason_is_in_words_where_msgpack_has_none(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"the header is not valid msgpack: {reason}"):
        decode_map(data, "header")


@each_case("request_id", [None, -1, 2**63, True, 1.0, "1", [1]])
def test_a_packed_request_without_a_proper_id_cannot_be_answered(request_id: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="id"):
        messages.open_request(packed({"id": request_id, "api": "hello", "v": 1, "protocol": "seglog"}))
    assert messages.open_request(packed({"id": 0, "api": "hello", "v": 1, "protocol": "seglog"})).request_id == 0


@each_case("header", [{"api": "none"}, {"api": "topics", "v": 99}, {"api": "topics", "newer": 1}])
def test_a_refusal_does_not_hold_the_frames_that_hold_it(header: dict[str, Any]) -> None:
    """A cycle of a request, its bytes and its error would be kept until the collector finds it."""
    refused = messages.open_request(packed({"id": 1, "v": 1} | header)).request
    assert isinstance(refused, SeglogError)
    assert (refused.__traceback__, refused.__context__, refused.__cause__) == (None, None, None)
