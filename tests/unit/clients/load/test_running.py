"""Whole runs against a broker in memory, on a clock that jumps."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from seglog.load.plan import Plan, make_plan
from seglog.load.report import Report
from seglog.load.running import Load, run
from seglog_protocol.errors import BrokerStoppingError, DiskFullError, UnknownTopicError
from seglog_protocol.messages import AppendReply, AppendRequest, AppendResult
from tests.unit.clients.fake_broker import SILENCE, Script
from tests.unit.clients.trio.memory_broker import MemoryBroker, memory_broker


def refusing(error: Exception, times: list[int]) -> Script:
    """Refuse the first appends."""

    def script(request: Any, _: memoryview) -> Any:
        if isinstance(request, AppendRequest) and times[0]:
            times[0] -= 1
            return AppendReply([AppendResult(p.topic, p.partition, error=error) for p in request.partitions])  # type: ignore[arg-type]
        return None

    return script


async def ran(broker: MemoryBroker, verb: Any, **options: Any) -> Report:
    values: dict[str, Any] = {"batch_bytes": 500, "ack": "os"} | options
    plan: Plan = make_plan(verb, **values)
    return await run(plan, broker.connect)


async def test_a_counted_run_sends_exactly_that_and_keeps_a_topic_it_did_not_make(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 3}) as broker:
        report = await ran(broker, "produce", topic="t", count=100, connections=2)
        assert (report.measurement.sent.records, report.ended_by, report.has_failed) == (100, "count", False)
        counts = [len(log.records()) for log in broker.logs["t"]]
        assert (sum(counts), all(counts)) == (100, True)
        assert report.measurement.latencies.count == 100


async def test_a_topic_that_was_made_is_removed_unless_it_is_to_be_kept(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"other": 1}) as broker:
        await ran(broker, "produce", count=10)
        await ran(broker, "produce", count=10, topic="mine")
        assert set(broker.logs) == {"other"}
        report = await ran(broker, "produce", count=10, partitions=2, keep=True)
        assert report.topic.startswith("load-")
        assert len(broker.logs[report.topic]) == 2


@pytest.mark.parametrize("verb", ["produce", "consume", "roundtrip"])
async def test_a_full_disk_ends_a_run_and_its_report_says_so(autojump_clock: MockClock, verb: str) -> None:
    async with memory_broker(topics={"t": 1}) as broker:
        broker.script = refusing(DiskFullError("full"), [10**9])
        began = trio.current_time()
        report = await ran(broker, verb, count=10_000, **({} if verb == "consume" else {"topic": "t"}))
        assert (report.ended_by, report.has_failed, trio.current_time() - began < 10) == ("error", True, True)
        assert set(report.measurement.errors) == {"DISK_FULL"}


async def test_errors_that_time_may_cure_are_counted_and_the_run_goes_on(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 1}) as broker:
        broker.script = refusing(BrokerStoppingError("going"), [3])
        report = await ran(broker, "produce", topic="t", duration=5.0, rate=100.0)
        assert report.measurement.errors == {BrokerStoppingError.code: 3}
        assert report.ended_by == "duration"
        assert report.has_failed
        assert report.measurement.sent.records > 400


async def test_a_silent_broker_does_not_keep_a_run_from_ending(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 1}) as broker:
        broker.script = lambda request, _: SILENCE if isinstance(request, AppendRequest) else None
        began = trio.current_time()
        report = await ran(broker, "produce", topic="t", duration=3.0, pipeline=4)
        assert trio.current_time() - began < 20
        assert (report.measurement.in_flight, report.measurement.sent.records) == (4, 0)
        assert report.has_failed


async def test_reading_counts_every_record_once_over_all_connections(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 3}) as broker:
        await ran(broker, "produce", topic="t", count=200)
        report = await ran(broker, "consume", topic="t", connections=2, pipeline=2)
        assert (report.measurement.received.records, report.ended_by) == (200, "end")
        assert not report.has_failed


async def test_reading_what_is_not_there_says_so_and_without_a_topic_it_makes_one(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"other": 1}) as broker:
        with pytest.raises(UnknownTopicError):
            await ran(broker, "consume", topic="t")
        report = await ran(broker, "consume", count=120, fill=120)
        assert report.measurement.received.records == 120
        assert any("120 records" in note for note in report.notes)
        assert set(broker.logs) == {"other"}


async def test_a_round_trip_sees_every_record_arrive(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 2}) as broker:
        await ran(broker, "produce", topic="t", count=30)  # of another run: not to be counted
        report = await ran(broker, "roundtrip", topic="t", count=60, rate=100.0)
        assert (report.measurement.sent.records, report.measurement.received.records, report.missing) == (60, 60, 0)
        assert report.measurement.latencies.count == 60


async def test_an_interrupted_run_reports_what_it_measured(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"other": 1}) as broker:
        report = await interrupted(broker, 5.0, monkey=lambda load: load.interrupt())
        assert report.ended_by == "interrupt"
        assert 450 < report.measurement.sent.records < 550
        assert set(broker.logs) == {"other"}, "the topic is removed all the same"


async def test_a_second_interrupt_does_not_wait_for_answers(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 1}) as broker:

        def twice(load: Load) -> None:
            load.interrupt()
            load.interrupt()

        with pytest.raises(KeyboardInterrupt):
            await interrupted(broker, 5.0, monkey=twice)


async def interrupted(broker: MemoryBroker, after: float, monkey: Callable[[Load], None]) -> Report:
    loads: list[Load] = []

    async def watch(load: Load, *, task_status: trio.TaskStatus[None]) -> None:
        loads.append(load)
        task_status.started()
        await trio.sleep(after)
        monkey(load)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Load, "watch", watch)
        return await ran(broker, "produce", duration=1000.0, rate=100.0, batch_bytes=None)
