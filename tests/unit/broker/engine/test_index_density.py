"""The creation of a topic whose index is full before its segment gives a warning, and its numbers are correct."""

import re

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.config.topic_overrides import SMALLEST_BATCH, why_index_fills_first
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.messages import CreateTopicRequest
from tests.logs import LogOnDisk, batch
from tests.unit.broker.brokers import open_broker


async def test_the_creation_of_a_dense_topic_gives_a_warning_with_numbers() -> None:
    broker = open_broker(ForgetfulFileSystem())
    dense = {"segment.bytes": 1 << 20, "index.interval.bytes": 0, "segment.index.bytes": 1200}
    reply = await broker.create_topic(CreateTopicRequest("dense", 1, dense))  # type: ignore[arg-type]
    assert any("holds 99 entries" in warning and "can need" in warning for warning in reply.warnings)
    reply = await broker.create_topic(CreateTopicRequest("plain", 1, {}))
    assert reply.warnings == []
    broker.close()


@pytest.mark.parametrize(("interval", "index_bytes"), [(0, 240), (100, 240), (500, 120)])
def test_a_log_of_the_smallest_batches_rolls_where_the_warning_says(interval: int, index_bytes: int) -> None:
    config = TopicConfig(segment_bytes=1 << 20, index_interval_bytes=interval, segment_index_bytes=index_bytes)
    warning = why_index_fills_first(config)
    assert warning is not None
    said = int(re.findall(r"after about (\d+) bytes", warning)[0])
    disk = LogOnDisk(config)
    small = batch(b"", timestamp=-1)
    assert len(small) == SMALLEST_BATCH
    number = 0
    while len(disk.log.segments) == 1:
        disk.append(b"", timestamp=1_000 + number)  # rising times fill the time index as well
        number += 1
    rolled_at = disk.log.segments[0].size
    assert abs(rolled_at - said) <= 2 * (index_bytes // 12) * SMALLEST_BATCH
