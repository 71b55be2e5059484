"""Previews of compaction: they have what the next round then drops."""

from collections.abc import AsyncIterator

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.server import compaction_of
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.testing.offload import InlineOffload
from seglog_broker.workers.messages import WorkerError
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import StorageError
from seglog_protocol.messages import (
    CreateTopicRequest,
    ExplainedSegment,
    ExplainSegmentsReply,
    ExplainSegmentsRequest,
    decode_segments,
)
from tests.logs import ManualClock, append_one
from tests.unit.broker.brokers import open_broker

_NOW = 1_700_000_000_000


class CountingOffload(InlineOffload):
    """Counts the rounds, dry ones too, and fails them on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[CleaningJob] = []
        self.fails = False

    async def clean(self, fs: FileSystem, job: CleaningJob) -> CleaningResult:
        self.jobs.append(job)
        if self.fails:
            raise WorkerError("died", "killed by a test")
        return await super().clean(fs, job)


@pytest.fixture
def offload() -> CountingOffload:
    return CountingOffload()


@pytest.fixture
async def broker(offload: CountingOffload) -> AsyncIterator[Broker]:
    broker = open_broker(clock=ManualClock(_NOW), offload=offload)
    wanted = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
    await broker.create_topic(CreateTopicRequest("t", 1, dict(wanted)))
    for number in range(60):
        view = memoryview(bytearray(encode_batch([(_NOW, b"key %d" % (number % 7), b"." * 20, ())])))
        append_one(broker.partitions["t", 0].log, view)
    yield broker
    broker.close()


async def _explain(broker: Broker, *, drops: bool | None = None) -> tuple[ExplainSegmentsReply, list[ExplainedSegment]]:
    reply, payload = await broker.answer(ExplainSegmentsRequest("t", 0, drops=drops))
    assert isinstance(reply, ExplainSegmentsReply)
    return reply, decode_segments(payload)


async def test_a_preview_has_what_the_round_then_drops(broker: Broker, offload: CountingOffload) -> None:
    before = broker.partitions["t", 0].log.size
    reply, segments = await _explain(broker)
    assert reply.compaction is not None
    assert reply.compaction.drops_untold is None
    told = [segment.compaction for segment in segments]
    assert told[-1] is None, "the active segment is not compacted"
    dropped = [drop for drop in told if drop is not None]
    assert len(dropped) == len(segments) - 1
    assert offload.jobs[0].dry_run
    assert await compaction_of(broker).clean_next()
    cleaner = broker.partitions["t", 0].log.state.cleaner
    assert cleaner.bytes_before - cleaner.bytes_after == sum(drop.size for drop in dropped)
    assert before - broker.partitions["t", 0].log.size == sum(drop.size for drop in dropped)
    _, segments = await _explain(broker)
    assert [drop.records for segment in segments if (drop := segment.compaction) is not None] == [0] * (
        len(segments) - 1
    )


async def test_a_preview_is_kept_as_long_as_it_is_true(broker: Broker, offload: CountingOffload) -> None:
    for _ in range(3):
        await _explain(broker)
    assert len(offload.jobs) == 1
    log = broker.partitions["t", 0].log
    log.roller.roll(log.log_end_offset, RollReason.SIZE)
    await _explain(broker)
    assert len(offload.jobs) == 2


async def test_a_preview_that_reads_much_is_made_only_if_requested(broker: Broker) -> None:
    broker._explain.previews.bytes_max = 2_000
    reply, segments = await _explain(broker)
    assert reply.compaction is not None
    assert "bytes must be read" in (reply.compaction.drops_untold or "")
    assert {segment.compaction for segment in segments} == {None}
    reply, segments = await _explain(broker, drops=True)
    assert reply.compaction is not None
    assert reply.compaction.drops_untold is None
    assert segments[0].compaction is not None


async def test_a_cleaner_that_dies_during_a_preview_is_reported_and_changes_nothing(
    broker: Broker, offload: CountingOffload
) -> None:
    offload.fails = True
    with pytest.raises(StorageError, match="killed by a test"):
        await _explain(broker)
    offload.fails = False
    assert (await _explain(broker))[1][0].compaction is not None
