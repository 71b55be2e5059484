"""A topic replayed into an Apache Kafka, changed on the way: Spark reads seglog, and writes by its own Kafka connector.

    pip install '.[spark-java]'
    python examples/spark_to_kafka.py KAFKA FOLDER

KAFKA is HOST:PORT; the topic is there already, with as many partitions. The stream keeps its progress in FOLDER: after
an end of any kind the same command goes on, and writes what it wrote last before a kill once more.

Spark fetches its connector from Maven's central repository, unless CONNECTOR_JARS names its files, with commas.

The broker is the one that SEGLOG_SERVER names, or localhost:9192.
"""

import os
import sys

import seglog_spark

SERVER = os.environ.get("SEGLOG_SERVER", "localhost:9192")
TOPIC = "readings"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def main(kafka: str, folder: str) -> None:
    """Write all records that have a value, each to the partition that it has here, and return at the log's end."""
    jars = os.environ.get("CONNECTOR_JARS")
    spark = seglog_spark.session("replay", conf={"spark.jars": jars} if jars else {"spark.jars.packages": CONNECTOR})
    query = (
        spark.readStream.format("seglog")
        .option("servers", SERVER)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", "100000")  # a partition is read by one task then, so its order stays
        .load()
        .where("value is not null")  # here records become others
        .select("topic", "partition", "key", "value", "headers")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("includeHeaders", "true")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/spark_to_kafka.py KAFKA FOLDER")
    main(*sys.argv[1:])
