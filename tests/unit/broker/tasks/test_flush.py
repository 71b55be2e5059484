"""``flush.ms`` and ``flush.messages``: the age and number of records that a power cut can take at most."""

from collections import Counter
from collections.abc import Sequence

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.partition_table import PART_MAX
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.tasks.upkeep import LOOK_SECONDS_MAX
from seglog_broker.testing.offload import InlineOffload
from tests.appends import append_batch
from tests.logs import batch_of_size
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, living, with_topic

ONLY = ("flushes",)


def durable(broker: Broker, partition: int = 0) -> int:
    return broker.partitions["t", partition].log.durable_end_offset


class Steps(trio.abc.Instrument):
    """Counts how often each task ran."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of[task.name.rpartition(".")[2]] += 1


async def test_of_very_many_partitions_few_are_looked_at_in_a_row(broker: Broker) -> None:
    await with_topic(broker, partitions=5 * PART_MAX)
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    await trio.sleep(10 * LOOK_SECONDS_MAX)
    trio.lowlevel.remove_instrument(steps)
    assert max(steps.of.values()) >= 9 * 5, steps.of


class SlowDisk(InlineOffload):
    """A disk on which each sync takes three seconds."""

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        await trio.sleep(3)
        return await super().commit(fs, flushes)


async def test_without_flush_ms_and_flush_messages_nothing_is_synced_in_the_background(broker: Broker) -> None:
    await with_topic(broker)
    append(broker, 100)
    await trio.sleep(600)
    assert (durable(broker), broker.metrics.fsyncs) == (0, 0)


@pytest.mark.parametrize("flush_ms", [100, 1000, 60_000])
@pytest.mark.parametrize("phase", [0.0, 0.37, 0.99])
async def test_flush_ms_bounds_the_age_of_what_is_not_synced(flush_ms: int, phase: float, broker: Broker) -> None:
    await with_topic(broker, flush_ms=flush_ms)
    await trio.sleep(2 + phase)
    append(broker)
    await trio.sleep(flush_ms / 1000 * 0.99)
    assert durable(broker) == 0, "not sooner: syncing costs"
    slack = min(flush_ms / 1000 / 2, LOOK_SECONDS_MAX)
    await trio.sleep(2 * slack + 0.02 * flush_ms / 1000)
    assert durable(broker) == 1
    syncs = broker.metrics.fsyncs
    await trio.sleep(10 * flush_ms / 1000)
    assert broker.metrics.fsyncs == syncs, "nothing new, nothing synced"


async def test_flush_messages_syncs_at_once_when_so_many_wait_and_not_before(broker: Broker) -> None:
    await with_topic(broker, partitions=2, flush_messages=10)
    append(broker, 9)
    append(broker, 9, partition=1)
    await trio.sleep(100)
    assert (durable(broker), durable(broker, 1)) == (0, 0)
    append(broker)
    await trio.sleep(0.001)
    assert (durable(broker), durable(broker, 1)) == (10, 0)
    append(broker, 25)
    await trio.sleep(0.001)
    assert durable(broker) == 35


async def test_an_append_that_is_synced_itself_does_not_wake_the_task(broker: Broker) -> None:
    await with_topic(broker, flush_messages=1)
    woken = []
    broker.flush_wanted.set = lambda: woken.append(1)  # type: ignore[method-assign]
    append_batch(broker, batch_of_size(256, broker.clock.now_ms()), ack="disk")
    assert woken == []
    append(broker)
    assert woken == [1]


async def test_records_appended_during_a_flush_are_synced_right_after_it(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, offload=SlowDisk(), tasks=ONLY) as broker:
        await with_topic(broker, flush_messages=5)
        append(broker, 5)
        await trio.sleep(1)
        append(broker, 5)
        await trio.sleep_until(3.001)
        assert durable(broker) == 5
        await trio.sleep_until(6.001)
        assert durable(broker) == 10
