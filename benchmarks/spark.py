"""Spark: a scan and an aggregate over the same records from a broker, its files and from Parquet.

All in one session with two cores, in rounds that take turns. Beside the time it takes, processor time of everything is
counted: the JVM, Python's workers and the daemon. It says more where a machine is shared.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import seglog
from benchmarks.batches import FIRST_TIMESTAMP, GROUPS, RECORD_BYTES, value_of, values
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Goal, Row, take_turns
from benchmarks.processes import Daemon, daemon, environment, family_cpu_seconds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH_BYTES: Final = 128 * 1024
"""Of the record batches: what seglog's Spark sink writes."""

TRIGGER_ROWS: Final = 500_000
CORES: Final = 2
_PARTITIONS: Final = (1, 4)
_NAME: Final = "bench-spark-{}"

SCAN: Final = "sum(length(value))"
_AGGREGATE: Final = ("count(*)", "sum(length(value))", "max(text)")
_FIELDS: Final = "seq bigint, path string, author string, note string"
"""Of the JSON that ``values`` makes."""


def run(bench: Bench) -> Iterator[Row]:
    """Batch and AvailableNow; skipped by name where there is no PySpark or no Java."""
    why = what_is_missing()
    if why:
        yield Row("scan, aggregate, stream", "rows/s", note=why)
        return
    try:
        yield from _measured_rows(bench)
    except Exception as error:  # Spark has many kinds, none of them known where it is missing
        raise BenchmarkError(f"{type(error).__name__}: {str(error).strip()[-300:]}") from error


