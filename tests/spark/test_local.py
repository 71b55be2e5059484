"""What a source plans and reads from its broker and, by localLogDir, from a log directory, held against each other."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import seglog
from seglog.client import Client
from seglog.directory.consumer import LogDirectory
from seglog_protocol.isolation import Isolation
from seglog_spark.catalog import Catalog, LocalCatalog
from seglog_spark.filters import Wanted
from seglog_spark.group_progress import GroupProgress
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import (
    MARKS_TOPIC,
    TARGET_TASK_BYTES,
    TASKS_TOPIC,
    Assign,
    OptionError,
    Subscribe,
    SubscribePattern,
    parse_read_options,
    parse_write_options,
)
from seglog_spark.planning import DataLossError, Ends
from seglog_spark.plans import StreamPlan, plan_batch
from seglog_spark.reading import RangeReader
from seglog_spark.schema import COLUMNS
from seglog_spark.transactional_tasks import prepare
from tests.interop.golden import load_case, unpack
from tests.processes import Daemon, daemon
from tests.spark.fake_log import tp
from tests.unit.clients.directory.files import batch_at, make_partition, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def fill(client: Client, topic: str, count: int, *, partitions: int = 2) -> None:
    """Records of every codec, with headers, tombstones and no key now and then, over many small segments."""
    client.create_topic(topic, partitions, {"segment.bytes": 16_384, "index.interval.bytes": 512, "retention.ms": -1})
    for number, codec in enumerate(CODECS):
        with client.producer(topic, ack="os", batch_bytes=2000, compression=codec) as producer:
            for record in range(number, count, len(CODECS)):
                value = None if record % 11 == 0 else b"value %d" % record
                headers = [("n", b"%d" % record), ("none", None)] if record % 3 == 0 else []
                key = f"key {record}" if record % 7 else None
                producer.send(value, key=key, timestamp=record * 1000, headers=headers)


def rows(server: str | Path, ranges: list[OffsetRange]) -> pa.Table:
    reader = RangeReader(server, tuple(COLUMNS))
    batches = [batch for wanted in ranges for batch in reader.read(wanted)]
    return pa.Table.from_batches(batches).combine_chunks()


def offsets(reader: RangeReader, *ranges: OffsetRange) -> list[int]:
    return [offset for wanted in ranges for batch in reader.read(wanted) for offset in batch["offset"].to_pylist()]


# --- Planning ---------------------------------------------------------------------------------------------------------


def test_a_log_directory_answers_planning_as_its_broker_does(running: Daemon, client: Client, topic: str) -> None:
    fill(client, topic, 3000)
    client.create_topic(f"{topic}.more")
    log, local = Catalog(client), LocalCatalog(running.directory)
    both = [tp(f"{topic}-0"), tp(f"{topic}-1")]
    for catalog in (log, local):
        assert catalog.partitions(Subscribe((topic,))) == catalog.partitions(SubscribePattern(topic)) == both
        for selection in (Subscribe((topic, f"{topic}.more")), SubscribePattern(f"{topic}.*")):
            assert catalog.partitions(selection) == [*both, tp(f"{topic}.more-0")]
        assert catalog.partitions(Assign((both[1],))) == both[1:]
        with pytest.raises(OptionError, match="no topic's whole name matches"):
            catalog.partitions(SubscribePattern(topic[:-1]))
        with pytest.raises(OptionError, match=f"names partition 2 of {topic}, which has 2"):
            catalog.partitions(Assign((tp(f"{topic}-2"),)))
    ends = log.ends(both)
    assert sum(end.latest for end in ends.values()) == 3000
    extents = log.extents(ends)
    size = client.describe_topic(topic).size
    assert 0 <= size - sum(extent.size for (extent,) in extents.values()) <= 2
    assert [(extent.start, extent.end) for (extent,) in extents.values()] == [tuple(ends[p]) for p in extents]
    for partition, (extent,) in extents.items():
        segments = log.segments(partition, ends[partition])
        assert len(segments) > 1
        assert [edge for s in segments for edge in s[:2]][1:-1:2] == [s.start for s in segments[1:]]
        assert (segments[0].start, segments[-1].end) == (extent.start, extent.end)
    assert sum(s.size for p in both for s in log.segments(p, ends[p])) == size
    client.truncate_topic(topic, {0: 100})
    ends = log.ends(both)
    assert log.ends(both[:1]) == {both[0]: Ends(100, ends[both[0]].latest)}
    assert {p: found.latest for p, found in local.ends(both).items()} == {p: found.latest for p, found in ends.items()}
    with client.consumer(topic) as consumer:
        records = list(consumer)
    for time_ms in (0, 1, 1_000_000, 1_500_500, 2_999_000, 2_999_001):
        found = log.find_times(dict.fromkeys(both, time_ms))
        for partition in both:
            mine = (r.offset for r in records if r.partition == partition.partition and r.timestamp >= time_ms)
            assert found[partition] == next(mine, None)
        assert local.find_times(dict.fromkeys(both, time_ms))[both[1]] == found[both[1]]
    for partition in both:
        assert local.segments(partition, ends[partition]) == log.segments(partition, ends[partition])


def test_patterns_match_neither_the_brokers_topics_nor_the_sinks_notes(tmp_path: Path) -> None:
    """Whatever their names: the stream that writes such notes would read them, and so write more, for ever."""
    with daemon(tmp_path / "data") as running, seglog.connect(running.address) as client:

        def note(name: str) -> None:
            given = {"servers": "unused", "topic": "lists", "deliveryGuarantee": "effectively-once", "marksTopic": name}
            MarksTopic(client, parse_write_options(given, "stream")).finish("query", 0)

        prepare(client)
        client.create_topic("empty")
        for name, value in (("lists", "[]"), ("targets", '{"target": "t"}'), ("words", "[" * 100_000)):
            with client.producer(name) as producer:
                producer.send(value)
        GroupProgress(client, "g").commit({tp("lists-0"): 1})
        note(MARKS_TOPIC)
        note("notes")
        there = LogDirectory(running.directory).topics().keys()
        assert {"__consumer_offsets", TASKS_TOPIC, MARKS_TOPIC, "notes"} <= there
        logs = Catalog(client), LocalCatalog(running.directory)
        for log in logs:
            found = [f"{name}-0" for name in ("empty", "lists", "targets", "words")]
            assert log.partitions(SubscribePattern(".*")) == [tp(name) for name in found]
            assert log.partitions(Subscribe(("notes",))) == [tp("notes-0")]
            with pytest.raises(OptionError, match="by their names alone"):
                log.partitions(SubscribePattern("notes"))
        note("empty")
        assert [log.partitions(SubscribePattern("e.*|lists")) for log in logs] == [[tp("lists-0")]] * 2


@pytest.mark.parametrize(
    ("options", "task_bytes"),
    [
        ({}, TARGET_TASK_BYTES),
        ({}, 20 << 10),
        (
            {"startingOffsets": '{"TOPIC": {"0": 17, "1": -2}}', "endingOffsets": '{"TOPIC": {"0": 600, "1": -1}}'},
            TARGET_TASK_BYTES,
        ),
    ],
)
def test_tasks_tile_the_range_and_give_the_same_rows(
    running: Daemon, client: Client, topic: str, options: dict[str, str], task_bytes: int
) -> None:
    """Tasks tile what was asked for and give the same rows from files as through the broker."""
    fill(client, topic, 2000)
    given = {name: text.replace("TOPIC", topic) for name, text in options.items()} | {"subscribe": topic}
    read = parse_read_options(given | {"localLogDir": str(running.directory)}, "batch")
    tasks = plan_batch(LocalCatalog(running.directory), replace(read, target_task_bytes=task_bytes), Wanted())
    through = parse_read_options(given | {"servers": running.address}, "batch")
    whole = plan_batch(Catalog(client), replace(through, target_task_bytes=task_bytes), Wanted())
    for partition in {task.partition for task in whole}:
        mine, theirs = ([t for t in found if t.partition == partition] for found in (tasks, whole))
        assert [t.end for t in mine[:-1]] == [t.start for t in mine[1:]]
        assert (mine[0].start, mine[-1].end) == (theirs[0].start, theirs[-1].end)
    assert len(tasks) >= len(whole) > 0
    assert rows(running.directory, tasks) == rows(running.address, whole)


def test_only_what_is_durable_by_the_checkpoint_is_read_if_asked_for(tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as running, seglog.connect(running.address) as client:
        fill(client, "t", 100, partitions=1)
        local = LocalCatalog(running.directory, durable_only=True)
        assert local.ends([tp("t-0")])[tp("t-0")].latest <= 100
        running.stop()
    assert local.ends([tp("t-0")])[tp("t-0")].latest == 100


# --- Isolation --------------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A directory that Kafka wrote, with transactions; that open in ``ledger``-0 begins at offset 162 of 192."""
    unpack(load_case("transactions"), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("isolation", "latest", "count"), [("read_uncommitted", 192, 177), ("read_committed", 162, 110)]
)
def test_batch_and_stream_end_where_their_isolation_does_and_read_what_it_lets_them(
    ledger: Path, isolation: Isolation, latest: int, count: int
) -> None:
    given = {"localLogDir": str(ledger), "assign": '{"ledger": [0]}', "isolation": isolation, "minPartitions": "7"}
    log, partition = LocalCatalog(ledger, isolation=isolation), tp("ledger-0")
    tasks = plan_batch(log, parse_read_options(given, "batch"), Wanted())
    assert (len(tasks), tasks[0].start, tasks[-1].end) == (7, 0, latest)
    found = offsets(RangeReader(ledger, ("offset",), isolation=isolation), *tasks)
    facts = load_case("transactions").answered["ledger-0"]
    told = facts["read_committed"] if isolation == "read_committed" else facts
    assert found == [row[0] for row in told["records"]["all"]]
    assert len(found) == count
    stream = StreamPlan(log, parse_read_options(given | {"startingOffsets": "earliest"}, "stream"))
    assert stream.next_end(stream.initial(), is_limited=True) == {partition: latest}
    stream.stop_at_latest()
    assert stream.next_end(stream.initial(), is_limited=True) == {partition: latest}
    assert stream.tasks({partition: 0}, {partition: latest})[-1].end == latest


