"""Gaps in replies to fetches: a whole broker with hand-made logs that have holes."""

from typing import Any

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.partitions.fetch_response import GAPS_MAX
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.messages import CreateTopicRequest, FetchPartition, FetchRequest, FetchResult, Gap
from tests.logs import add_bytes, flip_bit
from tests.unit.broker.brokers import open_broker

LOG = "/data/t-0/00000000000000000000.log"


async def with_batches(*bases: int, compacted_before: int = 0) -> tuple[Broker, PartitionLog]:
    """A topic with one segment, which has batches of two records at these offsets."""
    fs = ForgetfulFileSystem()
    broker = open_broker(fs)
    await broker.create_topic(CreateTopicRequest("t", 1))
    broker.close()
    for base in bases:
        add_bytes(fs, LOG, encode_batch([(1, b"k", b"v", ())] * 2, base_offset=base))
    broker = open_broker(fs)
    log = broker.partitions["t", 0].log
    log.state.compacted_before = compacted_before
    return broker, log


def end_with_an_empty_segment(log: PartitionLog, base: int) -> None:
    """An empty segment as a roll leaves it; its base offset may be far above the last record kept by compaction."""
    log.roller.roll(base, RollReason.SIZE)
    log.offsets.end = base


async def fetch(broker: Broker, offset: int, **limits: Any) -> FetchResult:
    request = FetchRequest([FetchPartition("t", 0, offset)], **{"max_wait_ms": 0, **limits})
    with await broker.fetch(request) as answer:
        return answer.reply.partitions[0]


async def test_a_log_without_holes_says_nothing() -> None:
    broker, _ = await with_batches(0, 2, 4)
    for offset in range(7):
        result = await fetch(broker, offset)
        assert (result.gaps, result.compacted_before, result.error) == (None, None, None)
    broker.close()


@pytest.mark.parametrize(
    ("compacted_before", "gaps"),
    [
        (0, [Gap(4, 10, "missing")]),
        (7, [Gap(4, 7, "compacted"), Gap(7, 10, "missing")]),
        (50, [Gap(4, 10, "compacted")]),
    ],
)
async def test_a_hole_before_the_first_batch_is_reported_in_pieces_with_reasons(
    compacted_before: int, gaps: list[Gap]
) -> None:
    broker, _ = await with_batches(2, 10, 20, compacted_before=compacted_before)
    result = await fetch(broker, 4)
    assert result.gaps == gaps
    assert result.compacted_before == (compacted_before or None)
    assert result.size > 0
    broker.close()


async def test_the_compacted_offset_is_sent_as_long_as_a_hole_may_be_below_it() -> None:
    broker, _ = await with_batches(0, 10, compacted_before=8)
    assert [(await fetch(broker, offset)).compacted_before for offset in (0, 7, 8, 10)] == [8, 8, None, None]
    broker.close()


async def test_missing_ranges_inside_the_reply_are_reported_and_damaged_ones_are_not() -> None:
    """A slice ends before damaged bytes. Compaction may have merged the segments on both sides of missing offsets."""
    broker, log = await with_batches(0, 10, 30, compacted_before=30)
    log.state.damaged += [
        DamagedRange(20, 25, 0, 0, 0, reason="missing"),
        DamagedRange(40, 50, 0, 5000, 5001),
        DamagedRange(12, 15, 0, 0, 0, reason="missing"),
    ]
    result = await fetch(broker, 0)
    assert result.gaps == [Gap(12, 15, "missing"), Gap(20, 25, "missing")]
    assert result.compacted_before == 30
    assert (await fetch(broker, 15)).gaps == [
        Gap(15, 20, "compacted"),
        Gap(20, 25, "missing"),
        Gap(25, 30, "compacted"),
    ]
    broker.close()


async def test_damage_right_after_a_hole_is_reported_with_it() -> None:
    broker, _ = await with_batches(0, 10, 20, compacted_before=20)
    flip_bit(broker.fs, LOG, 8 + len(encode_batch([(1, b"k", b"v", ())] * 2)) + 1)  # the second batch's length
    broker.partitions["t", 0].log.segments[0].offset_index.reset()
    result = await fetch(broker, 0)
    assert result.gaps is None, "the answer ends before it"
    error = (await fetch(broker, 2)).error
    assert error is not None
    assert (error.facts["start_offset"], error.facts["next_offset"]) == (2, 20)
    broker.close()


async def test_a_hole_up_to_the_end_is_reported_at_once_and_a_fetch_at_the_end_waits(autojump_clock: object) -> None:
    broker, log = await with_batches(0, compacted_before=90)
    end_with_an_empty_segment(log, 100)
    started = trio.current_time()
    result = await fetch(broker, 2, max_wait_ms=5_000)
    assert (result.size, result.gaps) == (0, [Gap(2, 90, "compacted"), Gap(90, 100, "missing")])
    assert trio.current_time() == started
    result = await fetch(broker, 100, max_wait_ms=5_000)
    assert (result.size, result.gaps) == (0, None)
    assert trio.current_time() == started + 5
    broker.close()


async def test_offsets_after_a_limit_are_not_reported_as_a_hole() -> None:
    broker, log = await with_batches(0, 2)
    end_with_an_empty_segment(log, 100)
    partitions = [FetchPartition("t", 0, 0), FetchPartition("t", 0, 2, max_bytes=1), FetchPartition("t", 0, 4)]
    with await broker.fetch(FetchRequest(partitions, max_bytes=1, max_wait_ms=0)) as answer:
        assert [(result.size > 0, result.gaps) for result in answer.reply.partitions] == [
            (True, None),
            (False, None),
            (False, None),
        ]
    broker.close()


async def test_more_gaps_than_fit_an_answer() -> None:
    """More gaps than fit an answer are left out and none of them is called compacted."""
    broker, log = await with_batches(0, 1000, compacted_before=1000)
    log.state.damaged += [DamagedRange(n, n + 1, 0, 0, 0, reason="missing") for n in range(2, 900, 3)]
    result = await fetch(broker, 0)
    assert result.gaps == [Gap(n, n + 1, "missing") for n in range(2, 2 + 3 * GAPS_MAX, 3)]
    assert result.compacted_before == 2 + 3 * GAPS_MAX
    broker.close()
