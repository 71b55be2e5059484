"""Values of a type as columns of Spark."""

import json
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from seglog.arrow.values import Values
from seglog_spark.value_columns import from_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
FIELDS = [{"name": "id", "type": "int"}, {"name": "at", "type": MOMENT}]
SCHEMA = json.dumps({"type": "record", "name": "Row", "fields": FIELDS})


def test_values_are_columns_of_the_same_schemas(spark: "SparkSession") -> None:
    rows = [b'{"id":1,"tags":["a"]}', b'\0\0\0\0\1{"id":2}', b'{"id":"x"}', None, b"\xff"]
    frame = spark.createDataFrame([(row and bytearray(row),) for row in rows], "value binary")
    fields = from_value("value", Values("json", "id bigint, tags array<string>"))
    found = frame.select(fields.alias("fields"), from_value(frame.value, Values("json")).alias("text")).collect()
    assert [row.fields and row.fields.id for row in found] == [1, 2, None, None, None]
    assert found[0].fields.tags == ["a"]
    assert [row.text for row in found] == ['{"id":1,"tags":["a"]}', '{"id":2}', '{"id":"x"}', None, None]


def test_values_in_avro_need_no_jar(spark: "SparkSession") -> None:
    frame = spark.createDataFrame([(bytearray(b"\x0a\xd0\x0f"),), (bytearray(b"\x0a"),)], "value binary")
    first, second = frame.select(from_value("value", Values("avro", SCHEMA)).alias("row")).collect()
    assert first.row.id == 5
    assert isinstance(first.row["at"], datetime)
    assert second.row is None


def test_a_type_that_spark_lacks_is_named() -> None:
    schema = json.dumps({"type": "int", "logicalType": "time-millis"})
    with pytest.raises(TypeError, match=r"time32\[ms\] is not supported"):
        from_value("value", Values("avro", schema))
