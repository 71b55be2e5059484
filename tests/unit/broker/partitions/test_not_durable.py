"""What a power cut would take, as it is counted, against what the log says of itself."""

from seglog_broker.runtime.metrics import NotDurable, NotDurablePart
from seglog_protocol import messages
from tests.logs import batch
from tests.unit.broker.api.scene import append
from tests.unit.broker.brokers import Stopwatch, open_broker


def test_what_is_appended_while_a_flush_is_under_way_stays() -> None:
    clock = Stopwatch()
    every = NotDurable(clock)
    first, second = NotDurablePart(every), NotDurablePart(every)
    assert (every.size, every.age_seconds()) == (0, 0)
    first.add(10)
    clock.now += 2
    second.add(5)
    assert (every.size, every.age_seconds()) == (15, 2)
    first.begin_flush()
    first.add(3)
    clock.now += 1
    assert (every.size, every.age_seconds(), first.size) == (18, 3, 13), "not on the disk before the flush has ended"
    first.end_flush(is_durable=True)
    assert (every.size, every.age_seconds(), first.size) == (8, 1, 3)
    first.begin_flush()
    clock.now += 1
    first.add(1)
    first.end_flush(is_durable=False)
    assert (every.size, every.age_seconds(), first.size) == (9, 2, 4), "a flush that failed proves nothing"
    second.clear()
    first.begin_flush()
    first.end_flush(is_durable=True)
    first.end_flush(is_durable=True)
    assert (every.size, every.since) == (0, {})


async def test_bytes_are_counted_until_they_are_on_the_disk_or_deleted(autojump_clock: object) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2))
    encoded = batch(b"v")
    counted = broker.metrics.not_durable
    for _ in range(3):
        await append(broker, encoded, ack="os")
    await append(broker, encoded, partition=1, ack="os")
    assert (counted.size, len(counted.since)) == (4 * len(encoded), 2)
    await append(broker, encoded, ack="disk")
    assert (counted.size, broker.partitions["t", 1].not_durable.size) == (len(encoded), len(encoded))
    await append(broker, encoded, ack="os")
    await broker.delete_topic(messages.DeleteTopicRequest("t"))
    assert (counted.size, counted.since) == (0, {})
    broker.close()


async def test_records_that_retention_deletes_next_are_counted_by_their_partition(autojump_clock: object) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2, {"retention.ms": 1000}))
    now = broker.clock.now_ms()
    await append(broker, batch(b"a", b"b", timestamp=now - 1001), ack="os")
    await append(broker, batch(b"c", timestamp=now), ack="os")
    await append(broker, batch(b"d", timestamp=now), partition=1, ack="os")
    assert [broker.partitions["t", number].expired_on_arrival for number in range(2)] == [2, 0]
    broker.close()
