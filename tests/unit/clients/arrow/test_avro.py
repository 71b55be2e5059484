import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from seglog.arrow.values import Values
from tests.support import each_case
from tests.unit.clients.arrow.schema_registry import schema_registry
from tests.unit.clients.arrow.tables import decoded

POINT = {"type": "record", "name": "Point", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
MARK = {"type": "enum", "name": "Mark", "symbols": ["A", "B"]}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def encoded(schema: Any, row: Any, number: int | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + stream.getvalue()


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


MOMENT = datetime(2024, 2, 29, 1, 2, 3, 4000, UTC)


@each_case(
    "kind, given, value, arrow",
    [
        (["null", "string"], None, None, pa.string()),
        (["null", "string"], "x", "x", pa.string()),
        (["null", POINT], {"x": 1}, {"x": 1}, pa.struct([("x", pa.int32())])),
        ("bytes", b"\xff", b"\xff", pa.binary()),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab", pa.binary()),
        (MARK, "B", "B", pa.string()),
        ("float", 1.5, 1.5, pa.float32()),
        ({"type": "map", "values": ["null", POINT]}, {"k": {"x": 1}}, {"k": {"x": 1}}, None),
        ({"type": "array", "items": logical("string", "uuid")}, [UUID(int=5)], [str(UUID(int=5))], None),
        (logical("bytes", "decimal", precision=9, scale=2), Decimal("1.25"), Decimal("1.25"), pa.decimal128(9, 2)),
        (logical("int", "date"), date(2024, 2, 29), date(2024, 2, 29), pa.date32()),
        (logical("int", "time-millis"), time(1, 2, 3), time(1, 2, 3), pa.time32("ms")),
        (logical("long", "timestamp-millis"), MOMENT, MOMENT, pa.timestamp("us", "UTC")),
        (logical("long", "local-timestamp-micros"), datetime(2024, 1, 1), datetime(2024, 1, 1), pa.timestamp("us")),  # noqa: DTZ001
        (["int", "long", "null"], 2**40, {"member0": None, "member1": 2**40}, None),
        (["null", "string", POINT, MARK], ("Mark", "A"), {"member0": None, "member1": None, "member2": "A"}, None),
        (["null", "string", POINT, MARK], "Z", {"member0": "Z", "member1": None, "member2": None}, None),
        (["null", "string", POINT, MARK], None, None, None),
    ],
)
def test_each_type_has_its_column(kind: Any, given: Any, value: Any, arrow: pa.DataType | None) -> None:
    schema = record(a=kind)
    values = Values("avro", json.dumps(schema))
    assert decoded(values, encoded(schema, {"a": given})) == ([{"a": value}], [])
    assert arrow is None or values.decoder()[0] == pa.struct([("a", arrow)])


INSIDE = "the Avro schema has Row inside of itself, and no column has room for that"


@each_case(
    "schema, said",
    [
        ("[", "this is no Avro schema"),
        ('"nothing"', "this is no Avro schema: UnknownType"),
        ('"null"', "the Avro schema has null where a column needs"),
        (json.dumps(record(a=["null", "Row"])), INSIDE),
        (json.dumps({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "has fixed of no bytes"),
        ('{"type": "array", "items": ' * 101 + '"int"' + "}" * 101, "or more than 100 levels"),
        (json.dumps(record(**{f"f{number}": "int" for number in range(10_001)})), "more than 10,000 types"),
    ],
)
def test_a_schema_without_a_column_is_refused(schema: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Values("avro", schema).decoder()


def test_values_of_several_schemas_of_a_registry_are_one_column() -> None:
    old, new = record(id="int", gone="string"), record(id=["string", "long", "null"], extra={"type": "string"})
    new["fields"][1]["default"] = "none"
    with schema_registry() as registry:
        registry.add(1, "t-value", json.dumps(old))
        registry.add(7, "t-value", json.dumps(new))
        registry.answers["/schemas/ids/8"] = {"schemaType": "JSON", "schema": "{}"}
        registry.answers["/schemas/ids/2"] = {"schema": json.dumps(record(id="int", next=["null", "Row"]))}
        values = Values("avro", registry=registry.url).for_topic("t")
        rows = [
            encoded(old, {"id": 1, "gone": "g"}, 1),
            None,
            encoded(new, {"id": 2, "extra": "e"}, 7),
            encoded(new, {"id": 2, "extra": "e"}),
            encoded(new, {"id": 2, "extra": "e"}, 9),
            encoded(new, {"id": 2, "extra": "e"}, 8),
            encoded(new, {"id": 2, "extra": "e"}, 7)[:-1],
            encoded(new, {"id": 2, "extra": "e"}, 7) + b"\0",
            encoded(old, {"id": 1, "gone": "g"}, 2),
        ]
        assert decoded(values, *rows, *rows[:1]) == (
            [
                {"id": {"member0": None, "member1": 1}, "extra": "none"},
                None,
                {"id": {"member0": None, "member1": 2}, "extra": "e"},
                *[None] * 6,
                {"id": {"member0": None, "member1": 1}, "extra": "none"},
            ],
            [
                (3, "without the byte 0 and the schema id that a serializer with a registry puts before it"),
                (4, "of schema /schemas/ids/9, which the registry does not have"),
                (5, "of a schema for JSON, not AVRO"),
                (6, "no Avro of this schema (Expected 1 bytes, read 0)"),
                (7, "no Avro of this schema (1 bytes are left over)"),
                (8, f"of schema 2, which cannot be read: {INSIDE}"),
            ],
        )
        assert [path for path, _ in registry.asked].count("/schemas/ids/1") == 1


def test_a_schema_that_refers_to_others_stands_for_itself() -> None:
    with schema_registry() as registry:
        registry.add(1, "points", json.dumps(POINT))
        outer = record(a="n.Point", b=["null", "n.Point"])
        registry.add(
            2, "t-value", json.dumps(outer), references=[{"name": "n.Point", "subject": "points", "version": 1}]
        )
        values = Values("avro", registry=registry.url).for_topic("t")
        whole = record(a=POINT, b=["null", "n.Point"])
        assert json.loads(str(values.schema)) == whole
        row = {"a": {"x": 1}, "b": {"x": 2}}
        assert decoded(values, encoded(whole, row, 2)) == ([row], [])
