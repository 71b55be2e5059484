"""Values in Avro as columns: of one schema, or each of that which its five first bytes name in a registry.

A record is a struct, whose fields are null where they may be and are; ``fixed`` is binary, ``enum`` and ``uuid`` are
strings, timestamps are in microseconds. A union of more than one type and null is a struct with a member for each, as
in Spark: ``member0``, ``member1``, one of which is not null. Fields that the schema lacks are dropped, and ones that a
value lacks have the schema's default: values are resolved as Avro's specification says.
"""

import io
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from seglog.arrow.fitting import Format, Unfit
from seglog.arrow.registry import Registry, split_frame

_PRIMITIVE: Final = {
    "boolean": (pa.bool_(), bool),
    "int": (pa.int32(), int),
    "long": (pa.int64(), int),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "string": (pa.string(), str),
    "bytes": (pa.binary(), bytes),
    "fixed": (pa.binary(), bytes),
    "enum": (pa.string(), str),
}
_UTC: Final = pa.timestamp("us", tz="UTC")
_LOGICAL: Final = {
    "int-date": (pa.date32(), date),
    "int-time-millis": (pa.time32("ms"), time),
    "long-time-micros": (pa.time64("us"), time),
    "long-timestamp-millis": (_UTC, datetime),
    "long-timestamp-micros": (_UTC, datetime),
    "long-local-timestamp-millis": (pa.timestamp("us"), datetime),
    "long-local-timestamp-micros": (pa.timestamp("us"), datetime),
    "string-uuid": (pa.string(), UUID),
}
_UNREADABLE: Final = (EOFError, IndexError, KeyError, ValueError, OverflowError, fastavro.read.SchemaResolutionError)

Column = tuple[pa.DataType, type, Any]
"""A type, that of its values in Python as fastavro reads them, and what makes ones for Arrow of them; None: nothing."""


class AvroValues(Format):
    """Avro as the type of a schema, which is JSON. Raises ValueError for one that cannot be read, or has no columns."""

    def __init__(self, schema: str, registry: Registry | None = None) -> None:
        self._schema = _parsed(schema)
        self._registry = registry
        self._named: dict[str, Any] = {}
        self.type, _, self._adapt = self._column(self._schema, ())
        self._writers: dict[int, Any] = {}

    def check(self, value: bytes) -> Any:
        """The value. Raises Unfit, and RegistryError where the registry cannot be asked."""
        writer, reader = self._schema, None
        if self._registry is not None:
            number, value = split_frame(value)
            if number not in self._writers:
                self._writers[number] = _parsed(self._registry.by_id(number, "AVRO").inlined())
            writer, reader = self._writers[number], self._schema
        stream = io.BytesIO(value)
        try:
            found = fastavro.schemaless_reader(stream, writer, reader, return_named_type=True)
        except _UNREADABLE as error:
            raise Unfit(f"no Avro of this schema ({str(error) or 'it ends too early'})") from None
        if left := len(value) - stream.tell():
            raise Unfit(f"no Avro of this schema ({left} bytes are left over)")
        return found if self._adapt is None else self._adapt(found)

    def _column(self, schema: Any, within: tuple[str, ...]) -> Column:
        if isinstance(schema, list):
            return self._union(schema, within)
        schema = self._named.get(schema, {"type": schema}) if isinstance(schema, str) else schema
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self._column(kind, within)
        if name := schema.get("name"):
            self._named[name] = schema
            if name in within:
                raise ValueError(f"the Avro schema has {name} inside of itself, and no column has room for that")
        within = (*within, name)
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            return pa.decimal128(schema["precision"], schema.get("scale", 0)), Decimal, None
        if found := _LOGICAL.get(f"{kind}-{logical}"):
            return *found, str if found[1] is UUID else None
        if kind in _PRIMITIVE:
            return *_PRIMITIVE[kind], None
        if kind == "array":
            item, _, adapt = self._column(schema["items"], within)
            return pa.list_(pa.field("element", item)), list, adapt and (lambda items: [adapt(each) for each in items])
        if kind == "map":
            item, _, adapt = self._column(schema["values"], within)
            return pa.map_(pa.string(), item), dict, adapt and (lambda all_: {k: adapt(v) for k, v in all_.items()})
        if kind in {"record", "error"} and schema["fields"]:
            columns = {field["name"]: self._column(field["type"], within) for field in schema["fields"]}
            adapts = {field: adapt for field, (_, _, adapt) in columns.items() if adapt}

            def adapted(row: dict[str, Any]) -> dict[str, Any]:
                return row | {field: adapt(row[field]) for field, adapt in adapts.items()}

            return (
                pa.struct([(name, kind) for name, (kind, _, _) in columns.items()]),
                dict,
                adapted if adapts else None,
            )
        raise ValueError(f"the Avro schema has {kind} where a column needs a type with values")

    def _union(self, schema: list[Any], within: tuple[str, ...]) -> Column:
        branches = [branch for branch in schema if branch != "null"]
        columns = [self._column(branch, within) for branch in branches]
        names = [branch if isinstance(branch, str) else branch.get("name") for branch in branches]
        unnamed = [number for number, name in enumerate(names) if name not in self._named]
        unnamed.sort(
            key=lambda number: names[number] in {"long", "double"}
        )  # behind int and float, whose values they have
        by_type = {columns[number][1]: number for number in unnamed}

        def member(value: Any) -> tuple[int, Any]:
            """The number of the branch, and its value, which comes with the name of the branch if that has one."""
            is_named = type(value) is tuple
            number = names.index(value[0]) if is_named else by_type[type(value)]
            adapt = columns[number][2]
            value = value[1] if is_named else value
            return number, adapt(value) if adapt else value

        def of_one(value: Any) -> Any:
            return None if value is None else member(value)[1]

        def of_several(value: Any) -> Any:
            return None if value is None else {f"member{number}": found for number, found in [member(value)]}

        if len(columns) == 1:
            kind, python, adapt = columns[0]
            return kind, python, None if adapt is None and unnamed else of_one
        return pa.struct([(f"member{number}", kind) for number, (kind, _, _) in enumerate(columns)]), dict, of_several


def _parsed(schema: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(schema))
    except (ValueError, KeyError, SchemaParseException, UnknownType) as error:
        raise ValueError(f"this is no Avro schema: {error!r}") from None
