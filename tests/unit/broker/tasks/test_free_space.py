"""A full disk: the state begins, is reported, and ends by itself; readers cannot keep the disk full."""

import errno
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.checkpoint_writer import save_state
from seglog_broker.runtime.slow_readers import REMOVED_PATIENCE_SECONDS, CutError, Held
from seglog_broker.server import TASKS
from seglog_broker.tasks.resources import BALLAST_RETRY_SECONDS, SPACE_SECONDS
from seglog_broker.testing.forgetful import PROCESS_KILL, Fault
from seglog_protocol import messages
from seglog_protocol.errors import DiskFullError
from tests.appends import append_batch
from tests.logs import batch_of_size
from tests.unit.broker.tasks.living_broker import (
    LoopClock,
    TimedDisk,
    alter,
    append,
    bases,
    delete,
    fetch,
    living,
    log_name,
    log_of,
    names,
    truncate,
    with_topic,
)

ONLY = ("free space",)
MARKS = (
    "seglog.disk.free.soft.bytes=20000",
    "seglog.disk.free.hard.bytes=10000",
    "seglog.disk.ballast.bytes=3000",
)

UNMARKED = ("seglog.disk.free.soft.bytes=0", "seglog.disk.free.hard.bytes=0", "seglog.disk.ballast.bytes=0")
BALLAST = "/data/seglog-ballast"
FLAGS = MARKS


def refusal(broker: Broker) -> DiskFullError:
    encoded = batch_of_size(256, broker.clock.now_ms())
    error = append_batch(broker, encoded).result.error
    assert isinstance(error, DiskFullError)
    return error


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await with_topic(empty)
    return empty


async def test_an_active_segment_above_retention_bytes_is_closed_and_goes_when_as_much_lies_behind_it(
    clock: LoopClock, fs: TimedDisk
) -> None:
    """It would not be filled on a full disk; ``explain segments`` says why it stays until then."""
    flags = (*MARKS, "log.retention.check.interval.ms=1000")
    async with living(fs, clock, *flags, tasks=(*ONLY, "retention")) as broker:
        await with_topic(broker, retention_ms=-1, retention_bytes=500)
        append(broker, 4)
        await trio.sleep(2 * SPACE_SECONDS)
        assert bases(broker) == [0]
        _, page = await broker.explain_segments(messages.ExplainSegmentsRequest("t", 0))
        assert "retention.bytes = 500 takes it once it is closed" in messages.decode_segments(page)[0].why
        fs.limit_free_bytes(9_000)
        await trio.sleep(2 * SPACE_SECONDS)
        assert bases(broker) == [0, 4]
        fs.limit_free_bytes(None)
        await trio.sleep(2 * SPACE_SECONDS)
        append(broker, 2)
        await trio.sleep(2)
        assert bases(broker) == [4]


async def test_below_the_hard_mark_appends_are_refused(fs: TimedDisk, broker: Broker) -> None:
    """Below the hard mark appends are refused until the soft one and all else continues."""
    append(broker, 3)
    with capture_logs() as logged:
        fs.limit_free_bytes(9_000)
        await trio.sleep(2 * SPACE_SECONDS)
        error = refusal(broker)
        assert (error.retriable, error.hard, error.soft) == (True, 10_000, 20_000)
        assert error.free >= 9_000
        with pytest.raises(DiskFullError):
            await broker.create_topic(messages.CreateTopicRequest("more", 1, {}))
        with pytest.raises(DiskFullError):
            await broker.alter_topic(messages.AlterTopicRequest("t", partitions=2))
        assert list(broker.directory.registry.topics) == ["t"]
        assert (await fetch(broker, 0)).size == 3 * 256
        await alter(broker, retention_ms=1000)
        assert [p for p in broker.hello().problems if "is full" in p]
        numbers = broker.read_metrics().metrics
        assert (numbers["disk_full"], numbers["ballast_bytes"]) == (1, 0)
        fs.limit_free_bytes(22_000)  # still below the soft mark, as the ballast is still to be made
        await trio.sleep(2 * SPACE_SECONDS)
        refusal(broker)
        fs.limit_free_bytes(24_000)
        await trio.sleep(2 * SPACE_SECONDS)
        append(broker)
    assert [entry["event"] for entry in logged if entry["log_level"] in {"warning", "error"}] == [
        "disk_full",
        "ballast_removed",
    ]
    assert "disk_has_room" in [entry["event"] for entry in logged]
    assert not broker.hello().problems
    assert broker.read_metrics().metrics["disk_full"] == 0


