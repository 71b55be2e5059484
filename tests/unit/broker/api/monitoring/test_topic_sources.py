"""Metrics of topics, partitions and groups."""

import math

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.measurements import Measurements
from seglog_broker.api.monitoring.samples import Sample
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from tests.appends import append_request
from tests.unit.broker.api.scene import MINUTE, NOW, Scene, made
from tests.unit.broker.brokers import open_broker


def samples(broker: Broker, name: str) -> list[Sample]:
    """All samples of one family."""
    return [sample for piece in broker.monitoring.slices([name]) for sample in piece.samples]


def value(broker: Broker, name: str, *labels: str) -> object:
    """The value with these labels."""
    (found,) = [sample.value for sample in samples(broker, name) if sample.labels == labels]
    return found


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


# --- Metrics of groups: lag in records and in seconds, and the time until retention deletes the next record -----------


def commit(broker: Broker, group: str, offset: int, partition: int = 0, topic: str = "t") -> None:
    broker.groups._offsets.committed.put(group, (topic, partition), CommittedOffset(offset, -1, "", NOW))


async def scene_with(*minutes: float) -> Scene:
    """A record of each of so many minutes ago, each in a segment of its own; retention is ten minutes."""
    scene = await made()
    scene.append(*(NOW - round(ago * MINUTE) for ago in minutes))
    return scene


async def test_lag_is_told_in_records_and_in_seconds_also_of_a_group_without_members() -> None:
    scene = await scene_with(9, 7, 2)
    broker = scene.broker
    commit(broker, "dead", 1)
    commit(broker, "current", 3)
    assert value(broker, "seglog_group_lag", "dead", "t", "0") == 2
    assert value(broker, "seglog_group_lag", "current", "t", "0") == 0
    assert value(broker, "seglog_group_committed_offset", "dead", "t", "0") == 1
    assert value(broker, "seglog_group_members", "dead") == 0
    assert value(broker, "seglog_group_state", "dead", "Empty") == 1
    assert [s.labels for s in samples(broker, "seglog_group_lag_seconds")] == [("current", "t", "0")], (
        "not measured yet"
    )
    await broker.measurements.measure()
    assert value(broker, "seglog_group_lag_seconds", "dead", "t", "0") == 7 * 60
    assert value(broker, "seglog_group_lag_seconds", "current", "t", "0") == 0
    scene.clock.now += 5000
    assert value(broker, "seglog_group_lag_seconds", "dead", "t", "0") == 7 * 60 + 5, "it goes on from there"
    commit(broker, "dead", 2)
    assert value(broker, "seglog_group_lag_seconds", "dead", "t", "0") == 7 * 60, "as it was then; it reads on"
    commit(broker, "dead", 3)
    assert value(broker, "seglog_group_lag_seconds", "dead", "t", "0") == 0


async def test_time_to_loss_is_what_explain_predicts() -> None:
    scene = await scene_with(9, 7, 2)
    broker = scene.broker
    (first, second, _) = await scene.segments()
    commit(broker, "a", 0)
    commit(broker, "b", 1)
    commit(broker, "c", 3)
    await broker.measurements.measure()
    assert first.leaves_from_ms is not None
    assert second.leaves_from_ms is not None
    assert value(broker, "seglog_group_time_to_loss_seconds", "a", "t", "0") == (first.leaves_from_ms - NOW) / 1000
    assert value(broker, "seglog_group_time_to_loss_seconds", "b", "t", "0") == (second.leaves_from_ms - NOW) / 1000
    assert value(broker, "seglog_group_time_to_loss_seconds", "c", "t", "0") == math.inf, "there is nothing to lose"
    await broker.truncate(messages.TruncateRequest([messages.TruncatePartition("t", 0, 1)]))
    assert value(broker, "seglog_group_time_to_loss_seconds", "a", "t", "0") == 0, "it is gone already"


async def test_nothing_is_lost_where_nothing_is_deleted() -> None:
    scene = await made(retention_ms=-1)
    scene.append(NOW - MINUTE, NOW)
    commit(scene.broker, "g", 0)
    await scene.broker.measurements.measure()
    assert value(scene.broker, "seglog_group_time_to_loss_seconds", "g", "t", "0") == math.inf


async def test_offsets_of_topics_that_are_gone_have_no_samples() -> None:
    scene = await scene_with(1)
    commit(scene.broker, "g", 0, topic="gone")
    commit(scene.broker, "g", 0, partition=7)
    await scene.broker.measurements.measure()
    assert samples(scene.broker, "seglog_group_lag") == []


async def test_beyond_the_limit_the_groups_with_the_largest_lag_are_shown() -> None:
    scene = Scene(flags=["seglog.metrics.groups.max=2"])
    broker = scene.broker
    await scene.create()
    scene.append(*[NOW] * 5)
    for number in range(5):
        commit(broker, f"g{number}", number)
    await broker.measurements.measure()
    assert [s.labels for s in samples(broker, "seglog_group_lag")] == [("g0", "t", "0"), ("g1", "t", "0")]
    assert value(broker, "seglog_groups_left_out") == 3


async def test_a_bug_in_a_measurement_costs_its_numbers_alone_and_is_logged_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []

    async def broken() -> None:
        raise RuntimeError("a bug")

    async def whole() -> None:
        done.append("whole")

    measurements = Measurements([broken, whole])
    await measurements.measure()
    await measurements.measure()
    assert done == ["whole", "whole"]
    assert capsys.readouterr().err.count("measurement_failed") <= 1
