"""With more written partitions than open files allowed, idle writers close their files, and no record is lost."""

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.tasks.resources import IDLE_WRITERS_SECONDS
from seglog_broker.testing.forgetful import POWER_LOSS
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
