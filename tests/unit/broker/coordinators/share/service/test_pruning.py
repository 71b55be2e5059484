"""The topic of share groups is pruned: what no state needs is deleted, and never more, also over a crash."""

import errno

import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import TogetherClock, with_topic
from tests.unit.broker.coordinators.share.service.sharing import (
    STATE_TOPIC,
    acknowledged,
    begun,
    key_of,
    known,
    log_of,
    sharing,
    taken,
)

EVERY_MS = 1000
FLAGS = (
    f"share.coordinator.state.topic.prune.interval.ms={EVERY_MS}",
    "share.coordinator.cold.partition.snapshot.interval.ms=10000",
    "share.coordinator.snapshot.update.records.per.snapshot=4",
)


def start_of(broker: Broker) -> int:
    return log_of(broker, topic=STATE_TOPIC).log.log_start_offset


async def looks(count: int) -> None:
    """Let the topic be looked at so often."""
    await trio.sleep(count * EVERY_MS / 1000 + 0.01)


async def work(broker: Broker, machine: SharePartition, jobs: int) -> None:
    for _ in range(jobs):
        [(first, last, _)] = taken(broker, machine, 1)
        await acknowledged(broker, machine, first, last)


@each_case("ahead_ms", [0, -3_600_000, 3_600_000])
async def test_what_lies_before_the_last_snapshots_of_all_is_deleted(ahead_ms: int) -> None:
    """Whatever the clock does meanwhile."""
    fs, clock = ForgetfulFileSystem(), TogetherClock()
    async with sharing(fs, *FLAGS, clock=clock, closes=False) as broker:
        await with_topic(broker, records=32)
        one, other = await begun(broker, 0, 1)
        for _ in range(4):
            await work(broker, one, 8)
            await looks(1)
        assert start_of(broker) == 0, "the first record is the snapshot of the other one"
        await work(broker, other, 8)
        clock.ahead_ms = ahead_ms
        await looks(2)
        end = log_of(broker, topic=STATE_TOPIC).log.log_end_offset
        assert 20 < start_of(broker) < end
        await looks(20)
        assert start_of(broker) >= end, "both were written anew, when nobody had acknowledged for long"
        assert one.is_cold
        assert other.is_cold
        cold = log_of(broker, topic=STATE_TOPIC).log.log_end_offset
        await looks(30)
        assert log_of(broker, topic=STATE_TOPIC).log.log_end_offset == cold, "once is enough"
    fs = fs.crash(POWER_LOSS)
    async with sharing(fs) as broker:
        assert start_of(broker) >= end
        assert [known(broker, key_of(broker, number)).start_offset for number in (0, 1)] == [32, 8]


async def test_all_goes_when_no_group_reads_any_more(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs, *FLAGS, clock=TogetherClock()) as broker:
        await begun(broker, 0, 1)
        await broker.share.delete("workers", key_of(broker).topic_id, [0, 1])
        await looks(2)
        assert start_of(broker) == log_of(broker, topic=STATE_TOPIC).log.log_end_offset == 4


async def test_a_snapshot_that_could_not_be_written_replaces_nothing(fs: ForgetfulFileSystem) -> None:
    async with sharing(fs, *FLAGS, clock=TogetherClock(), closes=False) as broker:
        [machine] = await begun(broker)
        await work(broker, machine, 3)
        await looks(2)
        fs.inject(Fault("pwritev", f"{STATE_TOPIC}-0/00000000000000000000.log", error=errno.ENOSPC, sticky=True))
        machine.snapshot(broker.share.runtime.now())
        broker.share.runtime.carry_out(machine.key)
        await looks(5)
        assert machine.snapshot_epoch > 0
        assert start_of(broker) == 0
    async with sharing(fs.crash(POWER_LOSS)) as broker:
        assert known(broker).start_offset == 3
