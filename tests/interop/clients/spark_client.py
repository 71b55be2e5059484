"""Spark's own Kafka connector, as ``conversation`` has it. Arguments: the server, the folder of its jars, JAVA_HOME.

It reads and writes tables: it sets no timestamps, manages no topics and is a member of no group.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.interop.clients.conversation import Consumed, Record, serve

SERVER, JARS, JAVA_HOME = sys.argv[1:4]
SCHEMA = "at int, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>"


def session() -> Any:
    os.environ["JAVA_HOME"] = JAVA_HOME
    settings = {
        "spark.jars": ",".join(map(str, sorted(Path(JARS).glob("*.jar")))),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[1]").appName("interop")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


SPARK = session()


def produce(topic: str, partition: int, acks: str, codec: str, idempotent: bool, records: list[Record]) -> int | None:
    first = None if acks == "0" else _end(topic, partition)
    rows = [(at, partition, key, value, headers) for at, (key, value, headers, _) in enumerate(records)]
    table = SPARK.createDataFrame(rows, SCHEMA).coalesce(1).sortWithinPartitions("at").drop("at")
    settings = {
        "bootstrap.servers": SERVER,
        "acks": acks,
        "compression.type": codec,
        "enable.idempotence": str(idempotent).lower(),
        "linger.ms": "100",
    }
    writer = table.write.format("kafka").option("topic", topic).option("includeHeaders", "true")
    for name, value in settings.items():
        writer = writer.option(f"kafka.{name}", value)
    writer.save()
    return first


def _table(topic: str, partition: int, **options: Any) -> Any:
    reader = SPARK.read.format("kafka").option("kafka.bootstrap.servers", SERVER).option("includeHeaders", "true")
    reader = reader.option("assign", json.dumps({topic: [partition]}))
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str) else json.dumps({topic: {str(partition): value}}))
    return reader.load()


def consume(topic: str, partition: int, offset: int, count: int) -> list[Consumed]:
    table = _table(topic, partition, startingOffsets=offset, endingOffsets=offset + count)
    rows = table.selectExpr("*", "unix_millis(timestamp) as ms").orderBy("offset").collect()

    def binary(value: Any) -> bytes | None:
        return None if value is None else bytes(value)

    return [
        (
            row["offset"],
            binary(row["key"]),
            binary(row["value"]),
            [(header["key"], binary(header["value"])) for header in row["headers"] or []],
            row["ms"],
        )
        for row in rows
    ]


def _end(topic: str, partition: int) -> int:
    table = _table(topic, partition, startingOffsets="earliest", endingOffsets="latest")
    ((latest,),) = table.selectExpr("max(offset)").collect()
    return 0 if latest is None else int(latest) + 1


if __name__ == "__main__":
    serve({step.__name__: step for step in (produce, consume)})
    SPARK.stop()
