"""A driver of its own, to be killed: copies a topic in small micro-batches, effectively once, to its end."""

import sys

import seglog_spark


def main(server: str, source: str, target: str, checkpoint: str) -> None:
    """Return when all that was there has been copied."""
    spark = seglog_spark.session(master="local[2]", conf={"spark.ui.enabled": "false"}, log_level="OFF")
    frame = (
        spark.readStream.format("seglog")
        .options(servers=server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="500")
        .load()
        .select("key", "value")
    )
    query = (
        frame.writeStream.format("seglog")
        .options(servers=server, topic=target, deliveryGuarantee="effectively-once", batchBytes="2k")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
