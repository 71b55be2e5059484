"""Rounds of compaction on the loop: which partition, retries, events during a round, and the files left afterwards."""

import errno
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.server import TASKS, compaction_of
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.tasks.compaction import RETRY_SECONDS_MAX
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault
from seglog_broker.workers.messages import DIED, WorkerError
from seglog_protocol import segment_files
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from tests.appends import append_batch
from tests.logs import flip_bit, read_around, verify
from tests.unit.broker.tasks.living_broker import (
    HeldOffload,
    LoopClock,
    TimedDisk,
    Turns,
    alter,
    bases,
    delete,
    fetch,
    living,
    log_of,
    with_topic,
)

ONLY = ("compaction", "deletions")
SHORT = ("log.segment.delete.delay.ms=100", "log.flush.offset.checkpoint.interval.ms=30000")
BACKOFF = "log.cleaner.backoff.ms=1000"
FLAGS = (BACKOFF,)
COMPACT: Final[dict[str, Any]] = {
    "cleanup_policy": "compact",
    "segment_bytes": 1024,
    "index_interval_bytes": 200,
    "min_cleanable_dirty_ratio": 0,
}
PER_SEGMENT = 5
"""Batches that ``put`` gets into a segment of 1024 bytes."""

Latest = dict[bytes | None, tuple[int, bytes | None]]


