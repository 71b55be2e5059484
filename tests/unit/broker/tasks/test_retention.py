"""The task of retention: its schedule, the order of its steps, failures, and what readers notice."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.partitions import segment_expiry
from seglog_broker.partitions.clock_trust import QUARANTINE_SECONDS, ClockTrust
from seglog_broker.partitions.segment_expiry import _PARTITIONS_AT_A_TIME, SegmentExpiry
from seglog_broker.storage.directory.identity import decode_trusted_time, encode_trusted_time
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.io.small_files import MalformedJsonError, seal
from seglog_broker.storage.log.truncation import AgeSource
from seglog_broker.tasks.upkeep import run_retention
from seglog_broker.testing.forgetful import Fault, Operation
from seglog_protocol import messages
from seglog_protocol.errors import OffsetOutOfRangeError
from seglog_protocol.record_batch import parse_header
from tests.unit.broker.tasks.living_broker import (
    START_MS,
    HeldOffload,
    LoopClock,
    TimedDisk,
    append,
    bases,
    fetch,
    living,
    log_name,
    log_of,
    names,
    with_topic,
)

EVERY_MINUTE = "log.retention.check.interval.ms=60000"
ONLY = ("retention", "deletions")
FLAGS = (EVERY_MINUTE,)


async def expiring(broker: Broker, *, partitions: int = 1, **config: str | int) -> None:
    """A topic with 1024-byte segments that keeps records for 10 s and removes files 5 s later."""
    limits: dict[str, Any] = {"segment_bytes": 1024, "retention_ms": 10_000, "file_delete_delay_ms": 5000, **config}
    await with_topic(broker, partitions=partitions, **limits)


def events(logged: list[Any], name: str) -> list[Any]:
    return [entry for entry in logged if entry["event"] == name]


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await expiring(empty)
    return empty


# --- The rhythm -------------------------------------------------------------------------------------------------------


async def test_checks_come_at_fixed_times_after_the_initial_delay_however_long_they_take() -> None:
    times: list[float] = []

    class Slow(SegmentExpiry):
        def __init__(self) -> None:
            pass

        async def check(self, partitions: object, boundary: object) -> None:
            times.append(trio.current_time())
            await trio.sleep(130 if len(times) == 2 else 7)

    clock = LoopClock()
    flags = (EVERY_MINUTE, "log.initial.task.delay.ms=30000")
    async with living(TimedDisk(clock), clock, *flags, tasks=()) as broker:
        with trio.move_on_after(400):
            await run_retention(broker.common, Slow(), broker.retention_schedule)
    assert times == [30, 90, 270, 330, 390], "one that is missed is not made up for"


async def test_expired_segments_are_counted_and_logged(broker: Broker) -> None:
    append(broker, 6)
    with capture_logs() as logged:
        await trio.sleep(61)
    assert (broker.metrics.segments_expired, broker.metrics.expired_bytes) == (2, 6 * 256)
    assert broker.metrics.segments_rolled == 2, "one for size, one so that a segment is left"
    assert [(e["base_offset"], e["bytes"], e["rule"]) for e in events(logged, "segment_expired")] == [
        (0, 1024, "time"),
        (4, 512, "time"),
    ]
    assert [entry["reason"] for entry in events(logged, "segment_rolled")] == ["retention"]
    await trio.sleep(10)
    assert broker.metrics.segments_expired == 2


# --- Clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [1000, 60_000, 5_000_000])
async def test_nothing_expires_after_a_clock_jump(interval_ms: int, clock: LoopClock, fs: TimedDisk) -> None:
    """After a forward clock jump nothing expires by age before the time has held for an hour."""
    check = f"log.retention.check.interval.ms={interval_ms}"
    async with living(fs, clock, check, tasks=ONLY) as broker:
        await expiring(broker, retention_ms=30 * 86_400_000)
        append(broker, 5)
        await trio.sleep(60)
        with capture_logs() as logged:
            clock.jump_ms = 60 * 86_400_000
            await trio.sleep(max(interval_ms / 1000, QUARANTINE_SECONDS) - 60)
            assert bases(broker) == [0, 4]
            await trio.sleep(QUARANTINE_SECONDS + 2 * interval_ms / 1000)
        assert bases(broker) == [5]
        assert [entry["milliseconds"] for entry in events(logged, "clock_jumped")] == [60 * 86_400_000]
        assert len(events(logged, "clock_trusted")) == 1


async def test_segments_due_without_the_clock_jump_expire(clock: LoopClock, fs: TimedDisk) -> None:
    """While a time is not trusted what was due without it still expires and another jump begins anew."""
    async with living(fs, clock, tasks=[]) as broker:
        trust = broker.clock_trust
        assert trust.now_ms() == clock.now_ms()
        clock.jump_ms = 86_400_000
        await trio.sleep(1800)
        assert trust.now_ms() == clock.now_ms() - 86_400_000, "the former time goes on"
        await trio.sleep(1800)
        clock.jump_ms *= 2
        assert trust.hold == (2 * 86_400_000, 3_600_000)
        await trio.sleep(3599)
        assert trust.is_held
        await trio.sleep(1)
        assert trust.now_ms() == clock.now_ms()
        clock.jump_ms = 0
        assert trust.now_ms() == clock.now_ms(), "a clock that is set back deletes less"
        clock.jump_ms = 86_400_000
        assert trust.is_held, "and forward again is a jump"
        clock.jump_ms = 0
        assert not trust.is_held, "unless it is corrected"


async def test_many_small_jumps_are_one_and_a_clock_that_is_adjusted_slowly_is_trusted(
    clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(fs, clock, tasks=[]) as broker:
        trust = broker.clock_trust
        for _ in range(48):
            clock.jump_ms += 50_000
            assert trust.now_ms() == clock.now_ms()
            await trio.sleep(3600)
        trust.now_ms()
        for _ in range(3):
            clock.jump_ms += 50_000
            trust.now_ms()
        assert trust.is_held


@pytest.mark.parametrize("clean", [True, False])
async def test_a_clock_that_jumps_while_the_broker_is_stopped_deletes_nothing_either(
    clean: bool, clock: LoopClock, fs: TimedDisk
) -> None:
    tasks = (*ONLY, "checkpoints")
    async with living(fs, clock, EVERY_MINUTE, tasks=tasks) as broker:
        await expiring(broker, retention_ms=30 * 86_400_000)
        append(broker, 5)
        await trio.sleep(120)
    if not clean:
        fs.unlink("/data/.kafka_cleanshutdown")
    clock.jump_ms = 60 * 86_400_000
    for _ in range(2):  # a second start forgets nothing
        async with living(fs, clock, EVERY_MINUTE, tasks=tasks) as broker:
            await trio.sleep(QUARANTINE_SECONDS - 60)
            assert bases(broker) == [0, 4]
    async with living(fs, clock, EVERY_MINUTE, tasks=tasks) as broker:
        await trio.sleep(QUARANTINE_SECONDS + 120)
        assert len(bases(broker)) == 1


async def test_a_stop_of_a_day_is_no_jump(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, tasks=("checkpoints",)):
        await trio.sleep(120)
    clock.jump_ms = 80_000_000
    async with living(fs, clock, tasks=[]) as broker:
        assert broker.clock_trust.now_ms() == clock.now_ms()


async def test_a_clock_file_that_is_not_understood_is_named() -> None:
    disk = TimedDisk(LoopClock())
    disk.load({"/data/seglog-clock.json": b"{"})
    with capture_logs() as logged:
        trust = ClockTrust(LoopClock(), disk, "/data")
        assert not trust.is_held
    assert trust.problem is not None
    [entry] = logged
    assert entry["event"] == "clock_file_ignored"
    assert entry["reason"].endswith("; a copy of it stays as seglog-clock.json.unreadable-ba6cac67")
    assert read_file(disk, "/data/seglog-clock.json.unreadable-ba6cac67") == b"{"


@pytest.mark.parametrize("facts", [{"version": 2, "trusted_ms": 5}, {"version": 1, "trusted_ms": "5"}, {"version": 1}])
def test_a_clock_file_of_another_form_is_not_understood(facts: dict[str, object]) -> None:
    assert decode_trusted_time(encode_trusted_time(5)) == 5
    with pytest.raises(MalformedJsonError, match=r"its (version|trusted_ms) is"):
        decode_trusted_time(seal(facts))


async def test_a_clock_jump_does_not_delay_the_size_and_log_start_rules(clock: LoopClock, empty: Broker) -> None:
    await expiring(empty, retention_ms=3_600_000, retention_bytes=1024)
    append(empty, 12)
    await trio.sleep(30)
    clock.jump_ms = 86_400_000
    await trio.sleep(31)
    assert bases(empty) == [8]


@pytest.mark.parametrize("timestamp", [-1, START_MS + 10**12])
async def test_segments_of_unknown_age_are_dated_by_the_first_check(
    timestamp: int, clock: LoopClock, fs: TimedDisk
) -> None:
    """All segments were written while the clock was a year ahead."""
    clock.jump_ms = 365 * 86_400_000
    async with living(fs, clock, EVERY_MINUTE, tasks=[]) as broker:
        await expiring(broker, retention_ms=90_000, message_timestamp_after_max_ms=2**62)
        append(broker, 9, timestamp=timestamp)
    clock.jump_ms = 0
    async with living(fs, clock, EVERY_MINUTE, "log.initial.task.delay.ms=1000", tasks=ONLY) as broker:
        log = log_of(broker)
        assert log.retention.last_write(log.active).source is AgeSource.LAST_APPEND
        with capture_logs() as logged:
            await trio.sleep(1.5)
        assert bases(broker) == [0, 4, 8]
        assert [entry["base_offset"] for entry in events(logged, "age_unknown")] == [0, 4, 8]
        assert {log.retention.last_write(segment) for segment in log.segments} == {
            (START_MS + 1000, AgeSource.MODIFICATION_TIME)
        }
        assert [verdict.due_ms for _, verdict in log.retention.judge_segments()] == [START_MS + 91_000] * 3
        await trio.sleep_until(120)
        assert bases(broker) == [0, 4, 8]
        await trio.sleep_until(122)
        assert bases(broker) == [9], "once, and not again at every check"


async def test_a_modification_time_that_cannot_be_set(clock: LoopClock, fs: TimedDisk) -> None:
    """A modification time that cannot be set marks the partition and is tried again."""
    clock.jump_ms = 86_400_000
    async with living(fs, clock, EVERY_MINUTE, tasks=ONLY) as broker:
        await expiring(broker)
        append(broker, 5, timestamp=-1)
        clock.jump_ms = 0
        fs.inject(Fault("set_mtime", error=errno.EPERM))
        await trio.sleep(61)
        assert any("retention is held up" in problem for problem in broker.hello().problems)
        await trio.sleep(60)
        assert broker.hello().problems == []
        await trio.sleep(60)
        assert bases(broker) == [5]


async def test_expired_segments_are_dropped_also_if_later_ones_cannot_be_dated(
    clock: LoopClock, fs: TimedDisk, broker: Broker
) -> None:
    append(broker, 4)
    clock.jump_ms = 86_400_000
    append(broker, 1, timestamp=-1)
    clock.jump_ms = 0
    fs.inject(Fault("set_mtime", error=errno.EPERM))
    await trio.sleep(61)
    assert bases(broker) == [4]
    assert names(fs) == {log_name(0, ".deleted"), log_name(4)}
    assert broker.partitions["t", 0].maintenance.locked() is False
    await trio.sleep(180)
    assert bases(broker) == [5]


# --- The order, and a disk that fails ---------------------------------------------------------------------------------


async def test_the_order_of_an_expiry(clock: LoopClock, fs: TimedDisk) -> None:
    """Expiry changes memory then state and checkpoint then names and last the files."""
    async with living(fs, clock, EVERY_MINUTE, tasks=ONLY) as broker:
        await expiring(broker)
        append(broker, 4)
        await trio.sleep(55)
        append(broker, 4)
        log = log_of(broker)
        seen: list[tuple[str, int]] = []

        def note(operation: Operation) -> None:
            if operation.name == "rename":
                seen.append((operation.path.rpartition("/")[2], log.log_start_offset))

        fs.on_operation = note
        await trio.sleep_until(61)
        fs.on_operation = None
    assert [name for name, _ in seen] == [
        "seglog-partition.json.tmp",
        "recovery-point-offset-checkpoint.tmp",
        "log-start-offset-checkpoint.tmp",
        f"{0:020d}.log",
        f"{0:020d}.index",
        f"{0:020d}.timeindex",
        f"{0:020d}.checksum",
    ]
    assert {start for _, start in seen} == {4}


async def test_a_checkpoint_that_cannot_be_written_does_not_keep_expired_segments(
    fs: TimedDisk, broker: Broker
) -> None:
    append(broker, 4)
    fs.inject(Fault("open", "checkpoint.tmp", error=errno.ENOSPC, sticky=True))
    with capture_logs() as logged:
        await trio.sleep(66)
    assert events(logged, "checkpoint_not_written")
    assert names(fs) == {log_name(4)}
    fs.heal()


async def test_files_that_cannot_be_renamed_are_removed_when_the_delay_is_over(fs: TimedDisk, broker: Broker) -> None:
    append(broker, 4)
    fs.inject(Fault("rename", log_name(0), error=errno.EACCES))
    await trio.sleep(61)
    log = log_of(broker)
    assert (bases(broker), log.truncation.first_base_on_disk) == ([4], 0), "out of the log all the same"
    assert any("retention is held up" in problem for problem in broker.hello().problems)
    starts = dict(broker.directory.partitions.encoded_checkpoints())["/data/log-start-offset-checkpoint"]
    assert b"t 0 4" in starts, "a start that finds them must not serve them"
    await trio.sleep(5)
    assert names(fs) == {log_name(4)}
    assert log.truncation.first_base_on_disk == 4
    assert b"t 0" not in dict(broker.directory.partitions.encoded_checkpoints())["/data/log-start-offset-checkpoint"]
    await trio.sleep(60)
    assert broker.hello().problems == []


async def test_one_partition_in_trouble_keeps_no_other_from_expiring(fs: TimedDisk, empty: Broker) -> None:
    await expiring(empty, partitions=3)
    for partition in range(3):
        append(empty, 5, partition=partition)
    fs.inject(Fault("stat", "t-1/00000000000000000000.timeindex", error=errno.EIO, sticky=True))
    log_of(empty, 1).retention = SimpleNamespace(judge_segments=_broken)  # type: ignore[assignment]
    with capture_logs() as logged:
        await trio.sleep(61)
    assert [bases(empty, partition) for partition in range(3)] == [[5], [0, 4], [5]]
    assert [entry["partition"] for entry in events(logged, "task_failed")] == [1]
    assert not any(partition.maintenance.locked() for partition in empty.partitions.values())


def _broken() -> Any:
    raise ZeroDivisionError("a bug")


async def test_more_partitions_than_fit_one_checkpoint_are_all_looked_at() -> None:
    count = 3 * _PARTITIONS_AT_A_TIME + 2
    clock = LoopClock()
    async with living(TimedDisk(clock), clock, EVERY_MINUTE, tasks=ONLY) as broker:
        await expiring(broker, partitions=count)
        for partition in range(0, count, 2):
            append(broker, 1, partition=partition)
        await trio.sleep(61)
        assert [bases(broker, partition) for partition in range(count)] == [[1], [0]] * (count // 2)


# --- With other tasks about -------------------------------------------------------------------------------------------


async def test_a_partition_that_another_task_works_on(empty: Broker) -> None:
    """The checkpoint task saves state at the time of a check, which must not postpone expiry by an interval."""
    await expiring(empty, partitions=2)
    append(empty)
    append(empty, partition=1)
    await trio.sleep(59)
    async with empty.partitions["t", 0].maintenance:
        await trio.sleep_until(60.5)
        assert (bases(empty), bases(empty, 1)) == ([0], [1])
    await trio.sleep_until(60.6)
    assert bases(empty) == [1]


async def test_a_partition_that_stays_busy_is_checked_next_time(broker: Broker) -> None:
    append(broker)
    await trio.sleep(59)
    async with broker.partitions["t", 0].maintenance:
        await trio.sleep_until(60 + segment_expiry.BUSY_SECONDS_MAX + 1)
        assert bases(broker) == [0]
    await trio.sleep_until(119)
    assert bases(broker) == [0]
    await trio.sleep_until(121)
    assert bases(broker) == [1]


@asynccontextmanager
async def held_checkpoint(clock: LoopClock, fs: TimedDisk) -> AsyncIterator[tuple[Broker, HeldOffload]]:
    """An expiry of the first four records that waits for its checkpoint."""
    offload = HeldOffload()
    async with living(fs, clock, EVERY_MINUTE, offload=offload, tasks=ONLY) as broker:
        await expiring(broker)
        append(broker, 4)
        await trio.sleep(59)
        offload.hold()
        await trio.sleep(2)
        assert (bases(broker), offload.held) == ([4], 1)
        yield broker, offload


async def test_a_topic_that_is_deleted_while_its_names_change_goes_when_they_have(
    clock: LoopClock, fs: TimedDisk
) -> None:
    async with held_checkpoint(clock, fs) as (broker, offload):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.delete_topic, messages.DeleteTopicRequest("t"))
            await trio.sleep(1)
            assert ("t", 0) in broker.partitions
            offload.let_go()
        assert not list(broker.partitions)
        await expiring(broker)
        append(broker)
        await trio.sleep(4)
        assert (names(fs), bases(broker)) == ({log_name(0)}, [0]), "nobody removes files of the new one"


async def test_a_stop_in_the_middle_leaves_a_log_that_a_start_serves_without_what_expired(
    clock: LoopClock, fs: TimedDisk
) -> None:
    async with held_checkpoint(clock, fs) as (_, offload), trio.open_nursery() as nursery:
        nursery.start_soon(_let_go_soon, offload)
    async with living(fs, clock, EVERY_MINUTE, tasks=ONLY) as broker:
        assert broker.directory.report.clean
        log = log_of(broker)
        assert (log.log_start_offset, log.log_end_offset) == (4, 4)
        await trio.sleep(6)
        assert names(fs) == {log_name(4)}


async def _let_go_soon(offload: HeldOffload) -> None:
    offload.let_go()
    await trio.lowlevel.checkpoint()


# --- Readers ----------------------------------------------------------------------------------------------------------


async def test_a_fetch_in_flight_reads_to_its_end_a_segment_that_expires_and_is_removed(
    fs: TimedDisk, broker: Broker
) -> None:
    append(broker, 5)
    with await broker.fetch(messages.FetchRequest([messages.FetchPartition("t", 0, 0)], max_wait_ms=0)) as answer:
        [piece] = answer.slices
        await trio.sleep(600)
        assert names(fs) == {log_name(5)}, "long past the deletion delay"
        position = 0
        for offset in range(4):
            header = parse_header(piece.file.pread(piece.size, piece.position), position)
            assert header.base_offset == offset
            position += header.size
        assert position == piece.size == 1024
        error = (await fetch(broker, 0)).error
        assert isinstance(error, OffsetOutOfRangeError)
        assert (error.requested, error.earliest, error.latest) == (0, 5, 5)
        assert error.facts["reason"] == "expired"
    assert not [path for path in fs.open_files if f"{0:020d}" in path], "and then the space comes back"


async def test_a_cold_segment_is_read_in_off_the_loop_before_it_is_judged(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, EVERY_MINUTE, tasks=[]) as broker:
        await expiring(broker)
        append(broker, 9)
    async with living(fs, clock, EVERY_MINUTE, tasks=ONLY) as broker:
        for path in fs.snapshot():
            if "/t-0/" in path:
                fs.evict(path)
        await trio.sleep(61)
        assert bases(broker) == [9]
        assert broker.metrics.cold_reads > 0


async def test_sizes_of_very_many_segments_are_asked_for_off_the_loop(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, tasks=()) as broker:
        await with_topic(broker, segment_bytes=1024, retention_ms=-1)
        append(broker, 4 * 1200)
    offload = HeldOffload()
    async with living(fs, clock, "log.retention.check.interval.ms=1000", offload=offload, tasks=()) as broker:
        offload.hold()
        fs.reads.clear()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _describe() -> None:
                _, payload = await broker.answer(messages.TopicsRequest())
                described.extend(messages.decode_descriptions(payload))

            described: list[messages.TopicDescription] = []
            await wait_all_tasks_blocked()
            assert not [read for read in fs.reads if read.name == "stat"], "nothing is asked on the loop"
            offload.let_go()
        assert described[0].size == 4 * 1200 * 256
        fs.reads.clear()
        await broker.answer(messages.TopicsRequest())
        assert not fs.reads
