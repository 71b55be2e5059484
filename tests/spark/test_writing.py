"""What a sink's tasks write, against a real broker and without Spark."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from seglog import raw
from seglog.client import Client
from seglog.core.delivery import Receipt
from seglog.core.records import Record
from seglog_protocol.errors import ConnectionLostError, SeglogError, StorageError, UnknownTopicError
from seglog_protocol.isolation import Isolation
from seglog_spark import tasks
from seglog_spark.marks import OtherRowsError, Writing
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.options import OptionError, WriteOptions, parse_write_options
from seglog_spark.writing import write_rows

ME = Writing("query", 0, 1)

Append = Callable[..., list[Receipt | SeglogError]]


def options(topic: str | None, **more: str) -> WriteOptions:
    given = {"servers": "unused", "batchBytes": "2k"} | ({} if topic is None else {"topic": topic})
    return parse_write_options(given | more, "stream")


def once(topic: str, **more: str) -> WriteOptions:
    return options(topic, deliveryGuarantee="effectively-once", marksTopic=f"{topic}-marks", **more)


def rows(count: int, *, first: int = 0) -> pa.RecordBatch:
    """Rows numbered in their values; every third without a key."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "key": pa.array([None if n % 3 == 0 else f"key {n % 20}" for n in numbers], pa.string()),
            "value": pa.array([f"{n:040}".encode() for n in numbers], pa.binary()),
        }
    )


def records(client: Client, topic: str, isolation: Isolation = "read_uncommitted") -> list[Record]:
    with client.consumer(topic, isolation=isolation) as consumer:
        return list(consumer)


def values(client: Client, topic: str, isolation: Isolation = "read_uncommitted") -> list[int]:
    return sorted(int(record.value or b"") for record in records(client, topic, isolation))


def interrupted(after: int) -> Iterator[pa.RecordBatch]:
    """Some rows, and then the end of the process that wrote them."""
    yield rows(after)
    raise KeyboardInterrupt


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REQUEST_BYTES", 4096)


