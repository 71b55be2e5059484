import json
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seglog.client import Client
from seglog_spark.schema import ddl
from tests.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


START_MS = 1_546_300_800_000


def produce(client: Client, topic: str, count: int, *, partitions: int = 2, start: int = 0) -> None:
    """Records numbered from ``start``, a tenth of them tombstones, every third with headers."""
    client.create_topic(
        topic, partitions=partitions, config={"segment.bytes": 1 << 20, "retention.ms": -1}, exist_ok=True
    )
    with client.producer(topic, ack="os", compression="zstd") as producer:
        for number in range(start, start + count):
            headers = [("n", str(number).encode()), ("none", None)] if number % 3 == 0 else []
            value = None if number % 10 == 9 else f"value {number}"
            key = f"key {number % 50}" if number % 7 else None
            producer.send(value, key=key, timestamp=START_MS + number, headers=headers)


def read(spark: "SparkSession", running: Daemon, topic: str, schema: str = "", **options: str) -> "DataFrame":
    reader = spark.read.format("seglog").options(servers=running.address, subscribe=topic, **options)
    return (reader.schema(schema) if schema else reader).load()


def test_a_topic_is_read_with_the_columns_of_sparks_kafka_source(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    produce(client, topic, 2000)
    frame = read(spark, running, topic, includeHeaders="true", minPartitions="3")
    assert [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema] == ddl(
        include_headers=True
    ).split(", ")
    with client.consumer(topic) as consumer:
        expected = {(record.partition, record.offset): record for record in consumer}
    rows = frame.collect()
    assert len(rows) == len(expected) == 2000
    epoch = datetime.fromtimestamp(0, UTC)
    for row in rows:
        record = expected.pop((row.partition, row.offset))
        headers = None if row.headers is None else tuple((header.key, header.value) for header in row.headers)
        assert (row.key, row.value, headers or ()) == (record.key, record.value, record.headers)
        moment = epoch + timedelta(milliseconds=record.timestamp)
        assert (row.topic, row.timestamp.astimezone(UTC), row.timestampType) == (topic, moment, 0)
    assert not expected


def test_a_users_schema_and_filters_in_the_plan(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's schema chooses columns and filters that ranges keep vanish from the plan."""
    produce(client, topic, 500)
    frame = read(spark, running, topic, "offset bigint, partition int, value binary", pushdown="true")
    found = frame.where("partition = 1 and offset >= 20 and offset < 40 and value is not null").drop("value")
    with client.consumer(topic, partitions=[1], start={1: 20}, until={1: 40}) as consumer:
        offsets = [record.offset for record in consumer if record.value is not None]
    assert sorted(tuple(row) for row in found.collect()) == [(offset, 1) for offset in offsets]
    found.explain()
    (condition,) = re.findall(r"Filter (.*)", capsys.readouterr().out)
    assert "value" in condition
    assert "offset" not in condition
    with pytest.raises(Exception, match="the column offset is bigint, not int"):
        read(spark, running, topic, "offset int").count()


def test_an_empty_topic_has_no_rows_and_a_misspelt_one_is_told_with_the_nearest(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    client.create_topic(topic, partitions=1)
    assert read(spark, running, topic).count() == 0
    with pytest.raises(Exception, match=rf"(?s)UnknownTopicError.*{topic}"):
        read(spark, running, f"{topic}s").count()
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        read(spark, running, topic, startingOfsets="earliest").count()


# --- Streams ----------------------------------------------------------------------------------------------------------


def stream(
    spark: "SparkSession", running: Daemon, topic: str, checkpoint: Path, **options: str
) -> tuple[list[dict[str, Any]], list[tuple[int, int, int]]]:
    """One run of a query until it is at the end: its progress, and (batch, partition, offset) of all its rows."""
    rows: list[tuple[int, int, int]] = []

    def keep(frame: "DataFrame", number: int) -> None:
        rows.extend((number, row.partition, row.offset) for row in frame.select("partition", "offset").collect())

    source = spark.readStream.format("seglog").options(servers=running.address, subscribe=topic, **options).load()
    writer = source.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress], rows


def test_a_stream_goes_on_where_it_was_within_its_limits_and_finds_new_partitions(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, checkpoint: Path
) -> None:
    produce(client, topic, 250)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    progress, rows = stream(spark, running, topic, checkpoint, **options)
    assert [batch["numInputRows"] for batch in progress] == [100, 100, 50]
    last = progress[-1]["sources"][0]
    assert last["endOffset"] == last["latestOffset"]
    assert progress[0]["sources"][0]["latestOffset"] == last["latestOffset"]
    offsets = {0: 0, 1: 0}
    for _, partition, offset in rows:
        assert offset == offsets[partition]
        offsets[partition] += 1

    client.alter_topic(topic, partitions=3)
    produce(client, topic, 90, start=250)
    _, more = stream(spark, running, topic, checkpoint, **options)
    assert len(more) == 90
    assert {partition for _, partition, _ in more} == {0, 1, 2}
    assert stream(spark, running, topic, checkpoint, **options)[1] == []
    assert len({row[1:] for row in rows + more}) == 340


def test_a_stream_commits_its_progress_to_a_group_which_it_never_reads(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, checkpoint: Path
) -> None:
    produce(client, topic, 250)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100", "group": f"{topic}-etl"}
    progress, _ = stream(spark, running, topic, checkpoint, **options)
    told = {int(number): end for number, end in progress[-1]["sources"][0]["endOffset"][topic].items()}
    assert sum(told.values()) == 250
    committed = {each.partition: each.offset for each in client.group_offsets(f"{topic}-etl")}
    assert committed == told

    client.reset_group(f"{topic}-etl", "earliest")
    produce(client, topic, 30, start=250)
    assert len(stream(spark, running, topic, checkpoint, **options)[1]) == 30
    assert client.describe_group(f"{topic}-etl").records == 0


@pytest.mark.soak
def test_a_topic_that_goes_back_stops_its_stream(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, checkpoint: Path
) -> None:
    """Spark would ask for the offsets behind the new end once more, as of any source that does not look itself."""
    produce(client, topic, 100, partitions=1)
    assert len(stream(spark, running, topic, checkpoint, startingOffsets="earliest")[1]) == 100
    client.delete_topic(topic)
    produce(client, topic, 40, partitions=1)
    with pytest.raises(Exception, match=r"up to offset 100, and its log ends at 40: .* the topic was recreated"):
        stream(spark, running, topic, checkpoint)
    assert stream(spark, running, topic, checkpoint, failOnDataLoss="false")[1] == []
    produce(client, topic, 70, start=40, partitions=1)
    assert [offset for *_, offset in stream(spark, running, topic, checkpoint)[1]] == list(range(40, 110))


NAMED = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


def counted(
    spark: "SparkSession", running: Daemon, topic: str, checkpoint: Path, starting: str, *names: str | None
) -> int:
    """Rows of a run over a source for each name, of the partition that is its place among them."""
    frames = []
    for partition, name in enumerate(names):
        reader = spark.readStream.format("seglog").options(servers=running.address, startingOffsets=starting)
        reader = reader.option("assign", json.dumps({topic: [partition]}))
        frames.append((reader if name is None else reader.name(name)).load())
    writer = (
        reduce(lambda some, more: some.union(more), frames)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


@pytest.mark.soak
def test_names_of_sources_are_for_new_checkpoints(
    spark: "SparkSession",
    running: Daemon,
    client: Client,
    topic: str,
    tmp_path: Path,
    conf: Callable[[str, str], None],
) -> None:
    """With names a source can be added later. The offsets of a checkpoint without are where a new one begins."""
    produce(client, topic, 100)
    old, new, ends = tmp_path / "old", tmp_path / "new", "earliest"
    places = {place.partition: place.latest for place in client.offsets(topic)}

    def run(checkpoint: Path, *names: str | None) -> int:
        return counted(spark, running, topic, checkpoint, ends, *names)

    assert run(old, None) == places[0]
    with pytest.raises(Exception, match="SOURCE_NAMING_NOT_SUPPORTED"):
        run(old, "first")
    with pytest.raises(Exception, match=r"are .1. sources in the checkpoint offsets and now there are .2."):
        run(old, None, None)
    conf(NAMED, "true")
    with pytest.raises(Exception, match="CANNOT_ENABLE_ON_EXISTING_CHECKPOINT"):
        run(old, "first")
    last = max((old / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends = last.read_text().splitlines()[-1]
    assert run(new, "first") == 0
    ends = "earliest"
    assert run(new, "first", "second") == places[1]
    with pytest.raises(Exception, match="UNNAMED_STREAMING_SOURCES_WITH_ENFORCEMENT"):
        run(new, None)
    assert run(new, "renamed", "second") == places[0], "a name that is new begins at startingOffsets"


@pytest.mark.soak
def test_streams_that_start_together(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, checkpoint: Path
) -> None:
    """Spark adds to it without a lock: what is there can be replaced safely, what is not cannot be added safely."""
    produce(client, topic, 10)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    environment = manager.lookupDataSource("seglog").dataSourceCls().envVars()
    assert environment.getClass().getName() == "java.util.HashMap"
    before = set(environment)
    stream(spark, running, topic, checkpoint, startingOffsets="earliest")
    assert set(environment) == before
    assert environment["SPARK_LOCAL_DIRS"] != tempfile.gettempdir(), (
        "a stream no longer adds here: is this still needed?"
    )
    assert "SPARK_BUFFER_SIZE" not in spark.sparkContext.environment


def test_a_session_that_was_not_told_of_the_source_finds_it(
    spark: "SparkSession", running: Daemon, client: Client, topic: str
) -> None:
    produce(client, topic, 10)
    assert read(spark.newSession(), running, topic).count() == 10