async def test_between_the_marks_the_broker_only_warns(fs: TimedDisk, broker: Broker) -> None:
    with capture_logs() as logged:
        fs.limit_free_bytes(19_000)
        await trio.sleep(2 * SPACE_SECONDS)
        append(broker)
    assert [entry["event"] for entry in logged] == ["disk_filling_up"]
    assert [problem for problem in broker.hello().problems if "filling up" in problem]
    assert broker.hello().problem_kinds == ["disk-fills"]


async def test_the_ballast_is_made_given_up_and_made_again(fs: TimedDisk, empty: Broker) -> None:
    await trio.sleep(SPACE_SECONDS)
    assert fs.stat(BALLAST).size == 3000
    fs.limit_free_bytes(0)
    await trio.sleep(2 * SPACE_SECONDS)
    assert not fs.exists(BALLAST)
    assert fs.free_bytes("/data") == 3000
    fs.limit_free_bytes(100_000)
    fs.inject(Fault("fdatasync", BALLAST, errno.ENOSPC))  # a quota, perhaps
    await trio.sleep(2 * SPACE_SECONDS)
    assert not fs.exists(BALLAST)
    await trio.sleep(BALLAST_RETRY_SECONDS)
    assert fs.stat(BALLAST).size == 3000
    assert empty.directory.space.free == 97_000


async def test_retention_ends_a_full_disk_and_nothing_that_was_acked_is_lost(clock: LoopClock, fs: TimedDisk) -> None:
    tasks = ("free space", "retention", "deletions")
    times = ("log.retention.check.interval.ms=5000", "log.segment.delete.delay.ms=1000")
    async with living(fs, clock, *MARKS, *times, tasks=tasks) as broker:
        await with_topic(broker, segment_bytes=1024, retention_ms=-1)
        await trio.sleep(SPACE_SECONDS)
        append(broker, 400)  # 102,400 bytes
        fs.limit_free_bytes(9_000)
        await trio.sleep(2 * SPACE_SECONDS)
        refusal(broker)
        await alter(broker, retention_bytes=50000)
        await trio.sleep(10)
        append(broker)
        log = log_of(broker)
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
    clock: LoopClock, fs: TimedDisk, fault: Fault
) -> None:
    tasks = ("free space", "retention", "deletions")
    async with living(fs, clock, *MARKS, "log.retention.check.interval.ms=61000", tasks=tasks) as broker:
        await with_topic(broker, retention_ms=10_000, file_delete_delay_ms=500)
        append(broker, 4)
        await trio.sleep(SPACE_SECONDS)
        fs.inject(fault)
        with capture_logs() as logged:
            await trio.sleep(61)
        assert bases(broker) == [4]
        assert names(fs) == {log_name(4)}
        assert not [entry for entry in logged if entry["log_level"] in {"warning", "error"}]
        assert "ballast_made" in [entry["event"] for entry in logged], "again, so it had been given up"


# --- What is removed while there is no room ---------------------------------------------------------------------------


def files_of(fs: TimedDisk, topic: str = "t") -> list[str]:
    """Paths with the topic's name, marked for removal or not."""
    return [path for path in fs.snapshot() if path.startswith(f"/data/{topic}-0")]


@pytest.mark.parametrize("marks", [MARKS, UNMARKED], ids=["marks", "no marks"])
@pytest.mark.parametrize("way", ["truncate", "delete"])
async def test_what_is_truncated_or_deleted_on_a_full_disk_makes_room_at_once(
    clock: LoopClock, fs: TimedDisk, marks: Sequence[str], way: str
) -> None:
    tasks = ("free space", "retention", "deletions")
    async with living(fs, clock, *marks, tasks=tasks) as broker:
        await with_topic(broker, segment_bytes=20_000)
        append(broker, 400)  # 102,400 bytes, the last of them in the active segment
        await trio.sleep(SPACE_SECONDS)
        fs.limit_free_bytes(200)
        began = trio.current_time()
        if way == "truncate":
            await truncate(broker, None)
        else:
            await delete(broker)
        await wait_all_tasks_blocked()
        assert trio.current_time() - began < 1, "no clock has to go on for it"
        assert fs.free_bytes("/data") > 100_000
        if way == "truncate":
            assert names(fs) == {log_name(400)}
            assert log_of(broker).log_start_offset == 400
            await trio.sleep(2 * SPACE_SECONDS)
            append(broker)
        else:
            assert not files_of(fs)