def test_rows_are_written_in_their_order_and_within_their_partitions(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    written = write_rows(client, options(topic, compression="gzip"), [rows(500), rows(500, first=500)], None)
    found = records(client, topic)
    assert written.rows == len(found) == 1000
    assert values(client, topic) == list(range(1000))
    for partition in range(3):
        mine = [int(record.value or b"") for record in found if record.partition == partition]
        assert mine == sorted(mine)


@pytest.mark.parametrize("named", ["by the option", "by the rows"])
def test_no_topic_is_made_where_that_is_forbidden(client: Client, topic: str, named: str) -> None:
    wrong = f"{topic[:80]}s"
    batch = rows(3) if named == "by the option" else rows(3).append_column("topic", pa.array([wrong] * 3))
    given = options(wrong if named == "by the option" else None, createTopic="false")
    with pytest.raises(UnknownTopicError):
        write_rows(client, given, [batch], None)
    with pytest.raises(UnknownTopicError):
        write_rows(client, once(wrong, createTopic="false"), [rows(3)], ME)
    assert wrong not in {found.name for found in client.topics()}
    assert write_rows(client, replace(given, create_topic=True), [batch], None).rows == 3


def test_rows_name_their_own_topics_and_partitions(client: Client, topic: str) -> None:
    names = [f"{topic[:80]}-a", f"{topic[:80]}-b"]
    for name in names:
        client.create_topic(name, partitions=2)
    places = {"topic": [names[n >= 30] for n in range(100)], "partition": [n % 2 for n in range(100)]}
    write_rows(client, options(None), [pa.record_batch({"value": list(map(str, range(100)))} | places)], None)
    found = {(r.topic, r.partition, int(r.value or b"")) for name in names for r in records(client, name)}
    assert found == {(names[n >= 30], n % 2, n) for n in range(100)}


def test_rows_without_a_topic_are_refused(client: Client) -> None:
    with pytest.raises(OptionError, match="where do the rows go"):
        write_rows(client, options(None), [rows(1)], None)
    with pytest.raises(ValueError, match="a record has no 'colour'"):
        write_rows(client, options("t"), [pa.record_batch({"value": ["v"], "colour": ["red"]})], None)


def test_a_partition_below_0_is_named_with_its_row_among_those_of_the_task(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    rows = {"value": ["v"] * 4, "partition": [0, None, 1, -1], "topic": ["other", topic, "other", topic]}
    batches = [pa.record_batch({"value": ["v"] * 7}), pa.record_batch(rows)]
    with pytest.raises(ValueError, match="the column partition has -1 in row 10 of this task, counted from 0"):
        write_rows(client, options(topic), batches, None)
    with pytest.raises(ValueError, match=r"-1 in row 3 of this task.*where the key decides write null"):
        write_rows(client, options(None), batches[1:], None)
    assert records(client, topic) == []


def test_a_pace_is_asked_before_each_batch_and_not_for_what_is_there(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    asked: list[int] = []
    there = write_rows(client, once(topic), [rows(300)], ME, asked.append).rows
    assert there == sum(asked) == len(records(client, topic)) == 300
    assert len(asked) > 3
    write_rows(client, once(topic), [rows(300), rows(100, first=300)], ME, asked.append)
    assert sum(asked) == len(records(client, topic)) == 400


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("pieces", [[1000], [1, 332, 667]])
def test_a_task_that_is_run_again_writes_what_is_missing(client: Client, topic: str, pieces: list[int]) -> None:
    client.create_topic(topic, partitions=3)
    for after in (0, 300, 650):
        with pytest.raises(KeyboardInterrupt):
            write_rows(client, once(topic), interrupted(after), ME)
    already = len(records(client, topic))
    assert 0 < already < 650
    batches, first = [], 0
    for count in pieces:
        batches.append(rows(count, first=first))
        first += count
    written = write_rows(client, once(topic), batches, ME)
    assert (written.rows, written.skipped) == (1000, already)
    assert values(client, topic) == list(range(1000))


def test_a_finished_micro_batch_is_not_looked_for_in_the_topic(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    write_rows(client, once(topic), [rows(10)], ME)
    marks = MarksTopic(client, once(topic))
    marks.finish("query", 0)
    client.truncate_topic(topic, {0: None, 1: None})
    written = write_rows(client, once(topic), [rows(10)], ME)
    assert (written.rows, written.skipped) == (10, 10)
    assert records(client, topic) == []
    assert write_rows(client, once(topic), [rows(10)], Writing("query", 1, 0)).skipped == 0


def test_a_micro_batch_is_begun_again_with_as_many_partitions_of_a_shuffle(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    marks = MarksTopic(client, once(topic))
    for epoch, partitions in ((0, "4"), (0, "4"), (1, "3"), (1, "3")):
        marks.share("query", epoch, partitions)
    marks.share("another", 1, "4")
    with pytest.raises(OtherRowsError, match="start the query with 3 until this micro-batch is done"):
        marks.share("query", 1, "4")
    marks.finish("query", 1)
    marks.share("query", 1, "4")  # its rows are left out, whatever task has them


def test_a_newest_note_is_found_among_many_of_other_queries(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    marks = MarksTopic(client, once(topic))
    marks.finish("query", 7)
    with client.producer(f"{topic}-marks", ack="os") as producer:
        for number in range(700):
            producer.send(b"{}", key=f"other {number}")
    found = marks.finished("query")
    assert found is not None
    assert (found.epoch, found.ends) == (7, {0: 0})
    assert marks.finished("unknown") is None


def test_keys_go_where_they_went_before_although_the_topic_has_more_partitions_now(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    write_rows(client, once(topic), [rows(50)], ME)
    client.alter_topic(topic, partitions=5)
    assert write_rows(client, once(topic), [rows(100)], ME).skipped == 50
    assert values(client, topic) == list(range(100))


def test_other_rows_than_before_are_an_error(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    write_rows(client, once(topic), [rows(50)], ME)
    with pytest.raises(OtherRowsError, match="this micro-batch wrote other rows"):
        write_rows(client, once(topic), [rows(40)], ME)


JOB = Writing("nightly", 0, 1)


def of_job(topic: str, **more: str) -> WriteOptions:
    """``once`` of a batch job."""
    given = {"servers": "unused", "batchBytes": "2k", "topic": topic, "marksTopic": f"{topic}-marks"}
    return parse_write_options(given | {"deliveryGuarantee": "effectively-once", "jobId": JOB.query} | more, "batch")


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("batch_bytes", ["2k", "3k", "100k"])
def test_a_job_that_did_not_end_takes_the_same_rows_and_no_others(client: Client, topic: str, batch_bytes: str) -> None:
    client.create_topic(topic, partitions=1)
    with pytest.raises(KeyboardInterrupt):
        write_rows(client, of_job(topic), interrupted(300), JOB)
    already = len(records(client, topic))
    assert already > 100
    again = of_job(topic, batchBytes=batch_bytes)
    others = rows(100), pa.concat_batches([rows(1, first=7000), rows(300, first=101)])
    with pytest.raises(OtherRowsError, match=f"the job nightly wrote other rows to {topic}-0"):
        write_rows(client, again, others, JOB)
    with pytest.raises(OtherRowsError):
        write_rows(client, again, [rows(50)], JOB)
    assert len(records(client, topic)) == already
    written = write_rows(client, again, [rows(150), rows(250, first=150)], JOB)
    assert (written.rows, written.skipped) == (400, already)
    assert values(client, topic) == list(range(400))


def test_the_rows_of_a_job_come_to_one_number_written_or_not(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    first = write_rows(client, of_job(topic), [rows(400)], JOB)
    again = write_rows(client, of_job(topic), [rows(100), rows(300, first=100)], JOB)
    MarksTopic(client, of_job(topic)).finish("nightly", 0)
    backwards = rows(400).take(pa.array(range(399, -1, -1)))
    finished = write_rows(client, of_job(topic), [backwards], JOB)
    assert first.content == again.content == finished.content != 0
    assert (again.skipped, finished.skipped) == (400, 400)
    assert write_rows(client, of_job(topic), [rows(399)], JOB).content != first.content


# --- Broken connections -----------------------------------------------------------------------------------------------


def broken(append: Append, *, before: int = 0) -> Append:
    """Appends, and loses the answer to one request, of which only the first ``before`` batches arrived (0: all)."""
    left = [1]

    def losing(client: Client, batches: Sequence[raw.RawBatch], **options: str) -> list[Receipt | SeglogError]:
        if left.pop() if left else 0:
            append(client, batches[: before or None], **options)
            raise ConnectionLostError("gone")
        return append(client, batches, **options)

    return losing


@pytest.mark.parametrize("before", [0, 1, 3])
def test_after_a_lost_connection_marks_say_what_has_arrived(
    client: Client, topic: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, partitions=2)
    monkeypatch.setattr(raw, "append", broken(raw.append, before=before))
    written = write_rows(client, once(topic), [rows(400)], ME)
    assert written.rows == 400
    assert values(client, topic) == list(range(400))


def test_after_a_lost_connection_rows_may_be_there_twice_but_none_is_missing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, partitions=2)
    monkeypatch.setattr(raw, "append", broken(raw.append))
    write_rows(client, options(topic), [rows(400)], None)
    assert values(client, topic) == sorted([*range(400), *range(400)])


def test_a_batch_that_is_refused_fails_the_task(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_topic(topic, partitions=1)

    def refusing(client: Client, batches: Sequence[raw.RawBatch], **options: str) -> list[Receipt | SeglogError]:
        return [StorageError("the disk is in the way") for _ in batches]

    monkeypatch.setattr(raw, "append", refusing)
    with pytest.raises(StorageError, match="the disk is in the way"):
        write_rows(client, options(topic), [rows(400)], None)
