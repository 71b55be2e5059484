"""Spark's own Kafka connector on a running Kafka: the side that ``--only spark`` has to be held against.

The connector is a jar with three others that Spark brings no copies of, and it wants the Spark it was made for. So this
is a program of its own, for an environment of its own; benchmarks/NOTES.md has the commands. It asks what
``benchmarks.spark`` asks, of records with the same values, and prints rows/s.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

_PARTITIONS: Final = (1, 4)
_GROUPS: Final = 1_000
_VALUE_BYTES: Final = 100
_TOPIC: Final = "spark-connector-{}"

_KEY: Final = "format_string('key-%08d', id)"
_VALUE: Final = f"substring(repeat(format_string('g%05d%018d', id * 7919 % {_GROUPS}, id), 5), 1, {_VALUE_BYTES})"


def main() -> None:
    """Fill the topics, then ask in rounds that take turns; the first is not counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", required=True, metavar="HOST:PORT", help="of a Kafka; its topics are made")
    parser.add_argument("--jars", required=True, type=Path, metavar="DIR", help="the connector's four")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(map(str, asked.jars.glob("*.jar"))))
    conf = {"spark.driver.memory": "3g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for partitions in _PARTITIONS:
        _fill(spark, asked.servers, partitions, asked.rows)
    rates: dict[str, list[float]] = {}
    for number in range(asked.rounds + 1):
        for partitions in _PARTITIONS:
            frame = _read(spark, asked.servers, partitions)
            for name, ask in (("scan", _scan), ("aggregate", _aggregate)):
                rate = asked.rows / _seconds(ask, frame, asked.rows)
                if number:
                    rates.setdefault(f"{name}, {partitions} p.", []).append(rate)
    for name, found in rates.items():
        low, middle, high = (value / 1e6 for value in (min(found), statistics.median(found), max(found)))
        print(f"{name:20} {middle:.2f} M rows/s ({low:.2f} to {high:.2f})")


def _read(spark: SparkSession, servers: str, partitions: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": _TOPIC.format(partitions)}
    return spark.read.format("kafka").options(**options, startingOffsets="earliest").load()


def _fill(spark: SparkSession, servers: str, partitions: int, rows: int) -> None:
    columns = (f"{_KEY} AS key", f"{_VALUE} AS value", f"CAST(id % {partitions} AS int) AS partition")
    frame = spark.range(rows).selectExpr(*columns)
    options = {"kafka.bootstrap.servers": servers, "topic": _TOPIC.format(partitions), "kafka.linger.ms": "20"}
    frame.write.format("kafka").options(**options).option("kafka.batch.size", 128 * 1024).save()


def _seconds(ask: Callable[[DataFrame, int], None], frame: DataFrame, rows: int) -> float:
    began = time.perf_counter()
    ask(frame, rows)
    return time.perf_counter() - began


def _scan(frame: DataFrame, rows: int) -> None:
    ((total,),) = frame.selectExpr("sum(length(value))").collect()
    _expect(rows * _VALUE_BYTES, total)


def _aggregate(frame: DataFrame, rows: int) -> None:
    texts = frame.selectExpr("value", "CAST(value AS string) AS text")
    asked = [expr("count(*)"), expr("sum(length(value))"), expr("max(text)")]
    groups = texts.groupBy(expr("substring(text, 1, 6)")).agg(*asked).collect()
    _expect(_GROUPS, len(groups))
    _expect(rows, sum(row[1] for row in groups))


def _expect(wanted: int, found: int) -> None:
    if found != wanted:
        raise SystemExit(f"{wanted} was to come out, it was {found}: the topics have to be new")


if __name__ == "__main__":
    main()