async def test_a_directory_renamed_to_record_its_deletion_is_reported_once(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, *UNMARKED, tasks=("free space", "deletions")) as broker:
        await with_topic(broker, partitions=2)
        append(broker, 40)
        fs.limit_free_bytes(0)
        with capture_logs() as logged:
            await delete(broker)
            await trio.sleep(2 * SPACE_SECONDS)
        removed = [entry["what"].partition(".")[0] for entry in logged if entry["event"] == "files_removed"]
        assert sorted(removed) == ["/data/t-0", "/data/t-1"]
        assert not files_of(fs)


async def found_after_a_kill(fs: TimedDisk, clock: LoopClock) -> tuple[int, list[str]]:
    """The log start and the problems that a start finds if the process is killed now."""
    found = fs.found_after(PROCESS_KILL)
    found.limit_free_bytes(None)
    found.limit_free_inodes(None)
    async with living(found, clock, *UNMARKED, tasks=()) as broker:
        return log_of(broker).log_start_offset, broker.hello().problems


@pytest.mark.parametrize("marks", [MARKS, UNMARKED], ids=["marks", "no marks"])
@pytest.mark.parametrize("is_remembered", [True, False], ids=["a state", "no state"])
async def test_a_log_start_acknowledged_on_a_full_disk_survives_a_kill(
    clock: LoopClock, fs: TimedDisk, marks: Sequence[str], is_remembered: bool
) -> None:
    tasks = ("free space", "retention", "deletions")
    async with living(fs, clock, *marks, tasks=tasks) as broker:
        await with_topic(broker, segment_bytes=20_000)
        append(broker, 400)
        await trio.sleep(SPACE_SECONDS)
        if is_remembered:
            await save_state(broker.partitions["t", 0], broker.offload)
        fs.limit_free_bytes(0)
        await trio.sleep(SPACE_SECONDS)
        fs.limit_free_bytes(0)  # also where a ballast was
        result = await truncate(broker, 200)
        assert (result.earliest, await found_after_a_kill(fs, clock)) == (200, (200, []))
        assert b"t 0 200" in fs.snapshot()["/data/log-start-offset-checkpoint"], "for Kafka"
        assert not broker.checkpoints.has_unwritten


async def test_the_ballast_is_given_up_for_a_log_start(clock: LoopClock, fs: TimedDisk) -> None:
    """The second call after a failure must not take the log start as written."""
    async with living(fs, clock, *UNMARKED[:2], MARKS[2], tasks=ONLY) as broker:
        await with_topic(broker)
        append(broker, 40)
        await trio.sleep(SPACE_SECONDS)
        assert broker.directory.space.ballast
        fs.limit_free_bytes(0)
        assert log_of(broker).log_start_offset == 0
        await truncate(broker, 3)
        assert not broker.directory.space.ballast
        assert await found_after_a_kill(fs, clock) == (3, [])


@pytest.mark.parametrize("lacking", ["bytes", "inodes"])
async def test_a_log_start_that_finds_no_room(clock: LoopClock, fs: TimedDisk, lacking: str) -> None:
    """A log start that finds no room in the end is an error and written when there is some."""
    limit = fs.limit_free_bytes if lacking == "bytes" else fs.limit_free_inodes
    async with living(fs, clock, *UNMARKED, tasks=("free space", "retention", "deletions")) as broker:
        await with_topic(broker)
        append(broker, 40)
        limit(0)
        with pytest.raises(DiskFullError, match="new log starts are in force, but could not be written"):
            await truncate(broker, 3)
        assert not [path for path in fs.snapshot() if path.endswith(".tmp")], "it would hold room that is needed"
        with capture_logs() as logged:
            await trio.sleep(10 * SPACE_SECONDS)
        assert [entry["event"] for entry in logged].count("state_not_written") <= 1, "nothing has changed"
        assert await found_after_a_kill(fs, clock) == (0, [])
        limit(None)
        await trio.sleep(SPACE_SECONDS)
        assert await found_after_a_kill(fs, clock) == (3, [])
        assert b"t 0 3" in fs.snapshot()["/data/log-start-offset-checkpoint"]
        assert not broker.checkpoints.has_unwritten


