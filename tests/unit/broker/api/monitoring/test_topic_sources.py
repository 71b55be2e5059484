"""What is told of topics and partitions."""

from seglog_broker.api.broker import Broker
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from tests.appends import append_request
from tests.unit.broker.api.monitoring.test_service import samples, value
from tests.unit.broker.brokers import open_broker


async def create(broker: Broker, name: str, partitions: int = 1, **config: messages.ConfigValue) -> None:
    keys = {key.replace("_", "."): setting for key, setting in config.items()}
    await broker.create_topic(messages.CreateTopicRequest(name, partitions, keys))


def append(broker: Broker, topic: str, count: int = 1, key: bytes | None = None) -> None:
    for _ in range(count):
        encoded = encode_batch([(1_700_000_000_000, key, b"x" * 100, ())])
        request = messages.AppendRequest([messages.AppendPartition(topic, 0, len(encoded))], "os")
        reply = append_request(broker, request, memoryview(bytearray(encoded))).reply
        assert reply is not None
        assert reply.partitions[0].error is None


async def test_partitions_are_as_their_logs(broker: Broker) -> None:
    await create(broker, "t", 2, segment_bytes=1024)
    append(broker, "t", 20)
    log = broker.partitions["t", 0].log
    assert value(broker, "seglog_partition_size_bytes", "t", "0") == log.size > 2000
    assert value(broker, "seglog_partition_segments", "t", "0") == len(log.segments) > 1
    assert value(broker, "seglog_partition_log_start_offset", "t", "0") == 0
    assert value(broker, "seglog_partition_log_end_offset", "t", "0") == 20
    assert value(broker, "seglog_partition_durable_offset", "t", "0") == log.durable_end_offset
    assert value(broker, "seglog_partition_log_end_offset", "t", "1") == 0
    assert value(broker, "seglog_topics_left_out") == 0


async def test_beyond_the_limit_the_largest_topics_are_shown_and_the_others_counted() -> None:
    broker = open_broker(None, "seglog.metrics.topics.max=2")
    for number, name in enumerate("abcd"):
        await create(broker, name)
        append(broker, name, count=1 + number)
    await broker.measurements.measure()
    assert [s.labels for s in samples(broker, "seglog_partition_size_bytes")] == [("d", "0"), ("c", "0")]
    assert value(broker, "seglog_topics_left_out") == 2
    await broker.delete_topic(messages.DeleteTopicRequest("d"))
    assert [s.labels for s in samples(broker, "seglog_partition_size_bytes")] == [("c", "0")]
    assert value(broker, "seglog_topics_left_out") == 2
    broker.close()


async def test_a_dirty_ratio_is_measured_of_compacted_topics_alone(broker: Broker) -> None:
    await create(broker, "plain", segment_bytes=1024)
    await create(broker, "compacted", segment_bytes=1024, cleanup_policy="compact")
    for topic in ("plain", "compacted"):
        append(broker, topic, 20, key=b"k")
    assert samples(broker, "seglog_partition_dirty_ratio") == []
    await broker.measurements.measure()
    assert [(s.labels, s.value) for s in samples(broker, "seglog_partition_dirty_ratio")] == [(("compacted", "0"), 1.0)]


async def test_sizes_that_no_one_has_asked_for_are_not_asked_for_by_a_scrape() -> None:
    """After a start they are unknown until they are measured in a thread, also of ten thousand segments."""
    broker = open_broker()
    await create(broker, "t", segment_bytes=1024)
    append(broker, "t", 20)
    size = broker.partitions["t", 0].log.size
    fs = broker.fs
    broker.close()
    broker = open_broker(fs)
    assert samples(broker, "seglog_partition_size_bytes") == []
    await broker.measurements.measure()
    assert value(broker, "seglog_partition_size_bytes", "t", "0") == size
    broker.close()
