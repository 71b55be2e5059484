"""Delayed deletion: when files are removed, what happens if that fails, and that no other file is removed."""

import errno

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import PendingDeletion, PendingDeletions
from seglog_broker.tasks.upkeep import RETRY_SECONDS
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.errors import OutOfResourcesError, UnknownTopicError
from seglog_protocol.messages import AlterTopicRequest
from tests.unit.broker.tasks.living_broker import (
    HeldOffload,
    LoopClock,
    TimedDisk,
    append,
    bases,
    delete,
    fetch,
    living,
    log_name,
    names,
    with_topic,
)

DELAY = "log.segment.delete.delay.ms=60000"
ONLY = ("deletions",)
FLAGS = (DELAY,)


def directories(fs: ForgetfulFileSystem) -> list[str]:
    """Names of partition directories; those of deleted topics by their suffix."""
    found = [name for name in fs.list_directory("/data") if fs.stat(f"/data/{name}").is_directory]
    return [name if not name.endswith("-delete") else f"{name.partition('.')[0]} deleted" for name in found]


async def grow(broker: Broker) -> None:
    """Add a second partition to the topic."""
    await broker.alter_topic(AlterTopicRequest("t", partitions=2))


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await with_topic(empty)
    return empty


# --- The queue --------------------------------------------------------------------------------------------------------


async def test_deletions_are_done_by_due_time_and_then_in_order_of_arrival() -> None:
    queue = PendingDeletions()
    for what, delay in (("a", 5.0), ("b", 1.0), ("c", 5.0), ("d", 0.0)):
        queue.add(PendingDeletion(what, lambda: None, None), delay)
    assert len(queue) == 4
    found = [((await queue.next_due()).what, trio.current_time()) for _ in range(4)]
    assert found == [("d", 0), ("b", 1), ("a", 5), ("c", 5)]
    assert len(queue) == 0