async def test_a_checkpoint_that_found_no_room_is_written_soon_after_there_is_some(
    clock: LoopClock, fs: TimedDisk
) -> None:
    every_hour = "log.flush.offset.checkpoint.interval.ms=3600000"
    async with (
        living(fs, clock, *UNMARKED, every_hour, tasks=("free space",)) as broker,
        trio.open_nursery() as tasks,
    ):
        await with_topic(broker)
        append(broker)
        fs.limit_free_bytes(0)
        tasks.start_soon(TASKS["checkpoints"], broker)
        await trio.sleep(SPACE_SECONDS)
        assert [problem for problem in broker.hello().problems if "checkpoint is held up" in problem]
        fs.limit_free_bytes(None)
        await trio.sleep(SPACE_SECONDS + 1)
        assert not broker.hello().problems
        tasks.cancel_scope.cancel()


async def test_removed_files_go_when_the_disk_is_full(clock: LoopClock, fs: TimedDisk) -> None:
    """What waits to be removed goes when the disk is full and a failure is not tried at once."""
    tasks = ("free space", "retention", "deletions")
    async with living(fs, clock, *MARKS, tasks=tasks) as broker:
        for topic in ("t", "u"):
            await with_topic(broker, topic, segment_bytes=1024)
            append(broker, 40, topic=topic)
            await delete(broker, topic)
        await trio.sleep(SPACE_SECONDS)
        assert files_of(fs), "there is room: it waits for file.delete.delay.ms"
        fs.inject(Fault("remove_tree", lambda path: "/t-0." in path, errno.EIO, sticky=True))
        fs.limit_free_bytes(0)
        with capture_logs() as logged:
            await trio.sleep(2 * SPACE_SECONDS)
            assert not files_of(fs, "u")
            assert [entry["event"] for entry in logged].count("deletion_postponed") == 1
        fs.heal()
        await trio.sleep(60)
        assert not files_of(fs)


async def test_inodes_that_ran_out_are_a_full_disk_that_is_named_as_such(clock: LoopClock, fs: TimedDisk) -> None:
    tasks = ("free space", "deletions")
    async with living(fs, clock, *MARKS, tasks=tasks) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 400)
        await trio.sleep(SPACE_SECONDS)
        assert broker.read_metrics().metrics["disk_free_inodes"] == -1
        fs.limit_free_inodes(3)  # of some 500: a hundredth is the mark
        with capture_logs() as logged:
            await trio.sleep(2 * SPACE_SECONDS)
        assert [(e["event"], e["free_inodes"]) for e in logged if e["event"] == "disk_full"] == [("disk_full", 3)]
        error = refusal(broker)
        assert "inodes" in error.message
        assert error.retriable
        assert [p for p in broker.hello().problems if "inodes left and can hold no more files" in p]
        with pytest.raises(DiskFullError, match="inodes"):
            await broker.create_topic(messages.CreateTopicRequest("more", 1, {}))
        assert (await fetch(broker, 0)).error is None
        await truncate(broker, 200)
        await trio.sleep(2 * SPACE_SECONDS)
        append(broker)
        assert not broker.hello().problems


async def test_without_marks_an_append_that_finds_no_inode_says_so(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, *UNMARKED, tasks=()) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 4)
        fs.limit_free_inodes(0)
        error = refusal(broker)
        assert "a new segment could not be begun" in error.message
        assert "has 0 of" in error.message
        assert "inodes left" in error.message
        with pytest.raises(DiskFullError, match=r"could not be created.*inodes left"):
            await broker.create_topic(messages.CreateTopicRequest("more", 1, {}))
        fs.limit_free_inodes(100)
        append(broker, 4)


# --- Readers of removed files -----------------------------------------------------------------------------------------


def parts(*removed: bool) -> Sequence[Held]:
    return [SimpleNamespace(is_removed=is_removed) for is_removed in removed]


async def test_readers_of_removed_files_are_cut(clock: LoopClock, fs: TimedDisk) -> None:
    """Readers of removed files are cut after ten seconds of a full disk and others are not."""
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
            assert REMOVED_PATIENCE_SECONDS <= ended["removed"] - began <= REMOVED_PATIENCE_SECONDS + 2 * SPACE_SECONDS
            assert len(broker.transfers) == 0


async def test_a_slice_of_an_expired_segment_says_so_and_one_of_a_living_segment_does_not(
    clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(fs, clock, tasks=()) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 10)
        with await broker.fetch(messages.FetchRequest([messages.FetchPartition("t", 0, 0)], max_wait_ms=0)) as answer:
            held = answer.slices
            assert held
            assert not any(piece.is_removed for piece in held)
            doomed = log_of(broker).truncation.drop_oldest(1)
            assert held[0].is_removed
            doomed.set_aside()
            assert held[0].file.pread(1, held[0].position)
