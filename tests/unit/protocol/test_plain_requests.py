"""Values of callers in requests: numbers and text of any type are sent as plain ones, other types are refused."""

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from seglog_protocol.errors import InvalidRequestError
from seglog_protocol.frames import decode_map
from seglog_protocol.messages import (
    CreateTopicRequest,
    DeleteTopicRequest,
    OffsetsPartition,
    OffsetsRequest,
    TruncatePartition,
    TruncateRequest,
)
from seglog_protocol.messages.headers import pack_request
from tests.support import each_case


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
