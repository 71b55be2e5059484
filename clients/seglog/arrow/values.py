"""What the values of a topic are, and columns of them.

    bytes     as they are
    string    text in UTF-8
    json      JSON: with a schema its fields, without one its text, checked
    avro      Avro, of a schema, or of those in a registry
    protobuf  Protobuf, of a schema, or of those in a registry

A tombstone is null in each of them, and fits. A value that does not fit is null, and a misfit with a reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, cast

import pyarrow as pa

from seglog.arrow.fitting import Format, Text, fitted, text_of
from seglog.arrow.json_values import JsonFields, JsonText, infer_ddl
from seglog.arrow.registry import FoundSchema, Registry
from seglog_protocol.extras import missing

Kind = Literal["bytes", "string", "json", "avro", "protobuf"]
KINDS: Final[tuple[Kind, ...]] = ("bytes", "string", "json", "avro", "protobuf")

Decode = Callable[[pa.Array], tuple[pa.Array, list[tuple[int, str]]]]
"""Makes a column of one of bytes, and lists rows that do not fit, with the reason of each."""


@dataclass(frozen=True, slots=True)
class Values:
    """What the values of a topic are, as texts alone, which can be kept and sent.

    ``schema`` is for json in Spark's words (``id bigint, path string``), for avro JSON, for protobuf a ``.proto`` or a
    set of descriptors in base64; a Path is read. ``registry`` is the URL of a Confluent-compatible registry: values
    begin with the id of their schema. ``message`` is the full name of a Protobuf message; None: the first one.

    Raises ValueError for a combination that means nothing, and OSError.
    """

    kind: Kind
    schema: str | Path | None = None
    registry: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"values are {', '.join(KINDS)}, not {self.kind!r}")
        has_schema = self.kind in {"json", "avro", "protobuf"}
        for name, given, takes in (
            ("schema", self.schema, has_schema),
            ("registry", self.registry, has_schema and self.kind != "json"),
            ("message", self.message, self.kind == "protobuf"),
        ):
            if given and not takes:
                raise ValueError(f"values that are {self.kind} have no {name}: say what they are")
        if has_schema and self.kind != "json":
            if not self.schema and not self.registry:
                raise ValueError(f"values that are {self.kind} need a schema, or the URL of a registry")
            if (error := missing(f"decoding {self.kind}", "values")) is not None:
                raise error
        if isinstance(self.schema, Path):
            try:
                object.__setattr__(self, "schema", self._read(self.schema))
            except ValueError as error:
                raise ValueError(f"{self.schema}: {error}") from None

    def _read(self, path: Path) -> str:
        if self.kind == "protobuf":
            from seglog.arrow.protobuf import described  # noqa: PLC0415 - these packages are an extra

            return described(path)
        return text_of(path.read_bytes()).strip()

    def for_topic(self, topic: str) -> "Values":
        """With a schema: the newest one that the registry has for values of ``topic``, unless there is one.

        Raises RegistryError, also for a schema that is none.
        """
        if self.registry is None or self.schema is not None:
            return self
        return cast("Values", Registry(self.registry).latest(f"{topic}-value", self.kind.upper(), self._registered))

    def _registered(self, found: FoundSchema) -> "Values":
        if self.kind == "avro":
            made = replace(self, schema=found.inlined())
        else:
            from seglog.arrow.protobuf import registered  # noqa: PLC0415 - these packages are an extra

            made = replace(self, schema=registered(found))
        made.decoder()
        return made

    def inferred(self, sample: Iterable[bytes | None]) -> "Values":
        """With the schema of this sample. Raises ValueError for values that are no JSON."""
        if self.kind != "json":
            raise ValueError(f"a schema can be inferred for json, not for {self.kind}")
        return replace(self, schema=infer_ddl(sample))

    def decoder(self) -> tuple[pa.DataType, Decode]:
        """The type of the column, and what makes it. Raises ValueError for a schema that is none.

        What makes it raises RegistryError where the registry cannot be asked.
        """
        if self.kind == "bytes":
            return pa.binary(), lambda column: (column, [])
        if self.kind == "string":
            return pa.string(), _text
        found = self._format()
        return found.type, lambda column: fitted(column, found)

    def _format(self) -> Format:
        schema, registry = str(self.schema or ""), Registry(self.registry) if self.registry else None
        if self.kind == "json":
            return JsonFields(schema) if schema else JsonText()
        if self.kind == "avro":
            from seglog.arrow.avro import AvroValues  # noqa: PLC0415 - these packages are an extra

            return AvroValues(schema, registry)
        from seglog.arrow.protobuf import ProtobufValues  # noqa: PLC0415

        return ProtobufValues(schema, self.message, registry)


def _text(column: pa.Array) -> tuple[pa.Array, list[tuple[int, str]]]:
    """Bytes as text, without a copy where all are UTF-8."""
    text = column.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return fitted(column, Text())
    return text, []
