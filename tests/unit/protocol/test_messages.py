"""Messages: every one there and back, what is refused, what is ignored, and any map at all."""

import copy
import pickle
import types
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.message_tables import REQUIRED, fields, message_classes
from seglog_protocol import messages
from seglog_protocol.errors import (
    WIRE_ERRORS,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RemoteProtocolError,
    SeglogError,
    UnknownTopicError,
    UnsupportedApiError,
    UnsupportedVersionError,
    error_to_wire,
)
from seglog_protocol.frames import FrameReader, decode_map, encode_frame, encode_value
from tests.support import each_case, examples

ALL: Final = message_classes()
REPLIES: Final = [kind for kind in ALL if kind.__name__.endswith("Reply")]

FEW: Final = settings(max_examples=examples(25))
"""For properties of one field, tried for each."""

INT64: Final = st.integers(-messages.INT64_MAX - 1, messages.INT64_MAX)
ERRORS: Final = st.builds(
    lambda kind, message, facts: kind(message, **facts),
    st.sampled_from(WIRE_ERRORS),
    st.text(),
    st.dictionaries(st.sampled_from(["newer", "self", "args", "place"]), INT64 | st.text()),
)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold. Local, because registering types with Hypothesis is for the whole run."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return st.lists(of_type(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), of_type(arguments[1]), max_size=4)
    if origin is types.UnionType:
        return st.one_of([of_type(kind) for kind in arguments])
    if isinstance(hint, type) and issubclass(hint, messages.Message):
        return messages_of(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.builds(hint, **{name: of_type(kind) for name, kind in get_type_hints(hint).items()})
    own = {int: INT64, float: st.floats(allow_nan=False), SeglogError: ERRORS}
    own |= {str: st.text(max_size=64), bytes: st.binary(max_size=64)}  # some have a limit
    return own[hint] if hint in own else st.from_type(hint)


def messages_of(kind: type[messages.Message]) -> st.SearchStrategy[Any]:
    """Any message of a kind, every field of it within its range, also further in."""
    strategies = dict[str, st.SearchStrategy[Any]]()
    for field in fields(kind):
        strategies[field.name] = of_type(field.type) if field.range is None else st.integers(*field.range)
        if field.range is not None and field.default is None:
            strategies[field.name] |= st.none()
    return st.builds(kind, **strategies)


def opened(header: dict[str, Any]) -> messages.Request:
    """The request in a header. Raises its error."""
    return messages.open_request(encode_value(header)).accepted()


def through_bytes(header: dict[str, Any]) -> dict[str, Any]:
    reader = FrameReader()
    reader.receive_data(encode_frame(header))
    frame = reader.next_frame()
    assert frame is not None
    return frame.header


def comparable(message: Any) -> Any:
    """A message as plain data: errors are equal when kind, message, facts and retriable are, and all NaN are."""
    if isinstance(message, SeglogError):
        return type(message), comparable(error_to_wire(message))
    if isinstance(message, messages.Message):  # a request that came in a frame has the fields of the envelope, too
        kind = messages.REQUESTS[message.api] if isinstance(message, messages.Request) else type(message)
        return kind, {field.name: comparable(getattr(message, field.name)) for field in fields(kind)}
    if isinstance(message, (list, tuple)):
        return [comparable(item) for item in message]
    if isinstance(message, dict):
        return {key: comparable(item) for key, item in message.items()}
    return "NaN" if message != message else message  # noqa: PLR0124 - which NaN alone is


# --- There and back ---------------------------------------------------------------------------------------------------


@each_case("kind", ALL)
@FEW
@given(data=st.data())
def test_every_message_comes_back_as_it_was_also_from_a_copy_or_another_process(
    kind: type[messages.Message], data: st.DataObject
) -> None:
    message = data.draw(of_type(kind))
    wire = decode_map(encode_value(message.to_wire()), "message")
    assert comparable(decoded_codes(kind.from_wire(wire))) == comparable(decoded_codes(message))
    assert None not in wire.values(), "what has no value does not travel"
    for again in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
        assert comparable(again) == comparable(message)


@pytest.mark.parametrize(("mechanism", "token"), [("X" * 65, b""), ("X", bytes(messages.TOKEN_BYTES_MAX + 1))])
def test_a_step_of_a_login_has_a_limit(mechanism: str, token: bytes) -> None:
    messages.AuthenticateRequest.from_wire({"mechanism": "X" * 64, "token": bytes(messages.TOKEN_BYTES_MAX)})
    with pytest.raises(InvalidRequestError):
        messages.AuthenticateRequest.from_wire({"mechanism": mechanism, "token": token})


def decoded_codes(message: messages.Message) -> messages.Message:
    """Errors that share a code decode to one kind: compare after one trip on both sides."""
    return type(message).from_wire(message.to_wire())


def test_no_field_of_any_message_hides_a_key_of_the_envelope() -> None:
    for request in messages.REQUESTS.values():
        assert not {"id", "api", "v"} & {field.name for field in fields(request)}
    for reply in REPLIES:
        assert not {"id", "error"} & {field.name for field in fields(reply)}


def test_every_request_has_a_reply_and_a_version() -> None:
    assert {kind.__name__.replace("Request", "Reply") for kind in messages.REQUESTS.values()} == {
        r.__name__ for r in REPLIES
    }
    assert {api: [1, request.version] for api, request in messages.REQUESTS.items()} == messages.API_VERSIONS


def test_nil_is_the_same_as_nothing_where_nothing_is_allowed() -> None:
    header = {"id": 1, "api": "topics", "v": 1, "names": None}
    assert comparable(opened(header)) == comparable(messages.TopicsRequest())
    with pytest.raises(InvalidRequestError) as caught:
        opened({"id": 1, "api": "topics", "v": 1, "after": None})
    assert caught.value.field == "after"


# --- What is refused --------------------------------------------------------------------------------------------------

HELLO: Final = {"id": 1, "api": "hello", "v": 1, "protocol": "seglog"}


def refused_field(changed: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        opened(changed)
    assert caught.value.code == "INVALID_REQUEST"
    assert len(caught.value.message) < 600
    return caught.value.field


@each_case("api", messages.REQUESTS)
def test_an_unknown_field_of_a_request_is_refused_by_name(api: str) -> None:
    assert refused_field({"id": 1, "api": api, "v": 1, "newer": 1}) == "newer"


def test_unknown_fields_of_a_reply_are_ignored_at_every_depth() -> None:
    result = {
        "topic": "t",
        "partition": 0,
        "size": 0,
        "gaps": [{"start": 1, "end": 2, "reason": "new", "x": 1}],
        "y": 2,
    }
    reply = messages.decode_reply({"id": 1, "partitions": [result], "z": {"deep": [1]}}, messages.FetchReply)
    assert reply.partitions[0].gaps == [messages.Gap(1, 2, "new")]


@each_case("kind", ALL)
@FEW
@given(data=st.data())
def test_a_missing_field_is_named(kind: type[messages.Message], data: st.DataObject) -> None:
    wire = data.draw(of_type(kind)).to_wire()
    for field in fields(kind):
        if field.default is REQUIRED:
            lacking = {name: value for name, value in wire.items() if name != field.name}
            with pytest.raises(InvalidRequestError, match=field.name) as caught:
                kind.from_wire(lacking)
            assert caught.value.field == field.name


WRONG: Final = [True, 1, -1, 2**63, 1.5, "text", b"bytes", [], [1], [[]], {}, {"a": []}, {1: 2}, {"a": None}]


@each_case("kind", ALL)
def test_a_value_of_a_wrong_type_is_refused_by_name(kind: type[messages.Message]) -> None:
    for field in fields(kind):
        name, refused = field.name, 0
        for value in WRONG:
            try:
                message = kind.from_wire({name: value})
            except InvalidRequestError as error:
                refused += error.field.partition(".")[0] == name or name in {"partitions", "gaps", "config", "unknown"}
            else:
                assert type(getattr(message, name)) is type(value) or field.type == SeglogError, (name, value)
        assert refused >= len(WRONG) - 7, name


@each_case("value", [1, 1.5, "1", True, -(2**63)])
def test_a_configuration_value_may_be_of_any_plain_type(value: Any) -> None:
    request = opened({"id": 1, "api": "create_topic", "v": 1, "topic": "t", "config": {"a": value}})
    assert isinstance(request, messages.CreateTopicRequest)
    assert type(request.config["a"]) is type(value)


def ranges() -> Iterator[tuple[type[messages.Message], str, int, int]]:
    for kind in ALL:
        for field in fields(kind):
            if field.range is not None:
                yield kind, field.name, *field.range


@each_case(("kind", "name", "low", "high"), list(ranges()))
@FEW
@given(data=st.data())
def test_a_range_holds_to_the_last_number(
    kind: type[messages.Message], name: str, low: int, high: int, data: st.DataObject
) -> None:
    wire = data.draw(of_type(kind)).to_wire()
    for value in (low, high):
        assert getattr(kind.from_wire(wire | {name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequestError) as caught:
            kind.from_wire(wire | {name: value})
        assert caught.value.field == name


@each_case("api", ["nothing", "", "Hello", b"hello", None, 1, ["hello"], {}, "x" * 100_000])
def test_an_unknown_api_is_an_error_that_lists_those_there_are(api: Any) -> None:
    with pytest.raises(UnsupportedApiError, match="create_topic") as caught:
        opened({"id": 1, "api": api, "v": 1})
    assert len(caught.value.message) < 600
    assert len(caught.value.api) <= 60


@each_case("version", [0, 2, -1, True, 1.0, "1", None, 2**64 - 1, "x" * 100_000])
def test_another_version_is_an_error_that_says_which_are_spoken(version: Any) -> None:
    with pytest.raises(UnsupportedVersionError, match="versions 1 to 1") as caught:
        opened(HELLO | {"v": version})
    assert (caught.value.api, caught.value.minimum, caught.value.maximum) == ("hello", 1, 1)
    assert len(caught.value.message) < 600


def test_the_version_is_looked_at_before_the_fields_which_it_may_have_changed() -> None:
    with pytest.raises(UnsupportedVersionError):
        opened({"id": 1, "api": "hello", "v": 2, "newer": 1})


FETCH: Final = {"id": 1, "api": "fetch", "partitions": []}


def test_a_request_is_sent_in_the_lowest_version_that_fits() -> None:
    """A request is sent in the lowest version that has what it says so that older brokers take it."""
    assert messages.request_header(1, messages.FetchRequest([]))["v"] == 1
    assert messages.request_header(1, messages.FetchRequest([], topic_ids={}))["v"] == 2
    named = messages.request_header(1, messages.FetchRequest([], topic_ids={"t": "i"}))
    assert named["topic_ids"] == {"t": "i"}
    assert comparable(opened(named)) == comparable(messages.FetchRequest([], topic_ids={"t": "i"}))


def test_a_newer_field_in_an_older_version_is_refused_and_nothing_else_is() -> None:
    with pytest.raises(InvalidRequestError, match="a field of fetch in version 2 is unknown in version 1"):
        opened(FETCH | {"v": 1, "topic_ids": {}})
    for header in ({"v": 1}, {"v": 2}, {"v": 1, "topic_ids": None}, {"v": 2, "topic_ids": None}):
        assert comparable(opened(FETCH | header)) == comparable(messages.FetchRequest([]))
    with pytest.raises(UnsupportedVersionError, match="versions 1 to 4") as caught:
        opened(FETCH | {"v": 5})
    assert (caught.value.minimum, caught.value.maximum) == (1, 4)


def test_an_error_about_a_very_long_name_is_short_enough_to_be_sent() -> None:
    long = "x" * 1_000_000
    assert len(refused_field(HELLO | {long: 1})) <= 60
    assert len(refused_field(HELLO | {"client": [long]})) <= 60
    config = {"id": 1, "api": "create_topic", "v": 1, "topic": "t", "config": {long: None}}
    assert len(refused_field(config)) <= 60


# --- Replies that carry errors ----------------------------------------------------------------------------------------


def test_a_reply_that_is_an_error_is_raised_with_its_facts() -> None:
    error = OffsetOutOfRangeError("no", topic="t", requested=9, earliest=1, latest=5, reason="beyond_end", newer=[1])
    header = through_bytes(messages.reply_header(7, error))
    assert header["id"] == 7
    with pytest.raises(OffsetOutOfRangeError, match="no") as caught:
        messages.decode_reply(header, messages.FetchReply)
    assert (caught.value.requested, caught.value.earliest, caught.value.latest) == (9, 1, 5)
    assert caught.value.partition == -1, "not said"
    assert caught.value.facts["newer"] == [1]


@each_case("error", ["boom", 5, [], {}, {"code": 1, "message": "m"}, {"code": "A"}, {"message": "m"}])
def test_an_error_that_is_none_is_not_taken_for_an_empty_reply(error: Any) -> None:
    header = {"id": 1, "error": error}
    for found in (header, encode_value(header)):
        with pytest.raises(RemoteProtocolError):
            messages.decode_reply(found, messages.TopicsReply)


# --- The page of topics -----------------------------------------------------------------------------------------------


@given(
    st.lists(of_type(messages.TopicDescription), max_size=3), st.lists(of_type(messages.ExplainedSegment), max_size=3)
)
def test_a_page_comes_back_as_it_was(
    topics: list[messages.TopicDescription], segments: list[messages.ExplainedSegment]
) -> None:
    assert messages.decode_descriptions(encode_value([entry.to_wire() for entry in topics])) == topics
    assert messages.decode_segments(encode_value([entry.to_wire() for entry in segments])) == segments


@each_case("payload", [b"", b"\xc0", b"\x80", b"\x91\x01", b"\x91\x80", b"\x91\x81\x01\x01", b"\xc1"])
def test_a_payload_that_is_no_page_is_the_brokers_error(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="list of topics"):
        messages.decode_descriptions(payload)
    with pytest.raises(RemoteProtocolError, match="list of segments"):
        messages.decode_segments(payload)


# --- Any map at all ---------------------------------------------------------------------------------------------------

_FIELDS: Final = {field.name for kind in ALL for field in fields(kind)}
NAMES: Final = st.sampled_from(sorted(_FIELDS | {"id", "api", "v", "error", "newer"}))
ANY: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES, inner, max_size=4)
        | st.dictionaries(st.binary(max_size=3), inner, max_size=2)
    ),
    max_leaves=15,
)
HEADERS: Final = st.dictionaries(NAMES, ANY, max_size=6)


# --- How much one request may name ------------------------------------------------------------------------------------


@each_case(
    ("field", "header"),
    [
        ("partitions", {"api": "flush", "partitions": [{"topic": "t", "partition": 0}]}),
        ("partitions", {"api": "append", "partitions": [{"topic": "t", "partition": 0, "size": 0}]}),
        ("names", {"api": "topics", "names": ["t"]}),
        ("reset", {"api": "alter_topic", "topic": "t", "reset": ["retention.ms"]}),
        ("topic_ids", {"api": "fetch", "v": 2, "partitions": [], "topic_ids": {"t": "x"}}),
        ("config", {"api": "create_topic", "topic": "t", "config": {"a": 1}}),
    ],
)
def test_a_list_or_map_of_a_request_has_ten_thousand_items_and_not_one_more(field: str, header: dict[str, Any]) -> None:
    value = header[field]

    def of(count: int) -> Any:
        return value * count if isinstance(value, list) else {str(number): "1" for number in range(count)}

    opened({"id": 1, "v": 1} | header | {field: of(messages.ITEMS_MAX)})
    with pytest.raises(InvalidRequestError, match="send several") as raised:
        opened({"id": 1, "v": 1} | header | {field: of(messages.ITEMS_MAX + 1)})
    assert raised.value.field == field


def test_a_reply_may_be_longer_than_a_request() -> None:
    reply = messages.TopicsReply(unknown=[UnknownTopicError("no", topic="t")] * (messages.ITEMS_MAX + 1))
    assert (
        len(messages.decode_reply(messages.reply_header(1, reply), messages.TopicsReply).unknown)
        == messages.ITEMS_MAX + 1
    )
