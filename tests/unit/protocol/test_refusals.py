"""Refusals: the sentence for whatever a map or a caller may have wrong, and of several things the first."""

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgpack
import numpy as np
import pytest

from seglog_protocol.errors import InvalidRequestError, RemoteProtocolError
from seglog_protocol.frames import decode_map
from seglog_protocol.messages import (
    AppendReply,
    CreateTopicRequest,
    DeleteTopicRequest,
    OffsetsPartition,
    OffsetsRequest,
    TruncatePartition,
    TruncateRequest,
    decode_descriptions,
    decode_reply,
    decode_request,
    decode_segments,
    open_request,
)
from seglog_protocol.messages.headers import MAP_BYTES_MAX, pack_request
from tests.support import each_case

PLACE: Final = {"topic": "t", "partition": 0}
SENTENCES: Final[list[tuple[str, dict[str, Any], str, str]]] = [
    ("hello", {}, "protocol", "HelloRequest needs the field 'protocol'"),
    ("hello", {"protocol": 1}, "protocol", "field 'protocol' must be text, not 1"),
    ("hello", {"client": True, "protocol": "seglog"}, "client", "field 'client' must be text, not True"),
    ("hello", {"newer": 1}, "newer", "unknown field 'newer'; HelloRequest has protocol, client"),
    ("topics", {"config": 1}, "config", "field 'config' must be true or false, not 1"),
    ("topics", {"limit": True}, "limit", "field 'limit' must be a whole number from 1 to 10000, not True"),
    ("topics", {"names": "t"}, "names", "field 'names' must be a list, not 't'"),
    ("topics", {"names": ["t", 1]}, "names", "field 'names' must be text, not 1"),
    (
        "topics",
        {"names": ["t"] * 10_001},
        "names",
        "field 'names' has 10001 items, one request takes 10000: send several requests",
    ),
    ("append", {"ack": "all"}, "ack", "field 'ack' must be one of none, os, disk, not 'all'"),
    ("append", {"partitions": {"topic": "t"}}, "partitions", "field 'partitions' must be a list, not {'topic': 't'}"),
    (
        "append",
        {"partitions": [PLACE | {"partition": False, "size": 1}]},
        "partition",
        "field 'partition' must be a whole number from 0 to 2147483647, not False",
    ),
    ("append", {"partitions": ["t"]}, "partitions", "field 'partitions' must be a map, not 't'"),
    ("append", {"partitions": [PLACE]}, "size", "AppendPartition needs the field 'size'"),
    (
        "append",
        {"partitions": [PLACE | {"size": 1}, PLACE | {"size": 1, "newer": 1}], "ack": 1},
        "newer",
        "unknown field 'newer'; AppendPartition has topic, partition, size",
    ),
    ("fetch", {"topic_ids": []}, "topic_ids", "field 'topic_ids' must be a map with text keys, not []"),
    ("fetch", {"topic_ids": {"t": 1}}, "topic_ids.t", "field 'topic_ids.t' must be text, not 1"),
    (
        "fetch",
        {"partition_counts": {"t": 2**63}},
        "partition_counts.t",
        (
            "field 'partition_counts.t' must be a whole number from -9223372036854775808 to 9223372036854775807, "
            "not 9223372036854775808"
        ),
    ),
    (
        "create_topic",
        {"topic": "t", "config": [["a", 1]]},
        "config",
        "field 'config' must be a map with text keys, not [['a', 1]]",
    ),
    (
        "create_topic",
        {"topic": "t", "config": {"a": [1]}},
        "config.a",
        "field 'config.a' must be str or int or float or bool, not [1]",
    ),
    (
        "create_topic",
        {"config": {"x" * 100: None}},
        "config." + "x" * 50 + "...",
        f"field 'config.{'x' * 20}...{'x' * 28}' must be str or int or float or bool, not None",
    ),
]


@each_case(("api", "fields", "field", "sentence"), SENTENCES, ids=[each[3][:60] for each in SENTENCES])
def test_a_sentence_says_which_field_is_wrong_and_how(
    api: str, fields: dict[str, Any], field: str, sentence: str
) -> None:
    header = {"id": 1, "api": api, "v": 2 if api in {"append", "fetch"} else 1} | fields
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(header)
    assert (caught.value.message, caught.value.field) == (sentence, field)
    refused = open_request(msgpack.packb(header)).request
    assert isinstance(refused, InvalidRequestError)
    assert (refused.message, refused.facts) == (sentence, {"field": field})


MANY: Final = [{"topic": "a-topic-of-twenty-one", "partition": number, "offset": 1} for number in range(1_000)]
OF_LARGE: Final[list[tuple[dict[str, Any], str, str]]] = [
    ({"partitions": [*MANY, 5]}, "partitions", " at $.partitions[1000]: Expected a map, got a whole number"),
    (
        {"partitions": [*MANY, PLACE | {"topic": 5}]},
        "topic",
        " at $.partitions[1000].topic: Expected text, got a whole number",
    ),
    (
        {"partitions": [*MANY, {"topic": "t"}]},
        "partition",
        " at $.partitions[1000]: Object missing required field partition",
    ),
    ({"partitions": MANY, "newer": [1]}, "newer", ": Object contains unknown field newer"),
    ({"partitions": MANY, "x" * 500: 1}, "x" * 57 + "...", f": Object contains unknown field `{'x' * 69}"),
    (
        {"partitions": MANY, "topic_ids": {"t": 1}},
        "topic_ids",
        " at $.topic_ids[...]: Expected text, got a whole number",
    ),
]


