"""A topic in Spark, in batch and as a stream; needs PySpark and a Java, both by pip.

    pip install '.[spark-java]'
    python examples/spark_query.py FOLDER

The stream keeps its output and its progress in FOLDER: started again, it goes on where it was.

The broker is the one that SEGLOG_SERVER names, or localhost:9192.
"""

import os
import sys
from pathlib import Path

import seglog_spark

SERVER = os.environ.get("SEGLOG_SERVER", "localhost:9192")
TOPIC = "readings"


def main(folder: Path) -> None:
    """Count the records of each key in a batch query, then copy what is new to Parquet in a streaming one."""
    spark = seglog_spark.session("readings")

    records = spark.read.format("seglog").option("servers", SERVER).option("subscribe", TOPIC).load()
    records.selectExpr("cast(key as string) as key").groupBy("key").count().orderBy("key").show()

    query = (
        spark.readStream.format("seglog")
        .option("servers", SERVER)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet")
        .option("path", str(folder / "readings"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("records in Parquet:", spark.read.parquet(str(folder / "readings")).count())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/spark_query.py FOLDER")
    main(Path(sys.argv[1]))
