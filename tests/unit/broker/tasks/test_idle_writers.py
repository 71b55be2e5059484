"""With more written partitions than open files allowed, idle writers close their files, and no record is lost."""

from collections.abc import Sequence
from contextlib import ExitStack

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.idle_writers import ROOM_SECONDS_MAX
from seglog_broker.tasks.resources import IDLE_WRITERS_SECONDS
from seglog_broker.testing.forgetful import POWER_LOSS
from seglog_protocol.messages import Ack, AppendPartition, AppendRequest, AppendResult
from tests.logs import batch_of_size
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, fetch, living, with_topic

ONLY = ("idle writers",)


def awake(broker: Broker) -> list[int]:
    """Numbers of the partitions whose file is kept open for appends."""
    return [p.number for p in broker.partitions.values() if p.log.active.log.holds_writer]


async def test_the_longest_idle_writers_close_their_files_until_the_limit_holds(
    clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(fs, clock, "seglog.handles.max=3", tasks=ONLY) as broker:
        await with_topic(broker, partitions=8)
        assert awake(broker) == [], "nobody has written yet"
        for number in range(8):
            append(broker, partition=number)
            await trio.sleep(0.01)
        assert broker.directory.handles.excess == 5
        await trio.sleep(2 * IDLE_WRITERS_SECONDS)
        assert broker.directory.handles.excess == 0
        assert awake(broker) == [5, 6, 7]
        found = fs.found_after(POWER_LOSS)
        assert [found.stat(f"/data/t-{number}/{0:020d}.log").size for number in range(5)] == [256] * 5
        append(broker, partition=0)
        assert broker.partitions["t", 0].log.log_end_offset == 2
        assert (await fetch(broker, 0)).size == 512


async def test_within_the_limit_no_writer_is_closed(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, "seglog.handles.max=30", tasks=ONLY) as broker:
        await with_topic(broker, partitions=8)
        for number in range(8):
            append(broker, partition=number)
        await trio.sleep(60)
        assert awake(broker) == list(range(8))
        assert broker.metrics.fsyncs == 0


# --- Appends to more of them than there may be files open -------------------------------------------------------------

LIMIT, EXCESS = 6, 8


async def append_to(broker: Broker, numbers: Sequence[int], ack: Ack) -> list[AppendResult]:
    """One request with a batch of 256 bytes for each of these partitions."""
    encoded = batch_of_size(256, broker.clock.now_ms())
    request = AppendRequest([AppendPartition("t", number, len(encoded)) for number in numbers], ack)
    pending = broker.append([request], [memoryview(bytearray(encoded * len(numbers)))])
    await pending.write_rest()
    (reply,) = await pending.wait()
    assert not isinstance(reply, Exception)
    return reply.partitions


@pytest.mark.parametrize("ack", ["os", "disk"])
async def test_no_append_is_refused_while_a_writer_can_be_closed(ack: Ack, clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, tasks=()) as broker:
        broker.directory.handles.limit_to(LIMIT, EXCESS)
        await with_topic(broker, partitions=90)
        refused: list[AppendResult] = []
        most = 0

        async def send(numbers: Sequence[int]) -> None:
            nonlocal most
            for _ in range(2):
                refused.extend(result for result in await append_to(broker, numbers, ack) if result.error is not None)
                most = max(most, broker.directory.handles.open_count)

        async with trio.open_nursery() as nursery:
            for first in range(3):
                nursery.start_soon(send, range(first, 90, 3))
        assert not refused
        assert most <= LIMIT + EXCESS
        assert [broker.partitions["t", number].log.log_end_offset for number in range(90)] == [2] * 90


async def test_where_no_file_can_be_closed_a_request_waits_once_and_is_refused(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, tasks=()) as broker:
        broker.directory.handles.limit_to(LIMIT, EXCESS)
        await with_topic(broker, partitions=LIMIT + EXCESS + 5)
        with ExitStack() as held:
            for number in range(LIMIT + EXCESS):
                held.enter_context(broker.directory.handles.lease(f"/data/t-{number}/{0:020d}.log"))
            began = trio.current_time()
            results = await append_to(broker, range(LIMIT + EXCESS, LIMIT + EXCESS + 5), "os")
            assert [result.error is not None and result.error.code for result in results] == ["OUT_OF_RESOURCES"] * 5
            assert all(result.error is not None and result.error.retriable for result in results)
            assert trio.current_time() - began < 1.5 * ROOM_SECONDS_MAX
