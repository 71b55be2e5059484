"""What a power cut would take, as it is counted, against what the log says of itself."""

from seglog_broker.api.broker import Broker
from seglog_broker.runtime.metrics import NotDurable, NotDurablePart
from seglog_protocol import messages
from tests.appends import append_batch
from tests.logs import batch
from tests.unit.broker.brokers import open_broker


class Stopwatch:
    """A clock that the test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


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


async def append(broker: Broker, encoded: bytes, ack: messages.Ack, partition: int = 0) -> None:
    await append_batch(broker, encoded, partition=partition, ack=ack).wait()


async def test_bytes_are_counted_until_they_are_on_the_disk_or_deleted(autojump_clock: object) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2))
    encoded = batch(b"v")
    counted = broker.metrics.not_durable
    for _ in range(3):
        await append(broker, encoded, "os")
    await append(broker, encoded, "os", 1)
    assert (counted.size, len(counted.since)) == (4 * len(encoded), 2)
    await append(broker, encoded, "disk")
    assert (counted.size, broker.partitions["t", 1].not_durable.size) == (len(encoded), len(encoded))
    await append(broker, encoded, "os")
    await broker.delete_topic(messages.DeleteTopicRequest("t"))
    assert (counted.size, counted.since) == (0, {})
    broker.close()


async def test_records_that_retention_deletes_next_are_counted_by_their_partition(autojump_clock: object) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 2, {"retention.ms": 1000}))
    now = broker.clock.now_ms()
    await append(broker, batch(b"a", b"b", timestamp=now - 1001), "os")
    await append(broker, batch(b"c", timestamp=now), "os")
    await append(broker, batch(b"d", timestamp=now), "os", 1)
    assert [broker.partitions["t", number].expired_on_arrival for number in range(2)] == [2, 0]
    broker.close()