def _measured_rows(bench: Bench) -> Iterator[Row]:
    count = bench.pick(4_000_000, 200_000)
    with daemon(bench) as running, bench.fresh_directory() as scratch, session() as spark:
        with seglog.connect(running.address) as client:
            for partitions in _PARTITIONS:
                client.create_topic(_NAME.format(partitions), partitions, {"retention.ms": -1})  # the records are old
                seglog.write_arrow(client, _NAME.format(partitions), tables(count), ack="os", batch_bytes=BATCH_BYTES)
        parquet = str(scratch / "parquet")
        _broker(spark, running, 4).write.parquet(parquet)
        yield from _batch_rows(bench, count, _sources(spark, running, parquet))
        yield from _value_rows(bench, count // 4, spark, running)
        yield from _stream_rows(bench, count, spark, running, scratch)


# --- What is read -----------------------------------------------------------------------------------------------------


def what_is_missing() -> str:
    """Why Spark cannot run here; "" where it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "pyspark cannot be imported: seglog[spark]"
    from seglog_spark.java import JavaMissingError, find_java, java_from_pip, version_of  # noqa: PLC0415

    try:
        find_java(os.environ, version_of, java_from_pip)
    except JavaMissingError as error:
        return str(error)
    return ""


@contextmanager
def session() -> Iterator["SparkSession"]:
    """A session with CORES cores."""
    from seglog_spark import session as seglog_session  # noqa: PLC0415 - needs pyspark

    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "3g"}
    spark = seglog_session("seglog-bench", master=f"local[{CORES}]", conf=conf, log_level="OFF")
    try:
        yield spark
    finally:
        spark.stop()


def tables(count: int, piece: int = 100_000) -> "pa.RecordBatchReader":
    """So many records with keys, values of RECORD_BYTES and rising times."""
    import pyarrow as pa  # noqa: PLC0415 - it may be missing

    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64())])

    def pieces() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, piece):
            numbers = range(start, min(start + piece, count))
            columns = (
                [b"key-%08d" % number for number in numbers],
                [value_of(number) for number in numbers],
                [FIRST_TIMESTAMP + number for number in numbers],
            )
            yield pa.record_batch(
                [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)], schema
            )

    return pa.RecordBatchReader.from_batches(schema, pieces())


def _broker(spark: "SparkSession", running: Daemon, topic: int | str, schema: str = "") -> "DataFrame":
    reader = spark.read.format("seglog").options(servers=running.address, subscribe=_NAME.format(topic))
    return (reader.schema(schema) if schema else reader).load()


@dataclass(frozen=True, slots=True)
class _Source:
    """What is read, and what its scan is to reach."""

    name: str
    frame: "DataFrame"
    scan_goal: Goal | None = None
    aggregate_goal: Goal | None = None


def _sources(spark: "SparkSession", running: Daemon, parquet: str) -> list[_Source]:
    """Parquet first: it stands beside the others."""
    of_parquet = Goal("≥", 0.8, "ratio")
    found = [_Source("parquet", spark.read.parquet(parquet))]
    for partitions, goal in zip(_PARTITIONS, (2.5e6, 4.4e6), strict=True):
        frame = _broker(spark, running, partitions, "value binary")
        found.append(_Source(f"broker, {partitions} p.", frame, Goal("≥", goal, "value"), of_parquet))
    found.append(_Source("broker, 4 p., all columns", _broker(spark, running, 4)))
    for partitions in _PARTITIONS:
        frame = (
            spark.read.format("seglog")
            .schema("value binary")
            .options(localLogDir=str(running.directory), subscribe=_NAME.format(partitions))
            .load()
        )
        found.append(_Source(f"segment files, {partitions} p.", frame))
    return found


# --- What is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    cpu_seconds: float


def _measured(work: Callable[[], object]) -> _Run:
    cpu, began = family_cpu_seconds(), time.perf_counter()
    work()
    return _Run(time.perf_counter() - began, family_cpu_seconds() - cpu)


def _scan(frame: "DataFrame", count: int) -> None:
    ((total,),) = frame.selectExpr(SCAN).collect()
    _expect(count * RECORD_BYTES, total)


def _grouped(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import expr  # noqa: PLC0415 - it may be missing

    texts = frame.selectExpr("value", "cast(value as string) as text")
    return texts.groupBy(expr("substring(text, 1, 6)")).agg(*map(expr, _AGGREGATE))


def _aggregate(frame: "DataFrame", count: int) -> None:
    groups = _grouped(frame).collect()
    _expect(GROUPS, len(groups))
    _expect(count, sum(row[1] for row in groups))


def _expect(wanted: int, found: Any) -> None:
    if found != wanted:
        raise BenchmarkError(f"{wanted} was to come out, it was {found}")


def _batch_rows(bench: Bench, count: int, sources: list[_Source]) -> Iterator[Row]:
    for query, ask in (("scan", _scan), ("aggregate", _aggregate)):
        sides = [partial(_measured, partial(ask, source.frame, count)) for source in sources]
        take_turns(1, *sides)  # workers and the JVM's compiler
        taken = take_turns(bench.rounds, *sides)
        beside = [count / run.seconds for run in taken[0]]
        for source, runs in zip(sources, taken, strict=True):
            goal = source.scan_goal if query == "scan" else source.aggregate_goal
            row = replace(_row(f"{query}: {source.name}", count, runs), goal=goal)
            yield row if source is sources[0] else replace(row, beside=beside, beside_name="parquet")
            yield _cpu_row(count, runs)


def _row(name: str, count: int, runs: Iterable[_Run]) -> Row:
    return Row(name, "rows/s", [count / run.seconds for run in runs])


def _cpu_row(count: int, runs: Iterable[_Run]) -> Row:
    return Row("", "CPU s/M", [run.cpu_seconds * 1e6 / count for run in runs])


def _value_rows(bench: Bench, count: int, spark: "SparkSession", running: Daemon) -> Iterator[Row]:
    """Fields of JSON, by Spark's own function, by ``from_value`` and by ``from_value`` on workers."""
    import pyarrow as pa  # noqa: PLC0415 - they may be missing
    from pyspark.sql.functions import col, from_json  # noqa: PLC0415

    from seglog_spark.value_columns import from_value  # noqa: PLC0415

    with seglog.connect(running.address) as client:
        client.create_topic(_NAME.format("json"), 4)
        seglog.write_arrow(client, _NAME.format("json"), pa.table({"value": values(count)}), batch_bytes=BATCH_BYTES)
    text = col("value").cast("string")
    ways = {
        "from_json": from_json(text, _FIELDS),
        "from_value, a schema": from_value("value", seglog.Values("json", _FIELDS)),
        "from_value, no schema": from_json(from_value("value", seglog.Values("json")), _FIELDS),
    }
    frame = _broker(spark, running, "json", "value binary")

    def ask(way: "Column") -> None:
        found = frame.select(way.alias("v")).selectExpr("count(v.seq)", "sum(length(v.path))").collect()
        _expect(count, found[0][0])

    sides = [partial(_measured, partial(ask, way)) for way in ways.values()]
    take_turns(1, *sides)
    taken = take_turns(bench.rounds, *sides)
    beside = [count / run.seconds for run in taken[0]]
    for name, runs in zip(ways, taken, strict=True):
        yield replace(_row(f"values: {name}", count, runs), beside=beside, beside_name="from_json")
        yield _cpu_row(count, runs)


# --- Streams ----------------------------------------------------------------------------------------------------------


def _stream_rows(bench: Bench, count: int, spark: "SparkSession", running: Daemon, scratch: Path) -> Iterator[Row]:
    places = [("broker", partitions, {"servers": running.address}) for partitions in _PARTITIONS]
    places.append(("segment files", 4, {"localLogDir": str(running.directory)}))
    for query in ("scan", "aggregate"):
        sides = []
        for _, partitions, options in places:
            frame = (
                spark.readStream.format("seglog")
                .schema("value binary")
                .options(subscribe=_NAME.format(partitions), startingOffsets="earliest", **options)
                .option("maxOffsetsPerTrigger", TRIGGER_ROWS)
                .load()
            )
            sides.append(partial(_measured, partial(_stream, query, frame, count, scratch)))
        take_turns(1, *sides)
        taken = take_turns(bench.rounds, *sides)
        for (where, partitions, _), runs in zip(places, taken, strict=True):
            yield _row(f"AvailableNow {query}: {where}, {partitions} p.", count, runs)
            yield _cpu_row(count, runs)


def _stream(query: str, frame: "DataFrame", count: int, scratch: Path) -> None:
    """A new query from the earliest offset to the end, its start and stop counted in."""
    checkpoint = scratch / f"checkpoint-{time.monotonic_ns()}"
    asked = frame.selectExpr("length(value)") if query == "scan" else _grouped(frame)
    writer = asked.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    started = writer.outputMode("append" if query == "scan" else "complete").trigger(availableNow=True).start()
    started.awaitTermination()
    _expect(count, sum(progress.numInputRows for progress in started.recentProgress))


BENCHMARK = Benchmark(
    "spark",
    f"values of 100 bytes, keys of 12, batches of up to {BATCH_BYTES // 1024} KiB; local[{CORES}], warm; `value` alone",
    "the same query of the same rows in Parquet; goals: twice Spark's own Kafka connector, 0.8 of Parquet",
    run,
    seconds=1800,
)