class CleaningOffload(HeldOffload):
    """An offload that records cleaning jobs; it can hold them after they have written files, or make them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[CleaningJob] = []
        self.begun: list[float] = []
        self.running: list[str] = []
        self.errors: list[Exception] = []
        self.left: Callable[[], None] = lambda: None  # called when a cleaner ends, however it ends
        self._cleaners = trio.Event()
        self._cleaners.set()

    def hold_cleaners(self) -> None:
        self._cleaners = trio.Event()

    def let_cleaners_go(self) -> None:
        self._cleaners.set()

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:
        self.jobs.append(job)
        self.begun.append(trio.current_time())
        self.running.append(job.directory)
        try:
            if not self._cleaners.is_set():
                fs.open(f"{job.directory}/{0:020}.log.cleaned", create=True).close()
            await self._cleaners.wait()
            if self.errors:
                raise self.errors.pop(0)
            return await super().clean(fs, job)
        finally:
            self.running.remove(job.directory)
            self.left()


@pytest.fixture
def offload() -> CleaningOffload:
    return CleaningOffload()


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await with_topic(empty, **COMPACT)
    return empty


def put(
    broker: Broker,
    key: bytes | None,
    value: bytes | None = b"",
    *,
    topic: str = "t",
    partition: int = 0,
    timestamp: int | None = None,
) -> int:
    """Append a batch of one record, five of which fill a segment; returns its offset."""
    stamp = broker.clock.now_ms() if timestamp is None else timestamp
    filling = (("filling", b"." * 90),)
    result = append_batch(broker, encode_batch([(stamp, key, value, filling)]), topic, partition).result
    assert result.error is None, result.error
    assert result.base_offset is not None
    return result.base_offset


def fill(broker: Broker, segments: int = 3, keys: int = 4, *, topic: str = "t", partition: int = 0) -> None:
    """Fill closed segments with records of a few keys, and the active one with one record."""
    log = broker.partitions[topic, partition].log
    wanted = len(log.segments) + segments
    number = 0
    while len(log.segments) < wanted:
        put(broker, b"key %d" % (number % keys), b"%d" % log.log_end_offset, topic=topic, partition=partition)
        number += 1


def latest(broker: Broker) -> Latest:
    """Key -> last value, as a reader finds them."""
    return {r.key: (r.offset, r.value) for r in read_around(log_of(broker))}


def offsets_found(broker: Broker) -> list[int]:
    return [record.offset for record in read_around(log_of(broker))]


def files(fs: FileSystem, directory: str = "/data/t-0") -> set[str]:
    """File names that belong to no segment in service."""
    leftover = (segment_files.CLEANED_SUFFIX, segment_files.SWAP_SUFFIX, segment_files.DELETED_SUFFIX)
    return {name for name in fs.list_directory(directory) if name.endswith(leftover)}


def is_compacted(broker: Broker) -> bool:
    """Whether every key is there once below the active segment."""
    log = log_of(broker)
    keys = [r.key for r in read_around(log) if r.offset < log.active.base_offset]
    return len(keys) == len(set(keys))


def checkpoint(fs: FileSystem) -> dict[str, int]:
    if not fs.exists("/data/cleaner-offset-checkpoint"):
        return {}
    lines = read_file(fs, "/data/cleaner-offset-checkpoint").decode().splitlines()[2:]
    return {f"{topic}-{number}": int(offset) for topic, number, offset in (line.split() for line in lines)}


# --- Which, and when --------------------------------------------------------------------------------------------------


async def test_the_dirtiest_partition_comes_first(clock: LoopClock, fs: TimedDisk, offload: CleaningOffload) -> None:
    """The partition with the largest dirty share comes first and one below the ratio not at all."""
    config = {**COMPACT, "min_cleanable_dirty_ratio": "0.3"}
    async with living(fs, clock, BACKOFF, "log.cleaner.threads=1", offload=offload, tasks=ONLY) as broker:
        await with_topic(broker, partitions=3, **config)
        for partition in range(3):
            fill(broker, 4, keys=100, partition=partition)
        await trio.sleep(5)
        assert sorted(offload.begun) == offload.begun
        assert len(offload.jobs) == 3
        offload.jobs.clear()
        for partition, segments in enumerate((3, 1, 9)):
            fill(broker, segments, partition=partition)
        ratios = [log_of(broker, number).cleaning.find_cleanable().dirty_ratio for number in range(3)]
        assert ratios[2] > ratios[0] > 0.3 > ratios[1] > 0
        await trio.sleep(5)
        assert [job.directory for job in offload.jobs] == ["/data/t-2", "/data/t-0"]


async def test_very_many_partitions_without_compaction_take_few_turns_of_each_look(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    partitions, seconds = 1000, 10
    async with living(fs, clock, BACKOFF, "log.cleaner.threads=1", offload=offload, tasks=ONLY) as broker:
        await with_topic(broker, partitions=partitions)
        await trio.sleep(60)
        with Turns() as turns:
            await trio.sleep(seconds)
    assert seconds < turns.count < seconds * partitions / 10
    assert offload.jobs == []


async def test_without_the_cleaner_nothing_is_compacted_and_that_is_logged(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    with capture_logs() as logged:
        async with living(fs, clock, "log.cleaner.enable=false", offload=offload, tasks=ONLY) as broker:
            await with_topic(broker, **COMPACT)
            fill(broker)
            await trio.sleep(1000)
            assert offload.jobs == []
    assert [entry["consequence"] for entry in logged if entry["event"] == "compaction_disabled"]


async def test_a_cleaner_that_comes_too_late_for_the_first_takes_the_next_at_once(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    """Checking a cold log takes time, in which another cleaner takes the partition that both have chosen."""
    async with living(fs, clock, BACKOFF, offload=offload, tasks=()) as broker:
        await with_topic(broker, partitions=2, **COMPACT)
        fill(broker, 5, partition=0)
        fill(broker, 2, partition=1)
        offload.hold_cleaners()
        rounds = compaction_of(broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.clean_next)
            nursery.start_soon(rounds.clean_next)
            await wait_all_tasks_blocked()
            assert sorted(offload.running) == ["/data/t-0", "/data/t-1"]
            offload.let_cleaners_go()


async def test_the_rate_is_shared_by_the_cleaners_and_unlimited_unless_set(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    flags = (BACKOFF, "log.cleaner.threads=2", "log.cleaner.dedupe.buffer.size=4194304")
    async with living(fs, clock, *flags, offload=offload, tasks=ONLY) as broker:
        await with_topic(broker, **COMPACT)
        fill(broker)
        await trio.sleep(5)
    limited = (*flags, "log.cleaner.io.max.bytes.per.second=1000000")
    async with living(fs, clock, *limited, offload=offload, tasks=ONLY) as broker:
        fill(broker)
        await trio.sleep(5)
    assert [job.bytes_per_second for job in offload.jobs] == [None, 500_000]
    assert offload.jobs[0].map_bytes == 4_194_304 // 2


# --- Failures ---------------------------------------------------------------------------------------------------------


async def test_short_rounds_of_many_topics_keep_to_the_rate_together(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    rate = 1000
    limited = (BACKOFF, f"log.cleaner.io.max.bytes.per.second={rate}")
    moved: list[tuple[float, int]] = []

    async def noted(fs: FileSystem, job: CleaningJob) -> CleaningResult:
        result = await CleaningOffload.clean(offload, fs, job)
        moved.append((trio.current_time(), result.bytes_read + result.bytes_written))
        return result

    async with living(fs, clock, *limited, offload=offload, tasks=()) as broker:
        for number in range(10):
            await with_topic(broker, f"t{number}", **COMPACT)
            fill(broker, 2, topic=f"t{number}")
        offload.clean = noted  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(TASKS["compaction"], broker)
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
    assert len(moved) == 10
    (first, _), (last, _) = moved[0], moved[-1]
    before_the_last = sum(size for _, size in moved[:-1])
    assert before_the_last > 10 * rate, "it takes more than ten seconds at this rate"
    assert last - first >= before_the_last / rate


async def test_the_pause_after_failures_doubles_and_begins_anew_after_a_success(
    offload: CleaningOffload, broker: Broker
) -> None:
    fill(broker)
    expected = latest(broker)
    log = log_of(broker)
    offload.errors = [WorkerError(DIED, "killed") for _ in range(4)]
    await trio.sleep(10)
    assert "killed" in str(log.state.cleaner.last_error)
    assert [problem for problem in broker.hello().problems if "compaction" in problem and "killed" in problem]
    assert not is_compacted(broker)
    await trio.sleep(10)
    pauses = [late - early for early, late in zip(offload.begun, offload.begun[1:], strict=False)]
    assert pauses == [1, 2, 4, 8]
    assert is_compacted(broker)
    assert latest(broker) == expected
    assert log.state.cleaner.last_error is None
    assert broker.hello().problems == []
    metrics = broker.metrics
    assert metrics.compactions == {"failed": 4, "done": 1}
    assert metrics.compaction_read_bytes > metrics.compaction_written_bytes > 0
    offload.begun.clear()
    fill(broker)
    offload.errors = [WorkerError(DIED, "killed again")]
    await trio.sleep(10)
    assert offload.begun[1] - offload.begun[0] == 1


async def test_the_pause_has_a_longest_length_however_often_it_fails(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, tasks=()) as broker:
        await with_topic(broker, **COMPACT)
        fill(broker)
        rounds = compaction_of(broker)
        for _ in range(2000):
            rounds._note_outcome(broker.partitions["t", 0], succeeded=False)
        assert not await rounds.clean_next()
        await trio.sleep(RETRY_SECONDS_MAX)
        assert await rounds.clean_next()
        assert is_compacted(broker)


async def test_a_bug_in_a_round_costs_that_partition_its_compaction_and_nothing_else(
    fs: TimedDisk, offload: CleaningOffload, empty: Broker
) -> None:
    await with_topic(empty, partitions=2, **COMPACT)
    offload.errors = [RuntimeError("a bug")]
    for partition in range(2):
        fill(empty, partition=partition)
    with capture_logs() as logged:
        await trio.sleep(60)
    assert [entry["event"] for entry in logged if entry.get("exc_info")] == ["task_failed"]
    assert len(checkpoint(fs)) == 1
    assert len(offload.jobs) == 2
    assert files(fs) == set()


def _of_compaction(path: str) -> bool:
    return path.endswith((segment_files.CLEANED_SUFFIX, segment_files.SWAP_SUFFIX))


STATE = "seglog-partition.json.tmp"
FULL = [
    *(Fault("open", _of_compaction, error=errno.ENOSPC, nth=nth) for nth in (1, 2, 3)),
    *(Fault("pwritev", _of_compaction, error=errno.ENOSPC, nth=nth) for nth in (1, 2, 3)),
    Fault("pwritev", _of_compaction, short=7),
    *(Fault("fdatasync", _of_compaction, error=errno.EIO, nth=nth) for nth in (1, 3)),
    Fault("pwritev", STATE, error=errno.ENOSPC),
    Fault("rename", STATE, error=errno.ENOSPC, nth=1),
    Fault("rename", STATE, error=errno.ENOSPC, nth=2),
    *(Fault("rename", lambda path: "/t-0/0000" in path, error=errno.ENOSPC, nth=nth) for nth in range(1, 22)),
    *(Fault("sync_directory", "/t-0", error=errno.EIO, nth=nth) for nth in range(2, 8)),  # the first is of the log
    Fault("list_directory", "/t-0", error=errno.EMFILE),
    Fault("pwritev", "cleaner-offset-checkpoint.tmp", error=errno.ENOSPC),
]


@pytest.mark.parametrize("fault", FULL, ids=[f"{f.operation} {n}" for n, f in enumerate(FULL)])
async def test_whatever_fails_once_is_tried_again_and_in_the_end_the_log_is_compacted(
    fault: Fault, clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    async with living(fs, clock, BACKOFF, *SHORT, offload=offload, tasks=(*ONLY, "checkpoints")) as broker:
        await with_topic(broker, **COMPACT)
        fill(broker, 6)
        expected = latest(broker)
        log = log_of(broker)
        fs.inject(fault)
        await trio.sleep(0.99)
        assert latest(broker) == expected
        verify(fs, log)
        await trio.sleep(60)
        assert offload.jobs
        assert is_compacted(broker)
        assert latest(broker) == expected
        assert checkpoint(fs) == {"t-0": log.active.base_offset}
        assert files(fs) == set(), "nothing is left behind"
        assert broker.partitions["t", 0].problems == {}
        verify(fs, log)
        found = fs.found_after(PROCESS_KILL)
    async with living(found, clock, tasks=()) as again:
        assert latest(again) == expected
        verify(found, log_of(again))


async def test_a_swap_neither_completed_nor_undone(clock: LoopClock, fs: TimedDisk, offload: CleaningOffload) -> None:
    """A swap that can be neither completed nor undone loses no record and the next start completes it."""
    for nth in range(4, 15):  # behind the three renames of promoting
        disk = TimedDisk(clock)
        async with living(disk, clock, BACKOFF, offload=offload, tasks=ONLY) as broker:
            await with_topic(broker, **COMPACT)
            fill(broker, 6)
            expected = latest(broker)
            names = Fault("rename", lambda path: "/t-0/0000" in path, error=errno.EIO, nth=nth, sticky=True)
            disk.inject(names)
            await trio.sleep(30)
            disk.heal()
            await trio.sleep(100)
            put(broker, b"later")
            expected |= {b"later": (log_of(broker).log_end_offset - 1, b"")}
            crashed = disk.found_after(POWER_LOSS if nth % 2 else PROCESS_KILL)
        for found in (crashed, disk):
            async with living(found, clock, BACKOFF, offload=offload, tasks=ONLY) as broker:
                lost = {b"later"} if nth % 2 and found is crashed else set()  # it was not synced
                assert {k: v for k, v in expected.items() if k not in lost} == {
                    k: v for k, v in latest(broker).items() if k not in lost
                }
                await trio.sleep(100)
                assert is_compacted(broker)
                assert files(found) == set()
                verify(found, log_of(broker))


async def test_no_record_goes_before_the_later_one_that_replaces_it_survives_a_power_cut(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload, broker: Broker
) -> None:
    offload.hold_cleaners()
    put(broker, b"old key", b"first")
    fill(broker, 1)
    await wait_durable(broker.partitions["t", 0], log_of(broker).log_end_offset)
    for number in range(PER_SEGMENT):
        put(broker, b"new key %d" % number)
    at = put(broker, b"old key", b"second")  # in a segment of which nothing else is dropped: it is not rewritten
    for number in range(PER_SEGMENT):
        put(broker, b"other key %d" % number)
    offload.let_cleaners_go()
    await trio.sleep(5)
    assert offload.jobs[-1].upper_bound > at
    found = fs.found_after(POWER_LOSS)
    async with living(found, clock, tasks=()) as again:
        assert latest(again)[b"old key"] == (at, b"second")


# --- Others at work on the same partition -----------------------------------------------------------------------------


async def test_a_policy_changed_while_the_cleaner_runs_leaves_everything_as_it_was(
    fs: TimedDisk, offload: CleaningOffload, broker: Broker
) -> None:
    offload.hold_cleaners()
    fill(broker)
    await trio.sleep(3)
    before = fs.snapshot()
    logs = {path: data for path, data in before.items() if path.endswith(".log")}
    await alter(broker, cleanup_policy="delete")
    with capture_logs() as logged:
        offload.let_cleaners_go()
        await trio.sleep(30)
    assert [entry["reason"] for entry in logged if entry["event"] == "compaction_discarded"]
    assert {path: data for path, data in fs.snapshot().items() if path.endswith(".log")} == logs
    assert files(fs) == set()
    assert checkpoint(fs) == {}
    assert len(offload.jobs) == 1
    assert broker.hello().problems == []
    await alter(broker, cleanup_policy="compact")
    await trio.sleep(5)
    assert is_compacted(broker)


async def test_a_topic_is_deleted_after_its_cleaner_has_left(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    """A topic is deleted after its cleaner has left and one of the same name is another."""
    flags = (BACKOFF, "log.segment.delete.delay.ms=5000")
    async with living(fs, clock, *flags, offload=offload, tasks=ONLY) as broker:
        await with_topic(broker, partitions=2, **COMPACT)
        offload.hold_cleaners()
        fill(broker, partition=0)
        fill(broker, partition=1)
        await trio.sleep(3)
        assert offload.running == ["/data/t-0"]
        fs.operations.clear()
        done_before_the_end: list[str] = []
        offload.left = lambda: done_before_the_end.extend(op.path for op in fs.operations if op.name == "rename")
        await delete(broker)
        assert offload.running == []
        assert done_before_the_end == []
        assert [op.path for op in fs.operations if op.name == "rename" and op.path.startswith("/data/t-")] == [
            "/data/t-0",
            "/data/t-1",
        ]
        await with_topic(broker, **COMPACT)
        fill(broker)
        expected = latest(broker)
        offload.let_cleaners_go()
        await trio.sleep(60)
        assert [name for name in fs.list_directory("/data") if name.endswith("-delete")] == []
        assert is_compacted(broker)
        assert latest(broker) == expected
        verify(fs, log_of(broker))


async def test_a_deletion_that_the_disk_refuses_leaves_the_topic_to_be_compacted(
    fs: TimedDisk, offload: CleaningOffload, broker: Broker
) -> None:
    offload.hold_cleaners()
    fill(broker)
    await trio.sleep(3)
    fs.inject(Fault("pwritev", "seglog-topics.json.tmp", error=errno.EIO, sticky=True))
    with pytest.raises(Exception, match="could not be deleted"):
        await delete(broker)
    assert offload.running == [], "its round had to end for that"
    assert files(fs) == set()
    fs.heal()
    offload.let_cleaners_go()
    await trio.sleep(5)
    assert is_compacted(broker)
    assert broker.hello().problems == []


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_broker_that_stops_while_the_cleaner_runs_or_the_next_start_removes_its_files(
    is_refused: bool, clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    async with living(fs, clock, BACKOFF, offload=offload, tasks=ONLY) as broker:
        await with_topic(broker, **COMPACT)
        offload.hold_cleaners()
        fill(broker)
        expected = latest(broker)
        await trio.sleep(3)
        assert files(fs) == {f"{0:020}.log.cleaned"}
        if is_refused:
            fs.inject(Fault("unlink", ".cleaned", error=errno.EIO, sticky=True))
    fs.heal()
    assert len(files(fs)) == is_refused
    assert fs.open_files == []
    async with living(fs, clock, tasks=()) as broker:
        assert files(fs) == set()
        assert latest(broker) == expected
    offload.let_cleaners_go()
    async with living(fs, clock, BACKOFF, offload=offload, tasks=ONLY) as broker:
        await trio.sleep(5)
        assert is_compacted(broker)
        assert latest(broker) == expected


async def test_a_round_waits_for_a_truncation_that_is_in_progress(
    fs: TimedDisk, offload: CleaningOffload, empty: Broker
) -> None:
    """As retention does when it waits for the disk."""
    await with_topic(empty, **{**COMPACT, "cleanup_policy": "compact,delete"})
    partition = empty.partitions["t", 0]
    async with partition.maintenance:
        fill(empty, 5, keys=100)
        await trio.sleep(3)
        assert partition.is_being_cleaned
        assert offload.jobs == [], "what it is to do is not known yet"
        doomed = partition.log.truncation.drop_oldest(2)
        doomed.set_aside()
        doomed.remove()
    await trio.sleep(3)
    assert offload.jobs[0].segments[0].base_offset == 2 * PER_SEGMENT
    assert partition.problems == {}
    async with partition.maintenance:
        fill(empty, 5)
        await trio.sleep(3)
        doomed = partition.log.truncation.drop_oldest(len(partition.log.segments) - 1)
        doomed.set_aside()
        doomed.remove()
    await trio.sleep(30)
    assert len(offload.jobs) == 1, "nothing was left to do"
    assert partition.problems == {}
    verify(fs, partition.log)


async def test_retention_waits_for_compaction(clock: LoopClock, fs: TimedDisk, offload: CleaningOffload) -> None:
    """Retention leaves a partition alone while it is compacted and comes right after."""
    config = {**COMPACT, "cleanup_policy": "compact,delete", "retention_ms": 100_000}
    flags = (BACKOFF, "log.retention.check.interval.ms=10000")
    async with living(fs, clock, *flags, offload=offload, tasks=(*ONLY, "retention")) as broker:
        await with_topic(broker, **config)
        offload.hold_cleaners()
        fill(broker, 3)
        await trio.sleep(250)
        assert bases(broker)[0] == 0
        assert log_of(broker).log_start_offset == 0
        fill(broker, 1)
        end = log_of(broker).log_end_offset
        offload.let_cleaners_go()
        await trio.sleep(1)
        log = log_of(broker)
        assert log.log_start_offset > 0
        assert log.log_end_offset == end
        result = await fetch(broker, 0)
        assert isinstance(result.error, OffsetOutOfRangeError)
        assert result.error.reason == "expired"
        verify(fs, log)


async def test_a_partition_that_became_read_only_meanwhile_keeps_its_files(
    fs: TimedDisk, offload: CleaningOffload, broker: Broker
) -> None:
    offload.hold_cleaners()
    fill(broker, 4)
    await trio.sleep(3)
    fs.inject(Fault("fdatasync", ".log", error=errno.EIO))
    offload.let_cleaners_go()
    before = offsets_found(broker)
    await trio.sleep(30)
    assert log_of(broker).state.read_only is not None
    assert offsets_found(broker) == before
    assert files(fs) == set()
    assert len(offload.jobs) == 1


# --- What is in the records -------------------------------------------------------------------------------------------


async def test_keyless_records_go_when_a_topic_turns_compact_and_are_counted(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload
) -> None:
    async with living(fs, clock, BACKOFF, offload=offload, tasks=ONLY) as broker:
        await with_topic(broker, **{**COMPACT, "cleanup_policy": "delete"})
        for number in range(12):
            put(broker, None if number % 3 == 0 else b"key %d" % number, b"%d" % number)
        put(broker, b"in the active segment")
        await alter(broker, cleanup_policy="compact")
        with capture_logs() as logged:
            await trio.sleep(5)
        assert [entry["records"] for entry in logged if entry["event"] == "keyless_records_dropped"] == [4]
        assert [offset for offset in range(12) if offset % 3] == [o for o in offsets_found(broker) if o < 12]
        assert log_of(broker).state.cleaner.keyless_dropped == 4


async def test_damage_inside_a_segment_stays_is_reported_and_still_skipped(
    clock: LoopClock, fs: TimedDisk, offload: CleaningOffload, empty: Broker
) -> None:
    await with_topic(empty, **{**COMPACT, "segment_bytes": 4096})
    offload.hold_cleaners()
    fill(empty, 2, keys=3)
    log = log_of(empty)
    [victim] = [batch for batch in log.segments[0].log.batches() if batch.header.base_offset == 7]
    flip_bit(fs, log.segments[0].log_path, victim.end - 3)
    with capture_logs() as logged:
        offload.let_cleaners_go()
        await trio.sleep(5)
    [told] = [entry for entry in logged if entry["event"] == "damage_kept"]
    assert (told["start_offset"], told["end_offset"]) == (7, 8)
    [damage] = log.state.damaged
    assert (damage.start_offset, damage.end_offset, damage.segment) == (7, 8, 0)
    error = (await fetch(empty, 7)).error
    assert isinstance(error, CorruptRecordError)
    assert (error.next_offset, error.message.count("offsets 7 to 7 are damaged")) == (8, 1)
    verify(fs, log)
    async with living(fs.found_after(POWER_LOSS), clock, tasks=()) as again:
        assert [(d.start_offset, d.end_offset) for d in log_of(again).state.damaged] == [(7, 8)]
    await trio.sleep(100)
    assert len(offload.jobs) == 1, "damage is no reason to begin again"


async def test_a_round_that_finds_nothing_to_drop_still_moves_the_checkpoint(
    fs: TimedDisk, offload: CleaningOffload, broker: Broker
) -> None:
    fill(broker, 3, keys=1000)
    before = offsets_found(broker)
    await trio.sleep(60)
    assert len(offload.jobs) == 1
    assert offsets_found(broker) == before
    assert checkpoint(fs) == {"t-0": log_of(broker).active.base_offset}
