"""What Spark makes of Arrow's types, as docs/SPARK.md says: which it refuses, and how they get in."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

import seglog
from seglog.client import Client
from tests.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENT = datetime(2024, 1, 2, tzinfo=UTC)
NAIVE = datetime(2024, 1, 2)  # noqa: DTZ001 - that is what is tried

TAKEN = [
    pa.array(["a"], pa.large_string()),
    pa.array([b"a"], pa.large_binary()),
    pa.array(["a"]).dictionary_encode(),
    pa.array([MOMENT], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([NAIVE], pa.timestamp("ms")),
    pa.array([Decimal("1.50")], pa.decimal128(38, 2)),
]
REFUSED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array(["a"], pa.string_view()), pa.string()),
    (pa.array([b"a"], pa.binary_view()), pa.binary()),
    (pa.array([1], pa.uint64()), pa.int64()),
    (pa.array([1], pa.uint8()), pa.int16()),
    (pa.array([1.5], pa.float16()), pa.float32()),
    (pa.array([date(2024, 1, 2)], pa.date64()), pa.date32()),
    (pa.array([time(1)], pa.time32("s")), pa.time64("us")),
    (pa.array([Decimal("1.50")], pa.decimal256(39, 2)), pa.decimal128(38, 2)),
]


def test_a_table_of_a_topic_is_a_frame(spark: "SparkSession", running: Daemon, client: Client, topic: str) -> None:
    with client.producer(topic) as producer:
        producer.send("value", key="key", headers=[("n", b"1")], timestamp=1_546_300_800_000)
    with seglog.read_arrow(client, topic) as reader:
        table = reader.read_all()
    assert spark.createDataFrame(table).toArrow().cast(table.schema).equals(table)


def test_tables_of_some_types_are_refused_by_name_and_taken_when_they_are_cast(spark: "SparkSession") -> None:
    for column in TAKEN:
        (row,) = spark.createDataFrame(pa.table({"c": column})).collect()
        assert row.c in {"a", b"a", MOMENT, NAIVE, Decimal("1.50")}
    for column, kind in REFUSED:
        table = pa.table({"c": column})
        with pytest.raises(
            Exception, match=r"is not supported in conversion to Arrow|precision should be between 1 and 38"
        ):
            spark.createDataFrame(table)
        (row,) = spark.createDataFrame(table.cast(pa.schema([("c", kind)]))).collect()
        assert row.c == column[0].as_py()
    frame = pl.DataFrame({"c": ["a"]})
    assert spark.createDataFrame(frame.to_arrow(compat_level=pl.CompatLevel.oldest())).collect()[0].c == "a"


def batches(column: pa.Array) -> Callable[[Iterable[Any]], Iterator[pa.RecordBatch]]:
    return lambda _: iter([pa.RecordBatch.from_arrays([column], ["c"])])


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        (pa.array(["a"]).dictionary_encode(), "c string"),
        (pa.array([MOMENT], pa.timestamp("ms", "UTC")), "c timestamp"),
        (pa.array([1], pa.uint8()), "c int"),
    ],
    ids=["dictionary", "milliseconds", "unsigned"],
)
def test_batches_of_mapinarrow_have_to_have_the_types_themselves(
    column: pa.Array, ddl: str, spark: "SparkSession"
) -> None:
    """A dictionary's numbers would even be taken for values, so nothing but the type that is declared is safe."""
    with pytest.raises(Exception, match=r"UNSUPPORTED_CALL|UNSUPPORTED_ARROWTYPE"):
        spark.range(1, numPartitions=1).mapInArrow(batches(column), ddl).collect()
