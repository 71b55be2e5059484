"""Effectively-once against a broker whose disk forgets: what is left when the power goes at any moment."""

import errno
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

import seglog
from seglog import raw
from seglog.client import Client
from seglog.core.delivery import Receipt
from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.errors import ConnectionLostError, PartitionReadOnlyError, SeglogError
from seglog_spark.marks import Writing
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.options import WriteOptions
from seglog_spark.writing import write_rows
from tests.logs import read_all
from tests.spark.test_writing import once, rows
from tests.unit.broker.listeners.fake_broker import serving

TARGET = "target"
MARKS = once(TARGET).marks_topic
ROWS = 200
ME = Writing("query", 0, 0)

Act = Callable[[Client], object]


def open_broker(fs: ForgetfulFileSystem) -> Broker:
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return Broker.open(config, fs, SystemClock(), InlineOffload())


class Cut:
    """A broker that is asked by a blocking client in a thread; every file operation may be its last."""

    def __init__(self, fs: ForgetfulFileSystem, broker: Broker, address: str) -> None:
        self.fs = fs
        self.broker = broker
        self._address = address

    async def run(self, act: Act) -> None:
        """What a process of Spark does, with a connection of its own."""

        def connected() -> None:
            with seglog.connect(self._address) as client:
                act(client)

        await trio.to_thread.run_sync(connected)

    def left(self) -> tuple[int, bool]:
        """After a power cut now: how many rows are in the target, and whether the micro-batch is noted as finished."""
        found = open_broker(self.fs.found_after(POWER_LOSS))
        logs = {(p.topic, p.number): p.log for p in found.partitions.values()}
        values = {record.value for (topic, _), log in logs.items() if topic == TARGET for record in read_all(log)}
        notes = read_all(logs[MARKS, 0]) if (MARKS, 0) in logs else []
        found.close()
        return len(values), any("finished" in json.loads(note.value or b"{}") for note in notes)


@asynccontextmanager
async def cut() -> AsyncGenerator[Cut, None]:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    async with serving(broker) as served:
        running = Cut(fs, broker, served.address)
        await running.run(lambda client: client.create_topic(TARGET, partitions=2))
        yield running
    fs.on_operation = None
    broker.close()


def task(options: WriteOptions, who: Writing = ME) -> Act:
    return lambda client: write_rows(client, options, [rows(ROWS)], who)


def finish(options: WriteOptions) -> Act:
    return lambda client: MarksTopic(client, options).finish(ME.query, ME.epoch)


async def test_when_a_micro_batch_is_finished() -> None:
    """The first attempt is killed with its rows in the page cache, which is no disk; the second finds all of them."""
    async with cut() as running:
        await running.run(task(once(TARGET, ack="os")))
        assert running.left() == (0, False)
        seen: list[tuple[int, bool]] = []
        running.fs.on_operation = lambda _: seen.append(running.left())
        await running.run(task(once(TARGET)))
        running.fs.on_operation = None
        assert running.left() == (ROWS, False), "before a row is left out it is on the disk: the driver need not look"
        running.fs.on_operation = lambda _: seen.append(running.left())
        await running.run(finish(once(TARGET)))
        assert running.left() == (ROWS, True)
        assert all(count == ROWS for count, is_finished in seen if is_finished)
        ends = [running.broker.partitions[TARGET, number].log.log_end_offset for number in (0, 1)]
        assert sum(ends) == ROWS, "and nothing was added"


async def test_rows_in_doubt_are_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that a broken connection left in doubt are on the disk when they are found."""
    append = raw.append
    answers = ["lost"]

    def losing(client: Client, batches: Sequence[raw.RawBatch], **options: str) -> list[Receipt | SeglogError]:
        if not answers:
            return append(client, batches, **options)  # type: ignore[arg-type]
        append(client, batches, ack="os")  # written; who waited for the disk is gone
        raise ConnectionLostError(answers.pop())

    monkeypatch.setattr(raw, "append", losing)
    async with cut() as running:
        await running.run(task(once(TARGET)))
        assert answers == []
        assert running.left() == (ROWS, False)


async def test_ends_that_are_noted_are_ends_that_stay() -> None:
    """Where a power cut moved the log's end below the noted one, marks of the next rows would lie in front of it."""
    async with cut() as running:
        for act in (task(once(TARGET, ack="os"), Writing("another", 0, 0)), finish(once(TARGET))):
            await running.run(act)
        found = open_broker(running.fs.found_after(POWER_LOSS))
        after = {n: found.partitions[TARGET, n].log.log_end_offset for n in (0, 1)}
        found.close()
        noted: dict[int, int] = {}

        def look(client: Client) -> None:
            finished = MarksTopic(client, once(TARGET)).finished(ME.query)
            assert finished is not None
            noted.update(finished.ends)

        await running.run(look)
        assert noted == after
        assert sum(noted.values()) == ROWS


async def test_what_the_disk_may_have_lost_is_not_left_out() -> None:
    async with cut() as running:
        await running.run(task(once(TARGET, ack="os")))
        running.fs.inject(Fault("fdatasync", f"{TARGET}-1/00000000000000000000.log", error=errno.EIO))
        with pytest.raises(PartitionReadOnlyError):
            await running.run(task(once(TARGET)))


async def test_at_os_nothing_is_synced_and_a_power_cut_takes_what_it_takes() -> None:
    async with cut() as running:
        for act in (task(once(TARGET, ack="os")), task(once(TARGET, ack="os")), finish(once(TARGET, ack="os"))):
            await running.run(act)
        assert running.left() == (0, True)
