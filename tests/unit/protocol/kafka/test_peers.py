"""The same bytes as another implementation, kio, in every version that it knows."""

import dataclasses
import datetime as dt
import io
import typing
import uuid
from functools import cache
from random import Random
from typing import Any, Final

import pytest
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from seglog_protocol.kafka import read_message, write_message
from seglog_protocol.kafka.definitions import definition
from tests.support import each_case, soak_scaled, soak_seed
from tests.unit.protocol.kafka.instances import MESSAGES, NEWEST, SEEDS, VERSIONS, Instances

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)

KIO_LACKS: Final = {
    name
    for name in MESSAGES
    if name.endswith(("Key", "Value")) or (name.endswith("Record") and not name.startswith("Snapshot"))
}
"""The records of coordinators and of the metadata log."""


@each_case("name", MESSAGES)
def test_kio_writes_the_same_bytes_and_they_are_read_as_what_was_written(name: str) -> None:
    for version in definition(name).versions:
        assert (_kio_schema(name, version) is None) == (name in KIO_LACKS or (name, version) in NEWEST)
        for seed in SEEDS:
            compare_with_kio(name, version, seed)


def compare_with_kio(name: str, version: int, seed: int) -> None:
    """Never does kio read: it ends the process for bytes that it does not like."""
    schema = _kio_schema(name, version)
    if schema is not None:
        message = Instances(seed).message(name, version)
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, _as_kio(message, schema, name, version))
        assert write_message(message, version) == buffer.getvalue()
        assert read_message(type(message), version, buffer.getvalue()) == message


def _kio_schema(name: str, version: int) -> type[Any] | None:
    described = definition(name)
    kind: Any
    if described.api_key is not None:
        kio_name, kind = api_key_map.get(described.api_key, ""), EntityType[described.kind]
    else:
        kio_name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
        kind = EntityType.header if name.endswith("Header") else EntityType.data
    if kind not in schema_name_map.get(kio_name, {}).get(version, {}):
        return None
    return load_entity_schema(kio_name, version, kind)


def _as_kio(value: Any, schema: Any, name: str, version: int) -> Any:
    """A struct of ours as one of kio's, which has the fields of one version, some of them with types of their own."""
    described = definition(name)
    struct = described.structs.get(type(value).__name__, described.struct)
    ours = [field for field in struct.fields if version in field.versions]
    theirs = dataclasses.fields(schema)
    hints = _hints(schema)
    assert len(ours) == len(theirs), (ours, theirs)
    given = {}
    for field, their in zip(ours, theirs, strict=True):
        content = getattr(value, field.name)
        if content is None and field.is_optional_struct:
            continue
        if field.is_struct and content is not None:
            inner = _inner(hints[their.name])
            elements = content if field.is_array else [content]
            converted = tuple(_as_kio(each, inner, name, version) for each in elements)
            given[their.name] = converted if field.is_array else converted[0]
        elif field.is_array and content is not None:
            given[their.name] = tuple(_kio_value(each, their) for each in content)
        else:
            given[their.name] = _kio_value(content, their)
    return schema(**given)


@cache
def _hints(schema: Any) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _inner(hint: Any) -> type[Any]:
    """The class in ``Class``, ``Class | None``, ``tuple[Class, ...]`` and ``tuple[Class, ...] | None``."""
    while typing.get_args(hint):
        hint = typing.get_args(hint)[0]
    assert isinstance(hint, type)
    return hint


def _kio_value(value: Any, field: dataclasses.Field[Any]) -> Any:
    if value is None:
        return None
    match field.metadata["kafka_type"]:
        case "error_code":
            return KioErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return value * _MILLISECOND
        case "datetime_i64":
            return _EPOCH + value * _MILLISECOND
        case "uuid":
            return None if value == bytes(16) else uuid.UUID(bytes=value)
        case "records":
            return bytes(value)
    return value


@pytest.mark.soak
def test_kio_agrees_at_length() -> None:
    seed, count = soak_seed(), soak_scaled(100_000)
    print(f"{count} messages compared, seed {seed}")
    random = Random(seed)
    for _ in range(count):
        name, version = random.choice(VERSIONS)
        compare_with_kio(name, version, random.randrange(1 << 32))
