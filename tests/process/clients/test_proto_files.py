"""Schemas of Protobuf as texts, which Google's compiler reads in a process of its own."""

from pathlib import Path

import pytest

from seglog.arrow.values import Values
from seglog_protocol.errors import RegistryError
from tests.unit.clients.arrow.schema_registry import schema_registry

MONEY = 'syntax = "proto3"; package common; message Money { int64 units = 1; }'
ORDER = (
    'syntax = "proto3"; package shop; import "common/money.proto"; import "google/protobuf/timestamp.proto"; '
    "message Order { common.Money price = 1; google.protobuf.Timestamp at = 2; }"
)
TYPE = "struct<price: struct<units: int64>, at: timestamp[us, tz=UTC]>"


def test_a_schema_is_read_with_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "money.proto").write_text(MONEY)
    (tmp_path / "order.proto").write_text(ORDER)
    values = Values("protobuf", tmp_path / "order.proto")
    assert str(values.decoder()[0]) == TYPE
    assert values == Values("protobuf", values.schema), "the schema needs no other file"
    assert str(Values("protobuf", MONEY).decoder()[0]) == "struct<units: int64>"


def test_a_schema_of_a_registry_is_read_with_those_it_refers_to() -> None:
    reference = {"name": "common/money.proto", "subject": "money", "version": 1}
    with schema_registry() as registry:
        registry.add(1, "money", MONEY, schemaType="PROTOBUF")
        registry.add(2, "orders-value", ORDER, schemaType="PROTOBUF", references=[reference])
        kind, _ = Values("protobuf", registry=registry.url).for_topic("orders").decoder()
        assert str(kind) == TYPE
        registry.add(3, "orders-value", ORDER, schemaType="PROTOBUF", references=[{**reference, "name": "../../out"}])
        with pytest.raises(RegistryError, match=r"imports '../../out', which is no name of a file"):
            Values("protobuf", registry=registry.url).for_topic("orders")


def test_what_the_compiler_refuses_is_said_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"no Protobuf schema: values\.proto:1:28: Expected message name"):
        Values("protobuf", 'syntax = "proto3"; message {').decoder()
