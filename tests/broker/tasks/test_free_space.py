"""A full disk as a mode, seen from the broker: it begins, is told, and ends by itself; readers cannot keep it full."""

import errno
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.broker import Broker
from seglog_broker.storage.forgetful import Fault
from seglog_broker.tasks.deletion import run_deletions
from seglog_broker.tasks.free_space import BALLAST_RETRY_SECONDS, LOOK_SECONDS, run_free_space
from seglog_broker.tasks.retention import run_retention
from seglog_broker.transfers import REMOVED_PATIENCE_SECONDS, CutError, Held
from seglog_protocol.errors import DiskFullError
from seglog_protocol.messages import (
    AlterTopicRequest,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    FetchPartition,
    FetchRequest,
)
from tests.broker.tasks.living_broker import (
    LoopClock,
    TimedDisk,
    append,
    bases,
    fetch,
    living,
    log_name,
    names,
    with_topic,
)
from tests.logs import batch_of_size

ONLY = (run_free_space,)
MARKS = (
    "seglog.disk.free.soft.bytes=20000",
    "seglog.disk.free.hard.bytes=10000",
    "seglog.disk.ballast.bytes=3000",
)
BALLAST = "/data/seglog-ballast"


def refusal(broker: Broker) -> DiskFullError:
    encoded = batch_of_size(256, broker.clock.now_ms())
    request = AppendRequest([AppendPartition("t", 0, len(encoded))], "os")
    reply = broker.append(request, memoryview(bytearray(encoded))).reply
    assert reply is not None
    error = reply.partitions[0].error
    assert isinstance(error, DiskFullError)
    return error


