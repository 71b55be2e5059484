from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.arrow.values import Values
from tests.support import each_case, examples
from tests.unit.clients.arrow.schema_registry import schema_registry
from tests.unit.clients.arrow.tables import decoded

FILE = text_format.Parse(
    """
    name: "shop.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
    message_type { name: "Order"
      field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      field { name: "note" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
      field { name: "items" number: 3 type: TYPE_MESSAGE type_name: ".shop.Order.Item" label: LABEL_REPEATED }
      field { name: "at" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
      field { name: "most" number: 5 type: TYPE_UINT64 label: LABEL_OPTIONAL }
      field { name: "state" number: 6 type: TYPE_ENUM type_name: ".shop.State" label: LABEL_OPTIONAL }
      nested_type { name: "Item" field { name: "count" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL } }
      oneof_decl { name: "_note" } }
    message_type { name: "Other" field { name: "x" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } }
    enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "SENT" number: 1 } }
    """,
    FileDescriptorProto(),
)
TIMES = FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
SCHEMA = b64encode(FileDescriptorSet(file=[TIMES, FILE]).SerializeToString()).decode()
POOL = DescriptorPool()
POOL.Add(TIMES)
POOL.Add(FILE)
Order = GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
FULL = Order(id=5, note="", items=[{"count": 2**32 - 1}], most=2**64 - 1, state=1, at={"seconds": 1_700_000_000})
EMPTY_ROW: dict[str, Any] = {"id": 0, "note": None, "items": [], "at": None, "most": 0, "state": "NEW"}
FULL_ROW = {
    "id": 5,
    "note": "",
    "items": [{"count": 2**32 - 1}],
    "at": datetime.fromtimestamp(1_700_000_000, UTC),
    "most": 2**64 - 1,
    "state": "SENT",
}


def framed(path: bytes, message: bytes) -> bytes:
    return b"\0\0\0\0\1" + path + message


def test_a_message_is_a_struct_of_types_that_tables_have() -> None:
    values = Values("protobuf", SCHEMA)
    assert str(values.decoder()[0]) == (
        "struct<id: int64, note: string, items: list<element: struct<count: int64>>, at: timestamp[us, tz=UTC], "
        "most: decimal128(20, 0), state: string>"
    )
    unknown = FULL.SerializeToString() + bytes.fromhex("9a0601 78")
    assert decoded(values, FULL.SerializeToString(), None, b"", unknown) == ([FULL_ROW, None, EMPTY_ROW, FULL_ROW], [])


@settings(max_examples=examples(2000))
@given(st.lists(st.none() | st.just(FULL.SerializeToString()), max_size=5), st.binary(max_size=3), st.data())
def test_what_googles_parser_refuses_is_a_misfit_and_moves_no_row(
    rows: list[bytes | None], by: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(FULL.SerializeToString())
    at = data.draw(st.integers(0, len(damaged)))
    damaged[at : at + data.draw(st.integers(0, 9))] = by
    try:
        fits = Order.FromString(bytes(damaged)) is not None and damaged[:1] != b"\0"
    except Exception:  # noqa: BLE001 - of Google's own
        fits = False
    found, misfits = decoded(Values("protobuf", SCHEMA), *rows, bytes(damaged), *rows)
    expected = [row and FULL_ROW for row in rows]
    assert found[: len(rows)] == expected == found[len(rows) + 1 :]
    assert [row for row, _ in misfits] == [] if fits else [len(rows)]


def test_the_frame_of_a_serializer_says_which_message_it_is() -> None:
    full = FULL.SerializeToString()
    rows = [
        framed(b"\0", full),
        framed(b"\2\0", full),
        framed(b"\2\2", b""),
        framed(b"\4\0\0", b""),
        framed(b"\2\x0e", b""),
    ]
    assert decoded(Values("protobuf", SCHEMA), *rows, b"\0\0\0", framed(b"\4\0", b"")) == (
        [FULL_ROW, FULL_ROW, None, None, None, None, None],
        [
            *((row, "not of the Protobuf message shop.Order, by the number before it") for row in (2, 3, 4)),
            (5, "without the byte 0 and the schema id that a serializer with a registry puts before it"),
            (6, "not of the Protobuf message shop.Order, by the number before it"),
        ],
    )
    assert decoded(Values("protobuf", SCHEMA, message="shop.Order.Item"), rows[3]) == ([{"count": 0}], [])


def test_a_registry_may_hold_values_without_a_frame_for_misfits() -> None:
    with schema_registry() as registry:
        values = Values("protobuf", SCHEMA, registry.url)
        _, misfits = decoded(values, FULL.SerializeToString(), framed(b"\0", b""))
        assert [reason.partition(",")[0] for _, reason in misfits] == [
            "without the byte 0 and the schema id that a serializer with a registry puts before it",
            "of schema /schemas/ids/1",
        ]


@each_case(
    "schema, message, said",
    [
        ("!", None, "this is no set of Protobuf descriptors"),
        (b64encode(FileDescriptorSet(file=[FILE]).SerializeToString()).decode(), None, "with all that it imports"),
        (SCHEMA, "shop.Nothing", "has no message shop.Nothing; it has shop.Order, shop.Other"),
        (
            b64encode(FileDescriptorSet(file=[TIMES]).SerializeToString()).decode(),
            "x",
            "it has google.protobuf.Timestamp",
        ),
    ],
)
def test_a_schema_without_the_message_is_refused(schema: str, message: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Values("protobuf", schema, message=message).decoder()


def test_a_set_of_descriptors_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(FileDescriptorSet(file=[TIMES, FILE]).SerializeToString())
    assert Values("protobuf", path) == Values("protobuf", SCHEMA)
