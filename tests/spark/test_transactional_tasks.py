"""What a sink's tasks write at exactly-once, against a real broker and without Spark."""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import seglog
from seglog.client import Client
from seglog.core.transactions import TransactionCore
from seglog_protocol.errors import (
    SeglogError,
    TransactionAborted,
    TransactionFenced,
    TransactionUnanswered,
    UnsupportedApiError,
)
from seglog_spark import tasks
from seglog_spark.marks import OtherRowsError, Writing
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.options import TASKS_TOPIC, WriteOptions, parse_write_options
from seglog_spark.tasks import Written
from seglog_spark.transactional_tasks import TransactionalTask, prepare
from seglog_spark.writing import write_rows
from tests.processes import daemon
from tests.spark.test_writing import once as effectively_once
from tests.spark.test_writing import rows, values

ME = Writing("query", 0, 1)
JOB = Writing("nightly", 0, 1)


def once(topic: str, **more: str) -> WriteOptions:
    given = {"servers": "unused", "batchBytes": "2k", "topic": topic, "deliveryGuarantee": "exactly-once"}
    return parse_write_options(given | more, "batch" if "jobId" in more else "stream")


def committed(client: Client, topic: str) -> list[int]:
    return values(client, topic, "read_committed")


def cut_short(batches: list[pa.RecordBatch], by: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """The rows of a task to which something happens before they come to an end."""
    yield from batches
    by()


def killed() -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def tasks_topic(client: Client) -> None:
    prepare(client)


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REQUEST_BYTES", 4096)


def open_and_forgotten(client: Client, options: WriteOptions, writing: Writing, count: int) -> TransactionalTask:
    """A task that has sent rows and is no more: killed, or on a machine that nobody reaches."""
    task = TransactionalTask(client, options, writing)
    task.take(rows(count))
    return task


def test_all_rows_of_a_task_come_at_once(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    seen: list[list[int]] = []
    batches = cut_short([rows(500), rows(500, first=500)], lambda: seen.append(committed(client, topic)))
    written = write_rows(client, once(topic, compression="zstd"), batches, ME)
    assert seen == [[]]
    assert (written.rows, written.skipped) == (1000, 0)
    assert committed(client, topic) == list(range(1000))


def test_a_task_that_is_run_again_writes_nothing_once_it_has_committed(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    for skipped in (0, 300, 300):
        written = write_rows(client, once(topic), [rows(100), rows(200, first=100)], ME)
        assert (written.rows, written.skipped) == (300, skipped)
    assert values(client, topic) == list(range(300))
    # Behind a shuffle rows come in any order and in other batches.
    backwards = rows(300).take(pa.array(range(299, -1, -1)))
    assert write_rows(client, once(topic), [backwards], ME).skipped == 300
    assert values(client, topic) == list(range(300))


def test_what_an_attempt_left_open_does_not_count_when_the_next_one_begins(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    left = [open_and_forgotten(client, once(topic), ME, count) for count in (100, 350)]
    assert write_rows(client, once(topic), [rows(400)], ME).skipped == 0
    for task in left:
        task.given_up(KeyboardInterrupt())  # too late for it to mean anything
    assert committed(client, topic) == list(range(400))
    assert len(values(client, topic)) > 400


def test_an_attempt_that_fails_leaves_nothing_open(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    with pytest.raises(KeyboardInterrupt):
        write_rows(client, once(topic), cut_short([rows(300)], killed), ME)
    assert committed(client, topic) == []
    (place,) = client.offsets(topic)
    assert place.last_stable == place.latest > 0
    assert write_rows(client, once(topic), [rows(300)], ME).rows == 300
    assert committed(client, topic) == list(range(300))


def test_of_two_attempts_at_the_same_time_the_later_one_counts(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=2)
    done: list[int] = []

    def another_attempt() -> None:
        done.append(write_rows(client, once(topic), [rows(400)], ME).rows)

    with pytest.raises(TransactionFenced, match="another attempt of this task has taken its place"):
        write_rows(client, once(topic), cut_short([rows(200)], another_attempt), ME)
    assert done == [400]
    assert committed(client, topic) == list(range(400))


def test_an_attempt_that_comes_late_neither_writes_nor_disturbs(client: Client, topic: str) -> None:
    """Of a driver that lives on, while the next one is at a later micro-batch already."""
    client.create_topic(topic, partitions=1)
    write_rows(client, once(topic), [rows(10)], ME)
    later = Writing("query", 1, 1)

    def late() -> None:
        assert write_rows(client, once(topic), [rows(10)], ME).skipped == 10

    write_rows(client, once(topic), cut_short([rows(10, first=10)], late), later)
    assert write_rows(client, once(topic), [rows(10)], ME).skipped == 10
    assert committed(client, topic) == list(range(20))


def test_an_attempt_that_commits_between_two_looks_is_seen(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    task = TransactionalTask(client, once(topic), ME)
    write_rows(client, once(topic), [rows(20)], ME)
    task.take(rows(20))
    assert task.finish().skipped == 20
    assert values(client, topic) == list(range(20))


@pytest.mark.parametrize("guarantee", [once, effectively_once])
def test_tasks_epochs_queries_and_targets_do_not_take_each_other_for_themselves(
    client: Client, topic: str, guarantee: Callable[[str], WriteOptions]
) -> None:
    for name in (topic, f"{topic}-2"):
        client.create_topic(name, partitions=1)
        for who in (ME, Writing("query", 0, 2), Writing("query", 1, 1), Writing("another", 0, 1)):
            for _ in range(2):
                write_rows(client, guarantee(name), [rows(10)], who)
        assert len(committed(client, name)) == 40


def test_a_task_without_rows_takes_part_in_nothing(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    assert write_rows(client, once(topic), [rows(0)], ME).rows == 0
    assert write_rows(client, once(topic), [], ME).rows == 0
    assert topic not in "".join(found.transactional_id for found in client.transactions())


def test_other_rows_than_a_task_has_committed_are_an_error(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    write_rows(client, once(topic), [rows(50)], ME)
    for others in ([rows(40)], [rows(51)], []):
        with pytest.raises(OtherRowsError, match="task 1 of micro-batch 0 committed 50 other rows"):
            write_rows(client, once(topic), others, ME)
    write_rows(client, once(topic, jobId="nightly"), [rows(50)], JOB)
    with pytest.raises(OtherRowsError, match=r"the job nightly .*adaptive.enabled false; other rows need a jobId"):
        write_rows(client, once(topic, jobId="nightly"), [rows(50, first=1)], JOB)
    assert len(values(client, topic)) == 100


@pytest.mark.parametrize("guarantee", ["exactly-once", "effectively-once"])
def test_of_a_target_that_was_deleted_and_made_again_nothing_is_noted(
    client: Client, topic: str, guarantee: str
) -> None:
    options = once(topic, jobId="nightly", deliveryGuarantee=guarantee)
    for _ in range(2):
        client.create_topic(topic)
        for skipped in (0, 20):
            assert write_rows(client, options, [rows(20)], JOB).skipped == skipped
            if guarantee == "effectively-once":
                MarksTopic(client, options).finish(JOB.query, 0)
        assert committed(client, topic) == list(range(20))
        client.delete_topic(topic)


def test_a_task_that_takes_longer_than_its_transaction_may_is_told_so(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    options = once(topic, transactionTimeout="500ms")

    def slow() -> None:
        while "Ongoing" in {found.state for found in client.transactions() if topic in found.transactional_id}:
            pass

    with pytest.raises(TransactionAborted, match=r"took longer than transactionTimeout, 0.5 s.*a longer one"):
        write_rows(client, options, cut_short([rows(200)], slow), ME)
    assert committed(client, topic) == []
    with pytest.raises(SeglogError, match=r"transaction.max.timeout.ms"):
        write_rows(client, once(topic, transactionTimeout="20m"), [rows(200)], ME)


def test_a_batch_that_is_refused_fails_the_task_with_its_cause(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    keyless = pa.record_batch({"value": pa.array([b"1"])})
    with pytest.raises(TransactionAborted, match=r"nothing of it counts.*; the cause: .*key"):
        write_rows(client, once(topic), [keyless], ME)
    assert committed(client, topic) == []


def test_a_broker_without_transactions_is_named_before_anything_is_written(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(client.broker.apis, "extend_transaction")
    with pytest.raises(UnsupportedApiError, match=f"the broker at {re.escape(client.server)} .*effectively-once"):
        prepare(client)


def test_no_group_of_a_task_lags_behind(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    for epoch in range(3):
        write_rows(client, once(topic), [rows(10)], Writing("query", epoch, 1))
    (offset,) = client.describe_group(f"seglog-spark.{topic}.query.1").offsets
    assert (offset.topic, offset.offset, offset.lag.records if offset.lag else None) == (TASKS_TOPIC, 0, 0)
    assert '"epoch": 2' in offset.metadata


# --- The broker is killed ---------------------------------------------------------------------------------------------

QUICK = (("committing_offsets", "after"), ("ending", "after"))
CONVERSATIONS = ("beginning", "extending", "committing_offsets", "ending")
"""Those of a transaction, in their order."""


def once_around(conversation: Callable[..., Any], when: str, kill: Callable[[], None]) -> Callable[..., Any]:
    """The conversation, with a kill before or after the first one."""
    left = [kill]

    def begun(*arguments: Any, **named: Any) -> Generator[Any, Any, Any]:
        kills = [left.pop()] if left else []
        for happens in kills if when == "before" else ():
            happens()
        result = yield from conversation(*arguments, **named)
        for happens in kills if when == "after" else ():
            happens()
        return result

    return begun


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("step", "when"),
    [
        pytest.param(step, when, marks=() if (step, when) in QUICK else pytest.mark.soak)
        for step in CONVERSATIONS
        for when in ("before", "after")
    ],
)
def test_a_broker_that_is_killed_between_two_steps_is_waited_for(
    step: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is there once, whether the attempt itself goes on or the next one does its work."""
    kills: list[str] = []
    with daemon(tmp_path / "data") as running, seglog.connect(running.address, connect_timeout=60) as client:
        client.create_topic("target", partitions=2)
        prepare(client)
        write_rows(client, once("target"), [rows(100)], ME)

        def kill() -> None:
            kills.append(step)
            running.kill()
            running.start()

        monkeypatch.setattr(TransactionCore, step, once_around(getattr(TransactionCore, step), when, kill))
        second = Writing("query", 1, 1)
        written: Written | None = None
        while written is None:
            with suppress(TransactionAborted, TransactionUnanswered):  # then Spark runs the task again
                written = write_rows(client, once("target"), [rows(300, first=100)], second)
        assert (written.rows, kills) == (300, [step])
        assert write_rows(client, once("target"), [rows(300, first=100)], second).skipped == 300
        assert committed(client, "target") == list(range(400))
