"""A driver that is there to be killed, with two executors: two streams copy a topic to its end, by either guarantee."""

import sys

import seglog_spark
from tests.spark.drivers import ORIGIN, SHORT_LIVED

MASTER = "local-cluster[2,1,1024]"


def main(server: str, source: str, copies: str, transacted: str, folder: str, offsets_per_trigger: str) -> None:
    """Return when both have come to the end that the source had at the start.

    ``copies`` is written effectively once, ``transacted`` exactly once, both behind a shuffle.
    """
    conf = SHORT_LIVED | {
        "spark.executor.extraJavaOptions": SHORT_LIVED["spark.driver.extraJavaOptions"],
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        # Small batches come to the sink while the task that gives them still runs.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    spark = seglog_spark.session(master=MASTER, conf=conf)
    reader = spark.readStream.format("seglog").options(
        servers=server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=offsets_per_trigger
    )
    rows = reader.load().repartition("partition").selectExpr("key", "value", "timestamp", ORIGIN)
    queries = []
    for topic, guarantee in ((copies, "effectively-once"), (transacted, "exactly-once")):
        writer = rows.writeStream.format("seglog").options(
            servers=server, topic=topic, deliveryGuarantee=guarantee, batchBytes="4k", compression="lz4"
        )
        writer = writer.option("checkpointLocation", f"{folder}/{topic}-checkpoint")
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
