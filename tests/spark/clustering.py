"""A driver with two executors, each a process of its own, one of which may be killed: copies a topic twice over."""

import sys
from collections.abc import Iterator

import pyarrow as pa

import seglog_spark
from tests.spark.drivers import ORIGIN, SHORT_LIVED

MASTER = "local-cluster[2,1,1024]"


def conf_of(events: str) -> dict[str, str]:
    """A driver and executors that start soon, and leave a log of what each of them did in the folder ``events``."""
    return SHORT_LIVED | {
        "spark.executor.extraJavaOptions": SHORT_LIVED["spark.driver.extraJavaOptions"],
        # No task begins before both executors are there: else the first one might do all that a short job has to do.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }


def stumbling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task, which fails behind the last one when it is run for the first time."""
    yield from batches
    from pyspark import TaskContext  # noqa: PLC0415 - tests are collected without it, too

    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("stumbled")


def main(server: str, source: str, batch: str, stream: str, folder: str, guarantee: str) -> None:
    """Return when ``source`` is in ``batch``, by a job that is run twice, and, by a stream, in ``stream``.

    Each task of the job's first run fails once.
    """
    # Small batches come to the sink while the task that gives them still runs.
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = seglog_spark.session(master=MASTER, conf=conf_of(f"{folder}/events") | conf)
    once = {"servers": server, "deliveryGuarantee": guarantee, "batchBytes": "4k"}
    columns = ("key", "value", "timestamp", ORIGIN)

    whole = spark.read.format("seglog").options(servers=server, subscribe=source).load().selectExpr(*columns)
    for rows in (whole.mapInArrow(stumbling, whole.schema), whole):
        rows.write.format("seglog").options(topic=batch, jobId="copy", **once).mode("append").save()

    growing = spark.readStream.format("seglog").options(
        servers=server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="500"
    )
    writer = growing.load().selectExpr(*columns).writeStream.format("seglog").options(topic=stream, **once)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
