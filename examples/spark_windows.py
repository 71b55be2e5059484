"""Records counted by day in a Delta table, each once whatever is killed; late ones correct their day, and are kept.

    pip install '.[spark-java,delta]'
    python examples/spark_windows.py FOLDER

FOLDER gets the tables `days` and `late`, and the progress of the stream: started again, it goes on where it was. A
record is late when its day had ended before the watermark, which is DELAY before the time that all partitions with
records have come to. The count of that day is corrected, and the record is a row of `late`, with that watermark.

The broker is the one that SEGLOG_SERVER names, or localhost:9192.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import seglog_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SERVER = os.environ.get("SEGLOG_SERVER", "localhost:9192")
TOPIC = "commits"
OFFSETS_PER_TRIGGER = 2000
DELAY = timedelta(days=1)

TIME = pa.timestamp("us", tz="UTC")
DAYS = pa.schema([("day", pa.date32()), ("partition", pa.int32()), ("records", pa.int64()), ("newest", TIME)])
LATE = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", TIME), ("value", pa.binary()), ("behind", TIME)]
)


def write(events: "DataFrame", number: int, folder: Path) -> None:
    """Write a micro-batch to both tables.

    Each commit notes which micro-batch of which query it is. One that Spark runs again, because a driver was killed,
    changes a table only if it had not done so.
    """
    query = events.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    note = CommitProperties(app_transactions=[Transaction(query, number)])

    def has_it(table: DeltaTable) -> bool:
        done = table.transaction_version(query)
        return done is not None and done >= number

    days = DeltaTable.create(folder / "days", DAYS, mode="ignore")
    if has_it(days):
        return
    events = events.where("timestamp is not null").selectExpr("*", "to_date(timestamp) as day").persist()

    # Late records first: the days, as they were before this micro-batch, tell which those are.
    late = DeltaTable.create(folder / "late", LATE, mode="ignore")
    if not has_it(late):
        behind = watermark(days)
        found = events.where(f"date_add(day, 1) <= {behind}").selectExpr(*LATE.names[:-1], f"{behind} as behind")
        write_deltalake(late, found.toArrow(), mode="append", commit_properties=note)

    more = events.groupBy("day", "partition").agg({"*": "count", "timestamp": "max"}).toDF(*DAYS.names)
    changed = days.merge(
        more.toArrow(),
        "days.day = more.day and days.partition = more.partition",
        "more",
        "days",
        commit_properties=note,
    )
    changed = changed.when_matched_update(
        {"records": "days.records + more.records", "newest": "greatest(days.newest, more.newest)"}
    )
    changed.when_not_matched_insert_all().execute()
    events.unpersist()


def watermark(days: DeltaTable) -> str:
    """DELAY before the time that all partitions have come to, in SQL; null before the first micro-batch."""
    newest = days.to_pyarrow_table(columns=["partition", "newest"]).group_by("partition").aggregate([("newest", "max")])
    reached = min(newest["newest_max"].to_pylist(), default=None)
    return "cast(null as timestamp)" if reached is None else f"timestamp '{reached - DELAY}'"


def main(folder: Path) -> None:
    """Count what is new in the topic, and return at its end."""
    progress = folder / "checkpoint"
    if DeltaTable.is_deltatable(folder / "days") and not progress.exists():
        sys.exit(f"{progress} is gone: the tables would get all records once more. Remove them, too")
    spark = seglog_spark.session("days")
    query = (
        spark.readStream.format("seglog")
        .schema("partition int, offset bigint, timestamp timestamp, value binary")
        .option("servers", SERVER)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_TRIGGER)
        .load()
        .writeStream.foreachBatch(lambda events, number: write(events, number, folder))
        .option("checkpointLocation", str(progress))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    days, late = (DeltaTable(folder / name).to_pyarrow_table() for name in ("days", "late"))
    print(f"{sum(days['records'].to_pylist())} records in {days.num_rows} rows, {late.num_rows} of them late")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/spark_windows.py FOLDER")
    main(Path(sys.argv[1]))
