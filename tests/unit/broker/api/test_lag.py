"""The lag of offsets, and when retention deletes their records: by the same code that deletes them."""

import errno
import random
from typing import Any

import pytest
from trio.testing import MockClock

from seglog_broker.api.lag import LAG_PARTITIONS_MAX
from seglog_broker.testing.forgetful import Fault
from seglog_protocol.errors import InvalidRequestError, StorageError, UnknownPartitionError, UnknownTopicError
from seglog_protocol.messages import LagPartition, LagReply, LagRequest, LagResult, TruncatePartition, TruncateRequest
from tests.unit.broker.api.scene import MINUTE, NOW, SIZE, Scene, made


def pass_time(scene: Scene, mock_clock: MockClock, until_ms: int) -> None:
    """Both clocks go on; the wall clock alone would be taken for one that was set."""
    mock_clock.jump((until_ms - scene.clock.now) / 1000)
    scene.clock.now = until_ms


async def ask(scene: Scene, *offsets: int, partition: int = 0) -> list[LagResult]:
    reply, payload = await scene.broker.answer(LagRequest([LagPartition("t", partition, o) for o in offsets]))
    assert isinstance(reply, LagReply)
    assert payload == b""
    assert reply.now_ms == scene.clock.now
    assert all(result.error is None for result in reply.partitions)
    return reply.partitions


async def test_an_offset_at_the_end_or_beyond_has_no_record_to_lose(scene: Scene) -> None:
    scene.append(NOW - 11 * MINUTE, NOW)
    (first,) = await ask(scene, 0)
    assert (first.timestamp, first.newest_timestamp, first.segment) == (NOW - 11 * MINUTE, NOW, 0)
    for place in await ask(scene, 2, 99, 2**62):
        assert (place.latest, place.timestamp, place.segment, place.lost_from_ms, place.why) == (2,) + (None,) * 4
        assert place.newest_timestamp == NOW
    (empty,) = await ask(scene, 0, partition=1)
    assert (empty.latest, empty.timestamp, empty.newest_timestamp, empty.segment) == (0, None, None, None)


async def test_an_offset_below_a_truncated_start_gets_the_reason() -> None:
    scene = await made(retention_ms=-1)
    scene.append(NOW, NOW, NOW)
    await scene.broker.answer(TruncateRequest([TruncatePartition("t", 0, 2)]))
    (place,) = await ask(scene, 0)
    assert (place.earliest, place.earliest_reason, place.segment, place.lost_from_ms) == (2, "truncated", 2, None)


async def test_a_batch_without_timestamp_gives_none(scene: Scene) -> None:
    scene.append(-1, -1)
    for place in await ask(scene, 0, 1):
        assert (place.timestamp, place.newest_timestamp) == (None, None)
        assert place.lost_by_ms is not None, "it ages from its last write"


async def test_one_wrong_offset_fails_no_other(scene: Scene) -> None:
    scene.append(NOW)
    asked = [LagPartition("nothing", 0, 0), LagPartition("t", 9, 0), LagPartition("t", 0, 0)]
    reply, _ = await scene.broker.answer(LagRequest(asked))
    assert isinstance(reply, LagReply)
    assert [type(result.error) for result in reply.partitions] == [UnknownTopicError, UnknownPartitionError, type(None)]
    assert [(result.topic, result.partition) for result in reply.partitions] == [("nothing", 0), ("t", 9), ("t", 0)]


async def test_the_number_of_offsets_in_a_request_is_limited(scene: Scene) -> None:
    with pytest.raises(InvalidRequestError, match="at most 1000 partitions"):
        await scene.broker.answer(LagRequest([LagPartition("t", 0, 0)] * (LAG_PARTITIONS_MAX + 1)))
    assert len(await ask(scene, *[0] * LAG_PARTITIONS_MAX)) == LAG_PARTITIONS_MAX


@pytest.mark.parametrize("seed", range(20))
async def test_lag_and_explain_agree_for_any_retention_at_any_time(seed: int, mock_clock: MockClock) -> None:
    rng = random.Random(seed)
    scene = Scene()
    settings: dict[str, Any] = {
        "retention_ms": rng.choice([-1, 0, MINUTE, 10 * MINUTE]),
        "retention_bytes": rng.choice([-1, 0, 2 * SIZE, 5 * SIZE]),
        "message_timestamp_type": rng.choice(["CreateTime", "LogAppendTime"]),
    }
    await scene.create(**settings)
    for _ in range(12):
        match rng.randrange(4):
            case 0:
                pass_time(scene, mock_clock, scene.clock.now + rng.randrange(20) * MINUTE)
            case 1:
                await scene.check()
            case _:
                scene.append(*(scene.clock.now - rng.randrange(-2, 20) * MINUTE for _ in range(rng.randrange(4))))
        told = {segment.base_offset: segment for segment in await scene.segments() if segment.state != "deleted"}
        end = scene.log.log_end_offset
        for place, offset in zip(await ask(scene, *range(end + 1)), range(end + 1), strict=True):
            start = scene.log.log_start_offset
            assert (place.earliest, place.latest) == (start, end)
            if max(offset, start) == end:
                assert place.segment is None
                continue
            assert place.segment == max(base for base in told if base <= max(offset, start))
            segment = told[place.segment]
            assert (place.lost_from_ms, place.lost_by_ms) == (segment.leaves_from_ms, segment.leaves_by_ms)
            assert (place.bytes_to_come, place.why) == (segment.bytes_to_come, segment.why)


async def test_the_metric_is_the_earliest_loss_of_all_partitions(scene: Scene) -> None:
    assert scene.broker.read_metrics().metrics["retention_next_loss_seconds"] == -1
    scene.append(NOW - 12 * MINUTE, NOW - 7 * MINUTE, NOW)
    await scene.check()
    assert scene.log.log_start_offset == 1
    assert scene.broker.read_metrics().metrics["retention_next_loss_seconds"] == 180
    scene.clock.now += 4 * MINUTE
    assert scene.broker.read_metrics().metrics["retention_next_loss_seconds"] == 0, "the next check takes it"


async def test_a_disk_that_fails_one_partition_fails_no_other(scene: Scene) -> None:
    scene.append(-1, -1)  # ages from its last write, which the file system is asked for
    scene.fs.inject(Fault("stat", ".log", error=errno.EIO, sticky=True))
    reply, _ = await scene.broker.answer(LagRequest([LagPartition("t", 0, 0), LagPartition("t", 1, 0)]))
    assert isinstance(reply, LagReply)
    assert isinstance(reply.partitions[0].error, StorageError)
    assert "could not be read" in reply.partitions[0].error.message
    assert reply.partitions[1].error is None