def test_a_stream_cannot_change_its_isolation(ledger: Path) -> None:
    """A stream that began at read uncommitted is told why it cannot go on at read committed."""
    given = {"localLogDir": str(ledger), "assign": '{"ledger": [0]}', "isolation": "read_committed"}
    plan = StreamPlan(LocalCatalog(ledger, isolation="read_committed"), parse_read_options(given, "stream"))
    with pytest.raises(DataLossError, match=r"up to offset 192, and its log ends at 162: .* began at read_uncommitted"):
        plan.next_end({tp("ledger-0"): 192}, is_limited=True)


def test_spark_reads_committed_records(spark: "SparkSession", ledger: Path) -> None:
    read = spark.read.format("seglog").options(localLogDir=str(ledger), subscribe="ledger", isolation="read_committed")
    assert read.load().count() == 110 + 90


# --- What goes wrong --------------------------------------------------------------------------------------------------


def test_what_is_gone_when_a_task_comes_to_read_it_is_an_error_or_left_out(
    running: Daemon, client: Client, topic: str
) -> None:
    """What is there is a range's records and no others."""
    fill(client, topic, 500, partitions=1)
    assert offsets(RangeReader(running.address, ("offset",)), OffsetRange(topic, 0, 123, 321)) == list(range(123, 321))
    assert offsets(RangeReader(running.address, ("offset",)), OffsetRange(topic, 0, 5, 5)) == []
    (batch,) = RangeReader(running.address, ("offset", "value")).read(OffsetRange(topic, 0, 7, 9))
    assert batch.to_pydict() == {"offset": [7, 8], "value": [b"value 35", b"value 40"]}
    client.truncate_topic(topic, {0: 100})
    for start, end, why in ((30, 300, r"offset 30 .*"), (450, 600, "the log ends at 500")):
        wanted = OffsetRange(topic, 0, start, end)
        with pytest.raises(DataLossError, match=f"from {start} to {end} cannot all be read: .*{why}"):
            offsets(RangeReader(running.address, ("offset",)), wanted)
        accepting = RangeReader(running.address, ("offset",), fail_on_data_loss=False)
        assert offsets(accepting, wanted) == list(range(max(start, 100), min(end, 500)))


def test_a_range_whose_segments_are_gone_is_lost_or_left_out(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    paths = [write_segment(directory, [batch_at(base, 2)], base) for base in (0, 2, 4, 6)]
    wanted = OffsetRange("t", 0, 0, 8)
    paths[1].unlink()
    with pytest.raises(DataLossError, match="offsets 2 to 3 are missing"):
        rows(tmp_path, [wanted])
    paths[0].unlink()
    with pytest.raises(DataLossError, match=r"from 0 to 8 cannot all be read: .*the log begins at 4"):
        rows(tmp_path, [wanted])
    assert offsets(RangeReader(tmp_path, ("offset",), fail_on_data_loss=False), wanted) == [4, 5, 6, 7]
