"""Producer expiry at work."""

import trio
from structlog.testing import capture_logs

from seglog_broker.broker import Broker
from seglog_broker.tasks.producers import run_producer_expiry
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import AppendPartition, AppendRequest, AppendResult
from tests.broker.tasks.living_broker import LoopClock, TimedDisk, living, with_topic

TASKS = (run_producer_expiry,)
FLAGS = ("producer.id.expiration.ms=60000", "producer.id.expiration.check.interval.ms=10000")


def append(broker: Broker, sequence: int, timestamp: int = -1) -> AppendResult:
    encoded = encode_batch([(timestamp, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
    request = AppendRequest([AppendPartition("t", 0, len(encoded))], "os")
    reply = broker.append(request, memoryview(bytearray(encoded))).reply
    assert reply is not None
    return reply.partitions[0]


async def test_a_quiet_producer_is_forgotten_at_the_next_look(autojump_clock: object) -> None:
    clock = LoopClock()
    async with living(TimedDisk(clock), clock, *FLAGS, tasks=TASKS) as broker:
        await with_topic(broker)
        append(broker, 0, timestamp=5)
        await trio.sleep(59)
        assert append(broker, 0, timestamp=5).duplicate
        producers = broker.partitions["t", 0].log.producers
        await trio.sleep(0.5)
        assert len(producers) == 1
        with capture_logs() as logged:
            await trio.sleep(10.6)
        assert len(producers) == 0
        assert [entry["event"] for entry in logged] == ["producers_expired"]
        assert not append(broker, 0, timestamp=5).duplicate


async def test_nobody_is_forgotten_at_a_look_that_follows_a_leap_of_the_clock(autojump_clock: object) -> None:
    clock = LoopClock()
    async with living(TimedDisk(clock), clock, *FLAGS, tasks=TASKS) as broker:
        await with_topic(broker)
        append(broker, 0)
        await trio.sleep(5)
        clock.leap_ms = 3_600_000
        await trio.sleep(6)
        clock.leap_ms = 0
        assert len(broker.partitions["t", 0].log.producers) == 1
        await trio.sleep(10)
        assert append(broker, 0).duplicate


async def test_a_repetition_gets_the_same_answer_and_is_counted_by_itself(autojump_clock: object) -> None:
    clock = LoopClock()
    async with living(TimedDisk(clock), clock, *FLAGS, tasks=TASKS) as broker:
        await with_topic(broker, message_timestamp_type="LogAppendTime")
        first = append(broker, 0)
        await trio.sleep(3)
        again = append(broker, 0)
        assert (again.base_offset, again.timestamp, again.ack) == (first.base_offset, first.timestamp, first.ack)
        assert (first.duplicate, again.duplicate) == (False, True)
        assert (broker.metrics.appends["os"], broker.metrics.duplicates) == (1, 1)
