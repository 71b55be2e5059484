"""A driver that is there to be killed: three streams read a topic to its end, into Parquet and into two topics."""

import sys

import seglog_spark
from tests.clients.spark.drivers import ORIGIN, SHORT_LIVED


def main(server: str, source: str, copies: str, transacted: str, folder: str, offsets_per_trigger: str) -> None:
    """Return when all have come to the end that the source had at the start.

    ``copies`` is written effectively once, ``transacted`` exactly once.
    """
    spark = seglog_spark.session(master="local[2]", conf=SHORT_LIVED)
    frame = (
        spark.readStream.format("seglog")
        .options(servers=server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=offsets_per_trigger)
        .load()
    )
    files = frame.select("partition", "offset", "timestamp", "key", "value").writeStream.format("parquet")
    # A tenth of the rows loses its key, so that the choice of a partition is the sink's.
    rows = frame.selectExpr("if(crc32(value) % 10 = 0, null, key) as key", "value", "timestamp", ORIGIN)
    copied, written = (
        rows.writeStream.format("seglog").options(
            servers=server, topic=topic, deliveryGuarantee=guarantee, batchBytes="4k", compression="lz4"
        )
        for topic, guarantee in ((copies, "effectively-once"), (transacted, "exactly-once"))
    )
    queries = [
        writer.option("checkpointLocation", f"{folder}/{name}-checkpoint").trigger(availableNow=True).start(path)
        for name, writer, path in (
            ("files", files, f"{folder}/files"),
            ("copies", copied, None),
            ("transacted", written, None),
        )
    ]
    while spark.streams.active:
        spark.streams.awaitAnyTermination()  # it raises what a query ended with
        spark.streams.resetTerminated()
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