@each_case(("fields", "field", "sentence"), OF_LARGE, ids=[each[2][:60] for each in OF_LARGE])
def test_of_a_large_header_a_sentence_says_the_place_that_is_wrong(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    packed = msgpack.packb({"id": 7, "api": "fetch", "v": 2} | fields)
    assert len(packed) > MAP_BYTES_MAX
    opened = open_request(packed)
    refused = opened.request
    assert isinstance(refused, InvalidRequestError)
    assert (opened.request_id, opened.api, refused.field) == (7, "fetch", field)
    assert refused.message == f"of a header of {len(packed)} bytes, this is wrong{sentence}"


def test_too_many_items_of_a_large_header_are_told_with_the_limit() -> None:
    refused = open_request(msgpack.packb({"id": 1, "api": "fetch", "v": 1, "partitions": MANY * 11})).request
    assert isinstance(refused, InvalidRequestError)
    assert refused.field == "partitions"
    assert refused.message == "field 'partitions' has more than 10000 items, one request takes that many: send several"


def test_what_a_broker_answers_wrongly_is_named_in_the_same_words() -> None:
    header = {"id": 1, "partitions": [PLACE | {"error": "boom"}]}
    sentence = "the broker's answer is not understood: field 'error' must be an error map, not 'boom'"
    for found in (header, msgpack.packb(header)):
        with pytest.raises(RemoteProtocolError) as caught:
            decode_reply(found, AppendReply)
        assert caught.value.message == sentence
    with pytest.raises(RemoteProtocolError) as caught:
        decode_descriptions(msgpack.packb([{"name": 1}]))
    assert caught.value.message == "the broker's list of topics is not understood: field 'name' must be text, not 1"
    with pytest.raises(RemoteProtocolError) as caught:
        decode_segments(msgpack.packb(5))
    assert (
        caught.value.message
        == "the broker's list of segments is not understood: field 'segments' must be a list, not 5"
    )


# --- Values of callers in requests: numbers and text of any type are sent as plain ones, other types are refused ------


class Name(str):
    __slots__ = ()


class Names(enum.StrEnum):
    ORDERS = "orders"


class OwnList(list[Any]):
    pass


class Numbers(enum.IntEnum):
    TWO = 2


@each_case("topic", ["orders", Name("orders"), Names.ORDERS, np.str_("orders")])
@each_case("partitions", [2, Numbers.TWO, np.int64(2), np.uint8(2)])
@each_case("config", [{"a": 1}, {Name("a"): np.int32(1)}, MappingProxyType({"a": Numbers.TWO - 1})])
def test_numbers_and_text_of_any_type_are_sent_as_plain_ones(
    topic: str, partitions: int, config: Mapping[str, Any]
) -> None:
    request = CreateTopicRequest(topic, partitions, config)  # type: ignore[arg-type]
    header = decode_map(pack_request(7, request), "header")
    assert header == {"id": 7, "api": "create_topic", "v": 1, "topic": "orders", "partitions": 2, "config": {"a": 1}}


def test_so_are_those_in_lists() -> None:
    asked = OffsetsRequest([OffsetsPartition("t", np.int64(1))])  # type: ignore[arg-type]
    assert decode_map(pack_request(7, asked), "header")["partitions"] == [{"topic": "t", "partition": 1}]
    cut = TruncateRequest([TruncatePartition("t", Numbers.TWO, np.int64(5))])  # type: ignore[arg-type]
    assert decode_map(pack_request(7, cut), "header")["partitions"] == [{"topic": "t", "partition": 2, "offset": 5}]
    own = OffsetsRequest(OwnList([OffsetsPartition(Name("t"), Numbers.TWO)]))
    assert pack_request(7, own) == pack_request(7, OffsetsRequest([OffsetsPartition("t", 2)]))
    assert type(own.to_wire()["partitions"][0]["topic"]) is str


FOREIGN = [
    dt.date(2024, 1, 1),
    dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    dt.timedelta(days=1),
    uuid.UUID(int=1),
    decimal.Decimal(5),
    {1, 2},
    object(),
]


@each_case("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_what_msgpack_has_no_type_for_is_refused_and_never_made_text(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"field 'topic' is .*cannot be sent") as caught:
        pack_request(7, DeleteTopicRequest(value))
    assert caught.value.field == "topic"
    with pytest.raises(InvalidRequestError, match=r"field 'config.retention.ms' is .*cannot be sent"):
        pack_request(7, CreateTopicRequest("t", 1, {"retention.ms": value}))


def test_keys_that_are_no_text_and_text_that_utf_8_cannot_write_are_refused_by_field() -> None:
    with pytest.raises(InvalidRequestError, match="field 'config' must be a map with text keys"):
        pack_request(7, CreateTopicRequest("t", 1, {None: 1}))  # type: ignore[dict-item]
    with pytest.raises(InvalidRequestError, match=r"field 'topic' is .*no text that UTF-8 can write"):
        pack_request(7, DeleteTopicRequest("\udcff"))
