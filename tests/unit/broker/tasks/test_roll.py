"""The idle timer: how late it rolls, restarts and clock changes, and partitions that it does not roll."""

import trio
from structlog.testing import capture_logs

from seglog_broker.tasks.upkeep import ROLL_CHECK_SECONDS
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, bases, living, with_topic

ONLY = ("rolls",)


async def test_an_idle_segment_is_closed_at_most_one_check_after_segment_ms() -> None:
    for phase in (0.0, 0.3, 0.999):
        clock = LoopClock()
        async with living(TimedDisk(clock), clock, tasks=ONLY) as broker:
            await with_topic(broker, segment_ms=10_000)
            await trio.sleep(phase)
            append(broker)
            await trio.sleep(10)
            assert bases(broker) == [0]
            with capture_logs() as logged:
                await trio.sleep(ROLL_CHECK_SECONDS + 0.001)
            assert bases(broker) == [0, 1]
            assert [(entry["event"], entry["reason"]) for entry in logged] == [("segment_rolled", "idle timer")]
            assert broker.metrics.segments_rolled == 1
            await trio.sleep(100)
            assert bases(broker) == [0, 1], "an empty segment stays open"


async def test_the_first_check_comes_after_the_initial_delay(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, "log.initial.task.delay.ms=30000", tasks=ONLY) as broker:
        await with_topic(broker, segment_ms=1)
        append(broker)
        await trio.sleep(29.9)
        assert bases(broker) == [0]
        await trio.sleep(0.2)
        assert bases(broker) == [0, 1]