async def test_past_the_hard_mark_appends_are_refused_until_the_soft_one_and_everything_else_goes_on(
    autojump_clock: object, clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(fs, clock, *MARKS, tasks=ONLY) as broker:
        await with_topic(broker)
        append(broker, 3)
        with capture_logs() as logged:
            fs.limit_free_bytes(9_000)
            await trio.sleep(2 * LOOK_SECONDS)
            error = refusal(broker)
            assert (error.retriable, error.hard, error.soft) == (True, 10_000, 20_000)
            assert error.free >= 9_000
            with pytest.raises(DiskFullError):
                await broker.create_topic(CreateTopicRequest("more", 1, {}))
            with pytest.raises(DiskFullError):
                await broker.alter_topic(AlterTopicRequest("t", partitions=2))
            assert list(broker.directory.registry.topics) == ["t"]
            assert (await fetch(broker, 0)).size == 3 * 256
            await broker.alter_topic(AlterTopicRequest("t", config={"retention.ms": 1000}))
            assert [p for p in broker.hello().problems if "is full" in p]
            numbers = broker.read_metrics().metrics
            assert (numbers["disk_full"], numbers["ballast_bytes"]) == (1, 0)
            fs.limit_free_bytes(22_000)  # still below the soft mark, as the ballast is still to be made
            await trio.sleep(2 * LOOK_SECONDS)
            refusal(broker)
            fs.limit_free_bytes(24_000)
            await trio.sleep(2 * LOOK_SECONDS)
            append(broker)
        assert [entry["event"] for entry in logged if entry["log_level"] in {"warning", "error"}] == [
            "disk_full",
            "ballast_given_up",
        ]
        assert "disk_has_room" in [entry["event"] for entry in logged]
        assert not broker.hello().problems
        assert broker.read_metrics().metrics["disk_full"] == 0


async def test_between_the_marks_the_broker_only_warns(autojump_clock: object, clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, *MARKS, tasks=ONLY) as broker:
        await with_topic(broker)
        with capture_logs() as logged:
            fs.limit_free_bytes(19_000)
            await trio.sleep(2 * LOOK_SECONDS)
            append(broker)
        assert [entry["event"] for entry in logged] == ["disk_filling_up"]
        assert [problem for problem in broker.hello().problems if "filling up" in problem]


async def test_a_write_that_finds_no_room_is_told_as_a_full_disk_and_harms_nothing(
    autojump_clock: object, clock: LoopClock, fs: TimedDisk
) -> None:
    off = ("seglog.disk.free.hard.bytes=0", "seglog.disk.free.soft.bytes=0", "seglog.disk.ballast.bytes=0")
    async with living(fs, clock, *off, tasks=ONLY) as broker:
        await with_topic(broker)
        append(broker)
        fs.limit_free_bytes(100)  # less than the batch has
        error = refusal(broker)
        assert (error.retriable, error.free) == (True, 100)
        assert (await fetch(broker, 0)).size == 256
        fs.limit_free_bytes(None)
        append(broker)
        assert (await fetch(broker, 0)).size == 512


async def test_the_ballast_is_made_given_up_and_made_again(
    autojump_clock: object, clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(fs, clock, *MARKS, tasks=ONLY) as broker:
        await trio.sleep(LOOK_SECONDS)
        assert fs.stat(BALLAST).size == 3000
        fs.limit_free_bytes(0)
        await trio.sleep(2 * LOOK_SECONDS)
        assert not fs.exists(BALLAST)
        assert fs.free_bytes("/data") == 3000
        fs.limit_free_bytes(100_000)
        fs.inject(Fault("fdatasync", BALLAST, errno.ENOSPC))  # a quota, perhaps
        await trio.sleep(2 * LOOK_SECONDS)
        assert not fs.exists(BALLAST)
        await trio.sleep(BALLAST_RETRY_SECONDS)
        assert fs.stat(BALLAST).size == 3000
        assert broker.directory.space.free == 97_000


async def test_retention_ends_a_full_disk_and_nothing_that_was_acked_is_lost(
    autojump_clock: object, clock: LoopClock, fs: TimedDisk
) -> None:
    tasks = (run_free_space, run_retention, run_deletions)
    times = ("log.retention.check.interval.ms=5000", "log.segment.delete.delay.ms=1000")
    async with living(fs, clock, *MARKS, *times, tasks=tasks) as broker:
        await with_topic(broker, segment_bytes=1024, retention_ms=-1)
        await trio.sleep(LOOK_SECONDS)
        append(broker, 400)  # 102,400 bytes
        fs.limit_free_bytes(9_000)
        await trio.sleep(2 * LOOK_SECONDS)
        refusal(broker)
        await broker.alter_topic(AlterTopicRequest("t", config={"retention.bytes": 50_000}))
        await trio.sleep(10)
        append(broker)
        log = broker.partitions["t", 0].log
        assert log.log_end_offset == 401
        assert log.log_start_offset == bases(broker)[0] > 0
        for base in bases(broker):
            assert (await fetch(broker, base)).size == min(4, 401 - base) * 256


@pytest.mark.parametrize(
    "fault",
    [
        Fault("open", log_name(4), errno.ENOSPC),  # the segment that follows the one that goes
        Fault("open", "checkpoint.tmp", errno.ENOSPC),
        Fault("rename", log_name(0), errno.ENOSPC),
        Fault("unlink", log_name(0, ".deleted"), errno.ENOSPC),
    ],
    ids=lambda fault: fault.operation,
)
async def test_retention_that_finds_no_room_takes_that_of_the_ballast_before_the_next_look(
    autojump_clock: object, clock: LoopClock, fs: TimedDisk, fault: Fault
) -> None:
    tasks = (run_free_space, run_retention, run_deletions)
    async with living(fs, clock, *MARKS, "log.retention.check.interval.ms=61000", tasks=tasks) as broker:
        await with_topic(broker, retention_ms=10_000, file_delete_delay_ms=500)
        append(broker, 4)
        await trio.sleep(LOOK_SECONDS)
        fs.inject(fault)
        with capture_logs() as logged:
            await trio.sleep(61)
        assert bases(broker) == [4]
        assert names(fs) == {log_name(4)}
        assert not [entry for entry in logged if entry["log_level"] in {"warning", "error"}]
        assert "ballast_made" in [entry["event"] for entry in logged], "again, so it had been given up"


# --- Readers of removed files -----------------------------------------------------------------------------------------


def parts(*removed: bool) -> Sequence[Held]:
    return [SimpleNamespace(is_removed=is_removed) for is_removed in removed]


async def test_readers_of_removed_files_are_cut_after_ten_seconds_of_a_full_disk_and_others_are_not(
    autojump_clock: object, clock: LoopClock, fs: TimedDisk
) -> None:
    ended: dict[str, float] = {}
    async with living(fs, clock, *MARKS, tasks=ONLY) as broker:

        async def read(name: str, held: Sequence[Held]) -> None:
            with pytest.raises(CutError, match="removed file"), broker.transfers.track(held):
                await trio.sleep_forever()
            ended[name] = trio.current_time()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, "removed", parts(False, True))
            with broker.transfers.track(parts(False)):
                await trio.sleep(100)
                assert not ended, "there is room: a reader may take its time"
                began = trio.current_time()
                fs.limit_free_bytes(0)
                await trio.sleep(100)
            assert set(ended) == {"removed"}
            assert REMOVED_PATIENCE_SECONDS <= ended["removed"] - began <= REMOVED_PATIENCE_SECONDS + 2 * LOOK_SECONDS
            assert len(broker.transfers) == 0


async def test_a_slice_of_an_expired_segment_says_so_and_one_of_a_living_segment_does_not(
    autojump_clock: object,
) -> None:
    clock = LoopClock()
    async with living(TimedDisk(clock), clock, tasks=()) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 10)
        with await broker.fetch(FetchRequest([FetchPartition("t", 0, 0)], max_wait_ms=0)) as answer:
            held = answer.slices
            assert held
            assert not any(piece.is_removed for piece in held)
            doomed = broker.partitions["t", 0].log.drop_oldest(1)
            assert held[0].is_removed
            doomed.set_aside()
            assert held[0].file.pread(1, held[0].position)
