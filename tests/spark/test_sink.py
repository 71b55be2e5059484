from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seglog.client import Client
from seglog.core.partitioner import partition_for_key
from tests.processes import Daemon
from tests.spark.test_writing import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(spark: "SparkSession", count: int) -> "DataFrame":
    return spark.range(0, count, 1, 2).selectExpr(
        "concat('key ', id % 40) as key",
        "if(id % 10 = 9, null, concat('value ', id)) as value",
        "array(struct('id' as key, cast(cast(id as string) as binary) as value)) as headers",
    )


def test_a_frame_is_appended_with_keys_where_the_client_puts_them(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions=3)
    writer = numbers(spark, 1000).write.format("seglog").options(servers=running.address, topic=topic)
    writer.options(compression="lz4").mode("append").save()
    found = records(client, topic)
    assert sorted(int(record.headers[0][1] or b"") for record in found) == list(range(1000))
    for record in found:
        number = int(record.headers[0][1] or b"")
        assert record.key == f"key {number % 40}".encode()
        assert record.value == (None if number % 10 == 9 else f"value {number}".encode())
        assert record.partition == partition_for_key(record.key, 3)
    with pytest.raises(Exception, match="only ever appended to"):
        writer.mode("overwrite").save()


def test_a_target_that_must_be_there_is_looked_for_before_anything_is_begun(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions=1)
    writer = numbers(spark, 10).write.format("seglog").options(servers=running.address, createTopic="false")
    with pytest.raises(Exception, match="UnknownTopicError"):
        writer.option("topic", f"{topic}s").mode("append").save()
    writer.option("topic", topic).mode("append").save()
    assert [found.name for found in client.topics() if found.name.startswith(topic)] == [topic]


@pytest.mark.parametrize(
    ("guarantee", "refusal"),
    [
        ("effectively-once", "the job nightly was finished with 300 rows in"),
        ("exactly-once", "task 1 of the job nightly committed 150 other rows"),
    ],
)
def test_a_job_that_is_run_again_writes_nothing_twice_and_takes_no_other_rows_for_its_own(
    guarantee: str, refusal: str, spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions=2)

    def save(count: int) -> None:
        writer = numbers(spark, count).write.format("seglog").options(servers=running.address, topic=topic)
        writer.options(deliveryGuarantee=guarantee, jobId="nightly").mode("append").save()

    save(300)
    save(300)
    with pytest.raises(Exception, match=f"OtherRowsError: {refusal}"):
        save(301)
    assert len(records(client, topic)) == 300


def copy(spark: "SparkSession", running: Daemon, source: str, target: str, checkpoint: Path, **options: str) -> None:
    """Copy what is there in micro-batches."""
    reader = spark.readStream.format("seglog").options(servers=running.address, subscribe=source)
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="100").load().select("key", "value")
    writer = frame.repartition("key").writeStream.format("seglog")
    writer.options(servers=running.address, topic=target, **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
SIZES = ("spark.sql.adaptive.advisoryPartitionSizeInBytes", "spark.sql.adaptive.coalescePartitions.minPartitionSize")


def lose_the_last_note(checkpoint: Path) -> None:
    """As if the driver had been killed when the sink was done with a micro-batch, and Spark had not noted it yet."""
    folder = checkpoint / "commits"
    last = max((path.name for path in folder.iterdir() if path.name.isdecimal()), key=int)
    (folder / last).unlink()
    (folder / f".{last}.crc").unlink()


@pytest.mark.parametrize(
    ("guarantee", "copies"),
    [
        ("effectively-once", 300),
        ("exactly-once", 300),
        pytest.param("at-least-once", 300 + 50 + 50, marks=pytest.mark.soak),
    ],
)
def test_a_micro_batch_that_is_run_again_writes_nothing_twice_if_that_is_asked_for(
    guarantee: str,
    copies: int,
    spark: "SparkSession",
    running: Daemon,
    client: Client,
    topic: str,
    checkpoint: Path,
    conf: Callable[[str, str], None],
) -> None:
    """Behind a shuffle, too, which adaptive execution would share out among other tasks each time."""
    source, target = f"{topic}-source", f"{topic}-target"
    for name in (source, target):
        client.create_topic(name, partitions=2)

    def run(size: str) -> None:
        for key in SIZES:
            conf(key, size)
        copy(spark, running, source, target, checkpoint, deliveryGuarantee=guarantee)

    for size in ("64m", "1b"):
        with client.producer(source, ack="os") as producer:
            for number in range(150):
                producer.send(f"value {number}", key=f"key {number}")
        run(size)
        lose_the_last_note(checkpoint)
    run("64m")
    there, copied = records(client, source), records(client, target)
    assert len(copied) == copies
    content = sorted((record.partition, record.key, record.value) for record in there)
    assert (sorted((record.partition, record.key, record.value) for record in copied) == content) == (copies == 300)


def test_a_micro_batch_whose_rows_may_be_in_other_tasks_now_is_refused_until_they_are_not(
    spark: "SparkSession",
    running: Daemon,
    client: Client,
    topic: str,
    checkpoint: Path,
    conf: Callable[[str, str], None],
) -> None:
    target = f"{topic}-2"
    for name in (topic, target):
        client.create_topic(name, partitions=2)

    def run(more: int = 0) -> int:
        with client.producer(topic, ack="os") as producer:
            for number in range(more):
                producer.send(f"value {number}", key=f"key {number}")
        copy(spark, running, topic, target, checkpoint, deliveryGuarantee="exactly-once")
        with client.consumer(target, isolation="read_committed") as consumer:
            return sum(1 for _ in consumer)

    conf(ADAPTIVE, "true")  # as in a session that ``seglog_spark.session`` did not make
    with pytest.raises(Exception, match=f"exactly-once needs the same rows in the same tasks.*set {ADAPTIVE} to false"):
        run(50)
    conf(ADAPTIVE, "false")
    conf("spark.sql.shuffle.partitions", "4")
    assert run() == 50
    lose_the_last_note(checkpoint)
    conf("spark.sql.shuffle.partitions", "3")
    with pytest.raises(Exception, match=r"OtherRowsError: micro-batch 0 was begun with spark.sql.shuffle.partitions 4"):
        run(20)
    conf("spark.sql.shuffle.partitions", "4")
    assert run() == 70
    conf("spark.sql.shuffle.partitions", "3")
    assert run(10) == 80
