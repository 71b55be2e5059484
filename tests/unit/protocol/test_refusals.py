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
    decode_segments,
    open_request,
)
from seglog_protocol.messages.headers import pack_request
from tests.support import each_case

PLACE: Final = {"topic": "t", "partition": 0}
MANY: Final = [{"topic": "a-topic-of-twenty-one", "partition": number, "offset": 1} for number in range(1_000)]
"""Those of a header that is too large for a map to be made of it in one turn of a broker's loop."""
LONG: Final = "x" * 100
SENTENCES: Final[list[tuple[str, dict[str, Any], str, str]]] = [
    ("hello", {}, "protocol", "missing field 'protocol'"),
    ("hello", {"protocol": 1}, "protocol", "field 'protocol' at $.protocol: Expected text, got a whole number"),
    ("hello", {"newer": 1}, "newer", "unknown field 'newer'"),
    ("hello", {LONG: 1}, "x" * 57 + "...", f"unknown field '{'x' * 27}...{'x' * 28}'"),
    ("topics", {"config": 1}, "config", "field 'config' at $.config: Expected true or false, got a whole number"),
    ("topics", {"limit": True}, "limit", "field 'limit' at $.limit: Expected a whole number, got true or false"),
    ("topics", {"limit": 0}, "limit", "field 'limit' at $.limit: Expected a whole number >= 1"),
    ("topics", {"names": "t"}, "names", "field 'names' at $.names: Expected a list or nothing, got text"),
    ("topics", {"names": ["t", 1]}, "names", "field 'names' at $.names[1]: Expected text, got a whole number"),
    (
        "topics",
        {"names": ["t"] * 10_001},
        "names",
        "field 'names' has more than 10000 items, one request takes that many: send several",
    ),
    ("append", {"ack": "all"}, "ack", "field 'ack' at $.ack: Invalid enum value 'all'"),
    ("append", {"partitions": ["t"]}, "partitions", "field 'partitions' at $.partitions[0]: Expected a map, got text"),
    ("append", {"partitions": [PLACE]}, "size", "missing field 'size' at $.partitions[0]"),
    ("append", {"partitions": [PLACE | {"newer": 1}]}, "newer", "unknown field 'newer' at $.partitions[0]"),
    (
        "fetch",
        {"topic_ids": {1: "t"}},
        "topic_ids",
        "field 'topic_ids' at key in $.topic_ids: Expected text, got a whole number",
    ),
    (
        "fetch",
        {"topic_ids": {"t": 1}},
        "topic_ids",
        "field 'topic_ids' at $.topic_ids[...]: Expected text, got a whole number",
    ),
    (
        "create_topic",
        {"config": {LONG: None}},
        "config",
        "field 'config' at $.config[...]: Expected true or false or a whole number or a number or text, got nothing",
    ),
    (
        "fetch",
        {"partitions": [*MANY, PLACE | {"topic": 5}]},
        "topic",
        "field 'topic' at $.partitions[1000].topic: Expected text, got a whole number",
    ),
]


@each_case(("api", "fields", "field", "sentence"), SENTENCES, ids=[each[3][:60] for each in SENTENCES])
def test_a_sentence_says_which_field_is_wrong_and_how(
    api: str, fields: dict[str, Any], field: str, sentence: str
) -> None:
    opened = open_request(msgpack.packb({"id": 7, "api": api, "v": 2 if api in {"append", "fetch"} else 1} | fields))
    refused = opened.request
    assert isinstance(refused, InvalidRequestError)
    assert (refused.message, refused.facts) == (sentence, {"field": field})
    assert (opened.request_id, opened.api, opened.ack) == (7, api, fields.get("ack"))


def test_what_a_broker_answers_wrongly_is_named_in_the_same_words() -> None:
    header = {"id": 1, "partitions": [PLACE | {"error": "boom"}]}
    for found in (header, msgpack.packb(header)):
        with pytest.raises(RemoteProtocolError, match=r"not understood: field 'error' at .*: an error is a map"):
            decode_reply(found, AppendReply)
    with pytest.raises(
        RemoteProtocolError, match=r"list of topics is not understood: field 'name' at .*: Expected text"
    ):
        decode_descriptions(msgpack.packb([{"name": 1}]))
    with pytest.raises(RemoteProtocolError, match="list of segments is not understood: Expected a list, got"):
        decode_segments(msgpack.packb(5))


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
    object(),
]


@each_case("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_what_msgpack_has_no_type_for_is_refused_and_never_made_text(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"field 'topic' is .*cannot be sent") as caught:
        pack_request(7, DeleteTopicRequest(value))
    assert caught.value.field == "topic"
    with pytest.raises(InvalidRequestError, match=r"field 'config' is .*cannot be sent"):
        pack_request(7, CreateTopicRequest("t", 1, {"retention.ms": value}))


def test_text_that_utf_8_cannot_write_is_refused_by_field() -> None:
    with pytest.raises(InvalidRequestError, match=r"field 'topic' is .*cannot be sent.*utf-8"):
        pack_request(7, DeleteTopicRequest("\udcff"))
