"""Checkpoints: recovery points, saved state, and a disk that refuses to write them."""

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.messages import DeleteTopicRequest
from tests.unit.broker.tasks.living_broker import (
    LoopClock,
    TimedDisk,
    Turns,
    append,
    living,
    log_name,
    log_of,
    with_topic,
)

EVERY_MINUTE = "log.flush.offset.checkpoint.interval.ms=60000"
ONLY = ("checkpoints",)
FLAGS = (EVERY_MINUTE,)


def remembered(broker: Broker, partition: int = 0) -> PartitionState:
    """The state that a power cut now would leave."""
    fs = broker.fs
    assert isinstance(fs, ForgetfulFileSystem)
    return PartitionState.load(fs.found_after(POWER_LOSS), f"/data/t-{partition}")


async def test_a_checkpoint_syncs_closed_segments_and_saves_what_is_remembered(fs: TimedDisk, broker: Broker) -> None:
    await with_topic(broker, segment_bytes=1024)
    append(broker, 9)
    assert remembered(broker) == PartitionState()
    await trio.sleep(61)
    state = log_of(broker).state
    assert (remembered(broker).rolls, list(state.rolls)) == (state.rolls, [0, 4])
    assert not any(segment.log.is_dirty for segment in log_of(broker).segments[:-1])
    points = fs.found_after(POWER_LOSS).snapshot()["/data/recovery-point-offset-checkpoint"]
    assert b"t 0 8" in points
    fs.operations.clear()
    await trio.sleep(60)
    assert not [operation for operation in fs.operations if "t-0" in operation.path], "nothing new"


async def test_a_waiting_state_of_a_recreated_topic(clock: LoopClock, fs: TimedDisk) -> None:
    """A topic that is deleted and made again while a state waits is not touched by it."""
    async with living(fs, clock, EVERY_MINUTE, tasks=("checkpoints", "deletions")) as broker:
        await with_topic(broker, segment_bytes=1024)
        append(broker, 9)
        old = broker.partitions["t", 0]
        await trio.sleep(58)
        async with trio.open_nursery() as nursery, old.maintenance:
            nursery.start_soon(broker.delete_topic, DeleteTopicRequest("t"))
            await trio.sleep(3)  # the deletion waits for the lock, and behind it the checkpoint task
        await with_topic(broker)
        fs.operations.clear()
        await trio.sleep(10)
        assert not [operation for operation in fs.operations if "/t-0/" in operation.path]
        assert await broker.checkpoints.sync(old) is None
        assert broker.hello().problems == []
        assert fs.stat(f"/data/t-0/{log_name(0)}").size == 0


async def test_a_checkpoint_of_very_many_partitions_without_changes_takes_few_turns_and_counts_no_sync(
    clock: LoopClock, fs: TimedDisk
) -> None:
    partitions = 1000
    async with living(fs, clock, EVERY_MINUTE, tasks=ONLY) as broker:
        await with_topic(broker, partitions=partitions, segment_bytes=1024)
        append(broker)
        await trio.sleep(61)  # the first one saves what is new
        before = broker.metrics.fsyncs
        with Turns() as turns:
            await trio.sleep(60)
        assert turns.count < partitions / 10
        assert broker.metrics.fsyncs == before
        append(broker, 9)
        await trio.sleep(60)
        assert broker.metrics.fsyncs == before + 1, "the partition that has closed segments"
        assert not any(segment.log.is_dirty for segment in log_of(broker).segments[:-1])
