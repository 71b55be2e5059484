"""A driver that is there to be killed: three streams read a topic to its end, into Parquet and into two topics."""

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

import seglog_spark
from tests.spark.drivers import ORIGIN, SHORT_LIVED

BEGUN = re.compile(r"was begun with spark.sql.shuffle.partitions (\d+)")


def main(
    server: str, source: str, copies: str, transacted: str, folder: str, offsets_per_trigger: str, partitions: str
) -> None:
    """Return when all have come to the end that the source had at the start.

    ``copies`` is written effectively once, ``transacted`` exactly once, both behind a shuffle with ``partitions``, or
    with as many as a micro-batch was begun with.
    """
    spark = seglog_spark.session(master="local[2]", conf=SHORT_LIVED)
    frame = (
        spark.readStream.format("seglog")
        .options(servers=server, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=offsets_per_trigger)
        .load()
    )
    files = frame.select("partition", "offset", "timestamp", "key", "value").writeStream.format("parquet")
    # A tenth of the rows loses its key, so that the choice of a partition is the sink's.
    rows = frame.repartition("partition").selectExpr(
        "if(crc32(value) % 10 = 0, null, key) as key", "value", "timestamp", ORIGIN
    )
    copied, written = (
        rows.writeStream.format("seglog").options(
            servers=server, topic=topic, deliveryGuarantee=guarantee, batchBytes="4k", compression="lz4"
        )
        for topic, guarantee in ((copies, "effectively-once"), (transacted, "exactly-once"))
    )
    writers = {"files": files.option("path", f"{folder}/files"), "copies": copied, "transacted": written}

    def start(name: str, partitions: str) -> Any:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        writer = writers[name].option("checkpointLocation", f"{folder}/{name}-checkpoint")
        return writer.trigger(availableNow=True).start()

    queries = {name: start(name, partitions) for name in writers}
    while spark.streams.active or any(query.exception() for query in queries.values()):
        with suppress(StreamingQueryException):
            spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()
        for name, query in queries.items():
            failure = query.exception()
            if failure is None:
                continue
            begun = BEGUN.search(str(failure))
            if begun is None:
                raise failure
            queries[name] = start(name, begun[1])
            with Path(folder, "refused").open("a") as refused:
                refused.write(f"{name} {partitions} {begun[1]}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
