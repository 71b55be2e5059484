from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from seglog.client import Client
from seglog.core.partitioner import partition_for_key
from seglog.core.records import Record
from tests.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def records(client: Client, topic: str) -> list[Record]:
    with client.consumer(topic) as consumer:
        return list(consumer)


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


def test_rows_name_their_own_topics_and_partitions(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    for name in ("a", "b"):
        client.create_topic(f"{topic}-{name}", partitions=2)
    frame = spark.range(100).selectExpr(
        f"if(id < 30, '{topic}-a', '{topic}-b') as topic", "cast(id % 2 as int) as partition", "string(id) as value"
    )
    frame.write.format("seglog").options(servers=running.address, ack="os").mode("append").save()
    found = {
        (record.topic, record.partition, int(record.value or b""))
        for name in ("a", "b")
        for record in records(client, f"{topic}-{name}")
    }
    assert found == {(f"{topic}-{'a' if number < 30 else 'b'}", number % 2, number) for number in range(100)}
    with pytest.raises(Exception, match="where do the rows go"):
        frame.drop("topic").write.format("seglog").option("servers", running.address).mode("append").save()


def test_a_target_that_must_be_there_is_looked_for_before_anything_is_begun(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions=1)
    writer = numbers(spark, 10).write.format("seglog").options(servers=running.address, createTopic="false")
    with pytest.raises(Exception, match="UnknownTopicError"):
        writer.option("topic", f"{topic}s").mode("append").save()
    writer.option("topic", topic).mode("append").save()
    assert [found.name for found in client.topics() if found.name.startswith(topic)] == [topic]


@pytest.mark.parametrize("guarantee", ["effectively-once", "exactly-once"])
def test_a_job_that_is_run_again_writes_nothing_twice(
    guarantee: str, spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions=2)
    writer = numbers(spark, 300).write.format("seglog").options(servers=running.address, topic=topic).mode("append")
    for _ in range(2):
        writer.options(deliveryGuarantee=guarantee, jobId="nightly").save()
    assert len(records(client, topic)) == 300
    if guarantee == "exactly-once":
        return
    # When there is nothing left to do, the same rows may come in other tasks.
    again = numbers(spark, 300).orderBy("value").write.format("seglog").options(servers=running.address, topic=topic)
    again.options(deliveryGuarantee="effectively-once", jobId="nightly").mode("append").save()
    assert len(records(client, topic)) == 300


@pytest.mark.parametrize(
    ("first", "count"),
    [(1, 300), pytest.param(0, 250, marks=pytest.mark.slow), pytest.param(0, 301, marks=pytest.mark.slow)],
)
def test_a_job_that_was_finished_does_not_take_other_rows_for_its_own(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, first: int, count: int
) -> None:
    client.create_topic(topic, partitions=2)

    def save(frame: "DataFrame") -> None:
        writer = frame.selectExpr("string(id) as value").write.format("seglog").mode("append")
        writer.options(servers=running.address, topic=topic, deliveryGuarantee="effectively-once", jobId="j").save()

    save(spark.range(300))
    with pytest.raises(Exception, match="OtherRowsError: the job j was finished with 300 rows in"):
        save(spark.range(first, first + count))
    assert len(records(client, topic)) == 300


def copy(spark: "SparkSession", running: Daemon, source: str, target: str, checkpoint: Path, **options: str) -> None:
    """Copy what is there in micro-batches."""
    reader = spark.readStream.format("seglog").options(servers=running.address, subscribe=source)
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="100").load().select("key", "value")
    writer = frame.writeStream.format("seglog").options(servers=running.address, topic=target, **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


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
        pytest.param("at-least-once", 300 + 50 + 50, marks=pytest.mark.slow),
    ],
)
def test_a_micro_batch_that_is_run_again_writes_nothing_twice_if_that_is_asked_for(
    guarantee: str, copies: int, spark: "SparkSession", running: Daemon, client: Client, topic: str, checkpoint: Path
) -> None:
    source, target = f"{topic}-source", f"{topic}-target"
    for name in (source, target):
        client.create_topic(name, partitions=2)
    for _ in range(2):
        with client.producer(source, ack="os") as producer:
            for number in range(150):
                producer.send(f"value {number}", key=f"key {number}")
        copy(spark, running, source, target, checkpoint, deliveryGuarantee=guarantee)
        lose_the_last_note(checkpoint)
    copy(spark, running, source, target, checkpoint, deliveryGuarantee=guarantee)
    there, copied = records(client, source), records(client, target)
    assert len(copied) == copies
    content = sorted((record.partition, record.key, record.value) for record in there)
    assert (sorted((record.partition, record.key, record.value) for record in copied) == content) == (copies == 300)
