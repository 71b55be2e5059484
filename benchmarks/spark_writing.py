"""Spark writing: what each delivery guarantee costs, in a job of many rows and a stream of small micro-batches.

All in one session with two cores, in rounds that take turns; the daemon runs beside it, and every guarantee waits for
the disk.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import seglog
from benchmarks.batches import RECORD_BYTES
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row, take_turns
from benchmarks.processes import Daemon, daemon
from benchmarks.spark import CORES, session, what_is_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
MICRO_BATCH_ROWS: Final = 2_000
_GUARANTEES: Final = ("effectively-once", "at-least-once", "exactly-once")
_SOURCE: Final = "bench-spark-source"
_TARGET: Final = "bench-spark-target"


def run(bench: Bench) -> Iterator[Row]:
    """A job and a stream by each guarantee; skipped by name where there is no PySpark or no Java."""
    why = what_is_missing()
    if why:
        yield Row("job, stream", "rows/s", note=why)
        return
    count, micro_batches = bench.pick((1_000_000, 8), (200_000, 3))
    try:
        with daemon(bench) as running, bench.fresh_directory() as scratch, session() as spark:
            with seglog.connect(running.address) as client:
                for topic in (_SOURCE, _TARGET):
                    client.create_topic(topic, PARTITIONS)
            _rows(spark, micro_batches * MICRO_BATCH_ROWS).write.format("seglog").options(
                servers=running.address, topic=_SOURCE
            ).mode("append").save()
            jobs = [partial(_job, spark, running, guarantee, count) for guarantee in _GUARANTEES]
            streams = [partial(_stream, spark, running, guarantee, scratch, micro_batches) for guarantee in _GUARANTEES]
            yield from _measured(bench, "job", "rows/s", jobs)
            yield from _measured(bench, "stream: a micro-batch", "ms", streams)
    except Exception as error:  # as in benchmarks.spark
        raise BenchmarkError(f"{type(error).__name__}: {str(error).strip()[-300:]}") from error


def _measured(bench: Bench, what: str, unit: str, sides: "list[partial[float]]") -> Iterator[Row]:
    take_turns(1, *sides)  # workers and the JVM's compiler
    taken = take_turns(bench.rounds, *sides)
    for guarantee, values in zip(_GUARANTEES, taken, strict=True):
        row = Row(f"{what}, {guarantee}", unit, values)
        yield row if values is taken[0] else Row(row.name, unit, values, taken[0], _GUARANTEES[0])


def _rows(spark: "SparkSession", count: int) -> "DataFrame":
    value = f"substring(repeat(format_string('%020d', id), 5), 1, {RECORD_BYTES})"
    return spark.range(0, count, 1, PARTITIONS).selectExpr("format_string('key-%08d', id) as key", f"{value} as value")


def _job(spark: "SparkSession", running: Daemon, guarantee: str, count: int) -> float:
    options = {"servers": running.address, "topic": _TARGET, "deliveryGuarantee": guarantee}
    if guarantee != "at-least-once":
        options["jobId"] = f"job-{time.monotonic_ns()}"
    began = time.perf_counter()
    _rows(spark, count).write.format("seglog").options(**options).mode("append").save()
    return count / (time.perf_counter() - began)


def _stream(spark: "SparkSession", running: Daemon, guarantee: str, scratch: Path, micro_batches: int) -> float:
    """Milliseconds for a micro-batch of a new query, the median of its own."""
    reader = spark.readStream.format("seglog").options(servers=running.address, subscribe=_SOURCE)
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=MICRO_BATCH_ROWS).load()
    writer = frame.select("key", "value").writeStream.format("seglog").trigger(availableNow=True)
    query = writer.options(
        servers=running.address,
        topic=_TARGET,
        deliveryGuarantee=guarantee,
        checkpointLocation=str(scratch / f"checkpoint-{time.monotonic_ns()}"),
    ).start()
    query.awaitTermination()
    found = sorted(progress.durationMs["addBatch"] for progress in query.recentProgress if progress.numInputRows)
    if len(found) < micro_batches:  # each takes a share of each partition, rounded
        raise BenchmarkError(f"{micro_batches} micro-batches were to come out, it was {len(found)}")
    return float(found[len(found) // 2])


BENCHMARK = Benchmark(
    "spark-writing",
    f"values of 100 bytes, keys of 12, {PARTITIONS} partitions, ack disk; local[{CORES}], warm; a micro-batch: "
    f"{MICRO_BATCH_ROWS:,} rows in {PARTITIONS} tasks, the time that Spark calls addBatch",
    "the same at effectively-once",
    run,
    seconds=2400,
)
