"""Values in Avro as columns: of one schema, or each of that which its five first bytes name in a registry.

A record is a struct, whose fields are null where they may be and are; ``fixed`` is binary, ``enum`` and ``uuid`` are
strings, timestamps are in microseconds. A union of more than one type and null is a struct with a member for each, as
in Spark: ``member0``, ``member1``, one of which is not null. Fields that the schema lacks are dropped, and ones that a
value lacks have the schema's default: values are resolved as Avro's specification says.
"""

import io
import json
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from seglog.arrow.fitting import Format, Unfit
from seglog.arrow.registry import FoundSchema, Registry, split_frame

_PRIMITIVE: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_UTC: Final = pa.timestamp("us", tz="UTC")
_LOGICAL: Final = {
    "int-date": pa.date32(),
    "int-time-millis": pa.time32("ms"),
    "long-time-micros": pa.time64("us"),
    "long-timestamp-millis": _UTC,
    "long-timestamp-micros": _UTC,
    "long-local-timestamp-millis": pa.timestamp("us"),
    "long-local-timestamp-micros": pa.timestamp("us"),
}
_KEPT: Final = ("type", "size", "symbols", "logicalType", "precision", "scale")
_LEVELS_MAX: Final = 100
_TYPES_MAX: Final = 10_000
"""Of a schema, each where it stands."""
_UNREADABLE: Final = (
    EOFError,
    LookupError,
    ValueError,
    ArithmeticError,
    RecursionError,
    TypeError,
    fastavro.read.SchemaResolutionError,
)


class AvroValues(Format):
    """Avro as the type of a schema, which is JSON. Raises ValueError for one that cannot be read, or has no columns.

    So values are bounded: no type is inside of itself, and no items have no bytes, of which there may be any number.
    """

    def __init__(self, schema: str, registry: Registry | None = None) -> None:
        self._schema = _parsed(schema)
        self._registry = registry
        self._named: dict[str, Any] = {}
        self._names = map("n{}".format, range(_TYPES_MAX))
        try:
            self.type, shown = self._column(self._schema, ())
        except StopIteration:
            raise ValueError(f"the Avro schema has more than {_TYPES_MAX:,} types, each where it stands") from None
        self._shown = fastavro.parse_schema(shown)

    def check(self, value: bytes) -> Any:
        """The value. Raises Unfit, and RegistryError where the registry cannot be asked."""
        writer = None
        if self._registry is not None:
            number, value = split_frame(value)
            writer = self._registry.writer(number, "AVRO", self._other)
        try:
            if writer is not None:
                found, resolved = _read(value, writer, self._schema), io.BytesIO()
                fastavro.schemaless_writer(resolved, self._schema, found)
                value = resolved.getvalue()
            return _read(value, self._shown)
        except _UNREADABLE as error:
            raise Unfit(f"no Avro of this schema ({str(error) or 'it ends too early'})") from None

    def _other(self, found: FoundSchema) -> Any:
        """The schema of values; None for the one of the column, which are read at once."""
        writer = AvroValues(found.inlined())._schema  # noqa: SLF001 - its own
        return None if writer == self._schema else writer

    def _column(self, schema: Any, within: tuple[str, ...]) -> tuple[pa.DataType, Any]:
        """The type of a schema, and the schema of the same bytes by which they are read.

        There, each branch of a union is a record of one field, which is written as the field alone is, names are no
        longer shared, and logical types that have no column are gone.
        """
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
        if len(within) > _LEVELS_MAX or schema.get("size", 1) not in range(1, 1 << 31):
            raise ValueError(f"the Avro schema has {kind} of no bytes, or more than {_LEVELS_MAX} levels")
        shown = {part: schema[part] for part in _KEPT if part in schema} | {"name": next(self._names)}
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in {"bytes", "fixed"} and "precision" in schema:
            return pa.decimal128(schema["precision"], schema.get("scale", 0)), shown
        if found := _LOGICAL.get(f"{kind}-{logical}"):
            return found, shown
        if kind in _PRIMITIVE:
            return _PRIMITIVE[kind], shown | {"logicalType": None}
        if kind == "array":
            item, shown["items"] = self._column(schema["items"], within)
            return pa.list_(pa.field("element", item)), shown
        if kind == "map":
            item, shown["values"] = self._column(schema["values"], within)
            return pa.map_(pa.string(), item), shown
        if kind in {"record", "error"} and schema["fields"]:
            return self._record({field["name"]: self._column(field["type"], within) for field in schema["fields"]})
        raise ValueError(f"the Avro schema has {kind} where a column needs a type with values")

    def _union(self, schema: list[Any], within: tuple[str, ...]) -> tuple[pa.DataType, Any]:
        columns = [self._column(branch, within) for branch in schema if branch != "null"]
        if len(columns) != 1:
            columns = [self._record({f"member{number}": column}) for number, column in enumerate(columns)]
        kind = columns[0][0] if len(columns) == 1 else pa.struct([record.field(0) for record, _ in columns])
        branches = iter(columns)
        return kind, [branch if branch == "null" else next(branches)[1] for branch in schema]

    def _record(self, columns: dict[str, tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
        fields = [{"name": name, "type": shown} for name, (_, shown) in columns.items()]
        kind = pa.struct([(name, kind) for name, (kind, _) in columns.items()])
        return kind, {"type": "record", "name": next(self._names), "fields": fields}


def _read(value: bytes, writer: Any, reader: Any = None) -> Any:
    """A value, of a union with the name of its branch if ``reader`` is another schema. Raises _UNREADABLE."""
    stream = io.BytesIO(value)
    found = fastavro.schemaless_reader(stream, writer, reader, return_named_type=reader is not None)
    if left := len(value) - stream.tell():
        raise ValueError(f"{left} bytes are left over")
    return found


def _parsed(schema: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(schema))
    except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException, UnknownType) as error:
        raise ValueError(f"this is no Avro schema: {error!r}") from None
