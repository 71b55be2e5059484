"""The task of producer expiry."""

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import InvalidRecordError
from seglog_protocol.messages import AppendResult
from tests.appends import append_batch
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, living, with_topic

ONLY = ("producer expiry",)
FLAGS = ("producer.id.expiration.ms=60000", "producer.id.expiration.check.interval.ms=10000")


def append(broker: Broker, sequence: int, timestamp: int = -1) -> AppendResult:
    encoded = encode_batch([(timestamp, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
    return append_batch(broker, encoded).result


async def test_an_idle_producer_is_forgotten_at_the_next_check(broker: Broker) -> None:
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


async def test_no_producer_is_forgotten_at_a_check_that_follows_a_clock_jump(clock: LoopClock, broker: Broker) -> None:
    await with_topic(broker)
    append(broker, 0)
    await trio.sleep(5)
    clock.jump_ms = 3_600_000
    await trio.sleep(6)
    clock.jump_ms = 0
    assert len(broker.partitions["t", 0].log.producers) == 1
    await trio.sleep(10)
    assert append(broker, 0).duplicate


@pytest.mark.parametrize(("producer_id", "epoch", "sequence"), [(-2, 0, 0), (7, 0, -1)])
async def test_impossible_producer_ids_are_refused(
    producer_id: int, epoch: int, sequence: int, clock: LoopClock, fs: TimedDisk
) -> None:
    async with living(fs, clock, tasks=()) as broker:
        await with_topic(broker)
        encoded = encode_batch(
            [(-1, None, b"v", ())], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        assert isinstance(append_batch(broker, encoded).result.error, InvalidRecordError)
        assert broker.partitions["t", 0].log.log_end_offset == 0


async def test_ids_are_given_once_also_to_many_concurrent_requests_and_after_a_restart(
    clock: LoopClock, fs: TimedDisk
) -> None:
    seen: list[int] = []

    async def ask(broker: Broker) -> None:
        seen.append((await broker.init_producer()).producer_id)

    for _ in range(2):
        async with living(fs, clock, tasks=()) as broker, trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, broker)
    assert sorted(seen) == [*range(5), *range(1000, 1005)]