async def test_a_deletion_that_is_due_sooner_wakes_the_task_that_waits_for_a_later_one() -> None:
    queue = PendingDeletions()
    found: list[tuple[str, float]] = []

    async def take() -> None:
        while len(found) < 3:
            deletion = await queue.next_due()
            found.append((deletion.what, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.sleep(1)
        queue.add(PendingDeletion("late", lambda: None, None), 100)
        await trio.sleep(1)
        queue.add(PendingDeletion("soon", lambda: None, None), 3)
        queue.add(PendingDeletion("now", lambda: None, None), 0)
    assert found == [("now", 2), ("soon", 5), ("late", 101)]


@pytest.mark.parametrize("is_due", [True, False])
async def test_a_forgotten_deletion_is_never_done(is_due: bool, clock: LoopClock, fs: TimedDisk) -> None:
    async def forget_after(turns: int, partition: Partition) -> tuple[str, float]:
        """The deletions done, and after how many seconds each; trio runs ready tasks in any order."""
        queue = PendingDeletions()
        found: list[tuple[str, float]] = []
        began = trio.current_time()

        async def take() -> None:
            deletion = await queue.next_due()
            found.append((deletion.what, trio.current_time() - began))

        queue.add(PendingDeletion("forgotten", lambda: None, partition), 0 if is_due else 1)
        queue.add(PendingDeletion("kept", lambda: None, None), 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            if not found:  # else it was taken in time
                queue.forget([partition])
        return found[0]

    async with living(fs, clock, tasks=()) as broker:
        await with_topic(broker)
        found = {await forget_after(turns, broker.partitions["t", 0]) for turns in range(4) for _ in range(20)}
    assert found == ({("kept", 5.0), ("forgotten", 0.0)} if is_due else {("kept", 5.0)})


# --- Topics -----------------------------------------------------------------------------------------------------------


async def test_a_deleted_topic_is_unknown_at_once_and_off_the_disk_when_the_delay_is_over(
    fs: TimedDisk, empty: Broker
) -> None:
    await with_topic(empty, partitions=2)
    append(empty)
    await delete(empty)
    assert isinstance((await fetch(empty, 0)).error, UnknownTopicError)
    assert directories(fs) == ["t-0 deleted", "t-1 deleted"]
    with capture_logs() as logged:
        await trio.sleep(59.9)
        assert directories(fs) == ["t-0 deleted", "t-1 deleted"]
        await trio.sleep(0.2)
    assert directories(fs) == []
    assert [entry["event"] for entry in logged] == ["files_removed"] * 2


async def test_segments_that_wait_are_not_removed_by_name_from_a_new_topics_directory(
    clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(
        fs, clock, DELAY, "log.retention.check.interval.ms=10000", tasks=("retention", "deletions")
    ) as broker:
        await with_topic(broker, segment_bytes=1024, retention_bytes=1024)
        append(broker, 9)
        await trio.sleep(11)
        assert bases(broker) == [4, 8]
        assert len(broker.deletions) == 1
        await delete(broker)
        assert len(broker.deletions) == 1, "the directory instead of the segments"
        await with_topic(broker, segment_bytes=1024)
        append(broker, 9)
        # What the removal of the old segments would find, if it came:
        fs.open(f"/data/t-0/{log_name(0, '.deleted')}", create=True).close()
        await trio.sleep(200)
        assert names(fs) == {
            log_name(0),
            log_name(0, ".deleted"),
            log_name(4),
            log_name(8),
        }


@pytest.mark.parametrize("moment", ["before it begins", "in the thread"])
async def test_a_topic_is_deleted_while_its_segments_are_being_removed(
    moment: str, clock: LoopClock, fs: TimedDisk
) -> None:
    offload = HeldOffload()
    flags = (DELAY, "log.retention.check.interval.ms=10000")
    async with living(fs, clock, *flags, offload=offload, tasks=("retention", "deletions")) as broker:
        await with_topic(broker, segment_bytes=1024, retention_bytes=1024)
        append(broker, 9)
        await trio.sleep(11)
        partition = broker.partitions["t", 0]
        with capture_logs() as logged:
            if moment == "before it begins":
                async with partition.maintenance, trio.open_nursery() as nursery:
                    nursery.start_soon(delete, broker)
                    await trio.sleep(0.1)  # the deletion of the topic waits for the lock, then the removal does
                    await trio.sleep_until(75)
                    partition.maintenance.release()
                    await trio.sleep(1)
                    await partition.maintenance.acquire()
                await trio.sleep(100)
            else:
                offload.hold()
                await trio.sleep_until(75)
                assert offload.held >= 1
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(delete, broker)
                    await trio.sleep(1)
                    assert ("t", 0) in broker.partitions, "the directory keeps its name while a thread works in it"
                    offload.let_go()
                await trio.sleep(100)
        assert directories(fs) == []
        assert not [entry for entry in logged if entry["event"] in {"deletion_postponed", "deletion_failed"}]
        removed = [entry["what"] for entry in logged if entry["event"] == "files_removed"]
        assert len(removed) == (1 if moment == "before it begins" else 2)


@pytest.mark.parametrize("what", ["create", "alter"])
async def test_a_directory_that_could_be_neither_completed_nor_removed_is_removed_later(
    fs: TimedDisk, what: str, empty: Broker
) -> None:
    if what == "alter":
        await with_topic(empty)
    fs.inject(Fault("open", "t-1/00000000000000000000.log", error=errno.EMFILE, sticky=True))
    fs.inject(Fault("remove_tree", "t-1", error=errno.EMFILE, sticky=True))
    with pytest.raises(OutOfResourcesError, match="ulimit -n"):
        await (with_topic(empty, partitions=2) if what == "create" else grow(empty))
    fs.heal()
    kept = [] if what == "create" else ["t-0"]
    assert directories(fs) == [*kept, "t-1 deleted"]
    await trio.sleep(61)
    assert directories(fs) == kept


async def test_a_topic_whose_directory_cannot_be_renamed(clock: LoopClock, fs: TimedDisk) -> None:
    """A topic whose directory cannot be renamed is gone all the same and its files at the next start."""
    async with living(fs, clock, DELAY, tasks=ONLY) as broker:
        await with_topic(broker, partitions=2)
        append(broker)
        fs.inject(Fault("rename", "/data/t-0", error=errno.EACCES, sticky=True))
        fs.inject(Fault("sync_directory", "/data", error=errno.EIO, nth=2))  # the first is the registry's
        await delete(broker)
        assert isinstance((await fetch(broker, 0)).error, UnknownTopicError)
        assert directories(fs) == ["t-0", "t-1 deleted"]
        await trio.sleep(61)
        assert directories(fs) == ["t-0"]
        fs.heal()
    async with living(fs, clock, DELAY, tasks=ONLY) as broker:
        assert broker.directory.registry.topics == {}
        assert directories(fs) == ["t-0 deleted"]
        await trio.sleep(61)
        assert directories(fs) == []


# --- Failure, retry, restart ------------------------------------------------------------------------------------------


async def test_a_failed_removal_is_logged_and_tried_again_a_minute_later(fs: TimedDisk, broker: Broker) -> None:
    append(broker)
    fs.inject(Fault("remove_tree", error=errno.EBUSY))
    await delete(broker)
    with capture_logs() as logged:
        await trio.sleep(60 + RETRY_SECONDS - 1)
    assert [entry["event"] for entry in logged] == ["deletion_postponed"]
    assert directories(fs) == ["t-0 deleted"]
    with capture_logs() as logged:
        await trio.sleep(2)
    assert [entry["event"] for entry in logged] == ["files_removed"]
    assert directories(fs) == []


async def test_a_bug_in_one_removal_ends_that_one_and_not_the_broker(fs: TimedDisk, broker: Broker) -> None:

    def broken() -> int:
        raise ZeroDivisionError

    broker.deletions.add(PendingDeletion("what is broken", broken, None), 1)
    await delete(broker)
    with capture_logs() as logged:
        await trio.sleep(200)
    assert [entry["event"] for entry in logged] == ["deletion_failed", "files_removed"]
    assert directories(fs) == []
