"""The scrub reads closed segments in the background; findings are skipped by readers, repaired or reported."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.storage.io.filesystem import Buffer, FileSystem, read_file
from seglog_broker.testing.forgetful import Fault
from seglog_broker.testing.offload import InlineOffload, InlineWorkers
from seglog_broker.workers.messages import AnswerT, JobKind, JobT, Progress
from seglog_broker.workers.pool import Workers
from seglog_protocol.errors import CorruptRecordError
from tests.logs import cut_file, flip_bit, verify
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, append, fetch, living, with_topic

ONLY = ("scrubs",)
EVERY_HOUR = "seglog.scrub.interval.ms=3600000"
FLAGS = (EVERY_HOUR,)


def path(base: int, suffix: str = ".log") -> str:
    return f"/data/t-0/{base:020d}{suffix}"


async def three_closed(broker: Broker) -> None:
    """Closed segments with base offsets 0, 4, 8 of four batches of 256 bytes each, and an active one."""
    await with_topic(broker, segment_bytes=1024, index_interval_bytes=300)
    append(broker, 14)


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await three_closed(empty)
    return empty


async def test_sound_segments_are_unchanged_and_counted(clock: LoopClock, fs: TimedDisk, broker: Broker) -> None:
    before = {name: data for name, data in fs.snapshot().items() if "/t-0/" in name}
    with capture_logs() as logged:
        await trio.sleep(3601)
    assert {name: data for name, data in fs.snapshot().items() if "/t-0/" in name} == before
    assert [entry["event"] for entry in logged] == ["scrub_pass_finished"]
    metrics = broker.metrics
    assert (metrics.scrubbed_segments, metrics.scrubbed_bytes, metrics.scrub_findings) == (3, 3 * 1024, 0)
    assert (metrics.scrub_passes, metrics.scrub_pass_ratio) == (2, 1.0), "one before there was a topic"
    assert metrics.scrub_last_pass_ms == clock.now_ms() - 1000
    assert broker.hello().problems == []


async def test_damage_is_reported_before_a_reader_finds_it_and_then_skipped(clock: LoopClock, fs: TimedDisk) -> None:
    async with living(fs, clock, EVERY_HOUR, tasks=ONLY) as broker:
        await three_closed(broker)
        flip_bit(fs, path(4), 256 + 100)
        with capture_logs() as logged:
            await trio.sleep(3601)
        (found,) = [entry for entry in logged if entry["event"] == "damage_found"]
        assert (found["start_offset"], found["end_offset"], found["position"]) == (5, 6, 256)
        assert broker.hello().problems == ["t-0: offsets 5 to 5 are damaged"]
        assert broker.hello().problem_kinds == ["damage"]
        result = await fetch(broker, 5)
        assert isinstance(result.error, CorruptRecordError)
        assert result.error.facts["next_offset"] == 6
        assert (await fetch(broker, 6)).error is None
        with capture_logs() as logged:
            await trio.sleep(3600)
        assert [entry["event"] for entry in logged] == ["scrub_pass_finished"], "it is news once"
        assert broker.metrics.scrub_findings == 1
    async with living(fs, clock, EVERY_HOUR, tasks=()) as broker:
        assert broker.hello().problems == ["t-0: offsets 5 to 5 are damaged"], "it is remembered"


async def test_bytes_at_the_end_of_a_closed_segment_stand_for_the_offsets_up_to_the_next(
    fs: TimedDisk, broker: Broker
) -> None:
    flip_bit(fs, path(4), 3 * 256 + 100)
    await trio.sleep(3601)
    (damage,) = broker.partitions["t", 0].log.state.damaged
    assert (damage.start_offset, damage.end_offset, damage.position, damage.end_position) == (7, 8, 768, 1024)
    assert (await fetch(broker, 8)).error is None


@pytest.mark.parametrize("position", [7, 15], ids=["base offset", "leader epoch"])
async def test_bytes_that_no_batch_checksum_covers_are_checked_by_the_checksum_file(
    position: int, fs: TimedDisk, broker: Broker
) -> None:
    sound = read_file(fs, path(8))
    flip_bit(fs, path(8), 3 * 256 + position)
    await trio.sleep(3601)
    assert broker.hello().problems, "an offset or an epoch has changed"
    file = fs.open(path(8), writable=True)
    file.pwritev([sound], 0)
    file.close()
    if position == 15:
        await trio.sleep(3600)
        assert broker.hello().problems == [], "restored from a backup"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "hurt",
    [lambda fs, file: flip_bit(fs, file, 3), lambda fs, file: fs.unlink(file)],
    ids=["a bit turned", "gone"],
)
async def test_a_wrong_index_is_replaced_by_a_right_one(
    suffix: str, hurt: Callable[[TimedDisk, str], None], fs: TimedDisk, broker: Broker
) -> None:
    right = read_file(fs, path(4, suffix))
    hurt(fs, path(4, suffix))
    await trio.sleep(3601)
    assert read_file(fs, path(4, suffix)) == right
    assert not any(name.endswith(".tmp") for name in fs.list_directory("/data/t-0"))
    assert broker.metrics.scrub_findings == 1
    assert broker.hello().problems == []
    verify(fs, broker.partitions["t", 0].log)


@pytest.mark.parametrize("content", [None, b"junk"], ids=["none", "a malformed one"])
async def test_a_sound_segment_without_a_checksum_gets_one(
    content: bytes | None, fs: TimedDisk, broker: Broker
) -> None:
    right = read_file(fs, path(4, ".checksum"))
    fs.unlink(path(4, ".checksum"))
    if content is not None:
        file = fs.open(path(4, ".checksum"), create=True)
        file.pwritev([content], 0)
        file.close()
    await trio.sleep(3601)
    assert read_file(fs, path(4, ".checksum")) == right


async def test_a_segment_that_cannot_be_read_is_named_and_the_others_are_read(fs: TimedDisk, broker: Broker) -> None:
    fs.inject(Fault("pread", f"{4:020d}.log", error=errno.EIO, sticky=True))
    await trio.sleep(3601)
    (problem,) = broker.hello().problems
    assert f"{4:020d}.log could not be read" in problem
    assert broker.metrics.scrubbed_segments == 2
    fs.heal()
    await trio.sleep(3600)
    assert broker.hello().problems == []


async def test_a_closed_segment_that_became_shorter_is_reported_and_gets_no_checksum_file(
    fs: TimedDisk, broker: Broker
) -> None:
    fs.unlink(path(4, ".checksum"))
    cut_file(fs, path(4), 768)
    await trio.sleep(3601)
    (problem,) = broker.hello().problems
    assert "has 768 bytes, and had 1024" in problem
    assert not fs.exists(path(4, ".checksum"))
    assert (await fetch(broker, 4)).error is None


class _Held(InlineOffload):
    """A scrubber whose results come late."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = trio.Event()
        self.may_tell = trio.Event()

    @asynccontextmanager
    async def scrubber(self, fs: FileSystem) -> AsyncIterator[Workers]:
        yield _HeldScrubber(self, fs)


class _HeldScrubber(InlineWorkers):
    def __init__(self, offload: _Held, fs: FileSystem) -> None:
        super().__init__(fs)
        self._offload = offload

    async def run(
        self, kind: JobKind[JobT, AnswerT], job: JobT, payload: Buffer = b"", *, progress: Progress = lambda _: None
    ) -> AnswerT:
        verdict = await super().run(kind, job, payload, progress=progress)
        self._offload.judged.set()
        await self._offload.may_tell.wait()
        return verdict


async def test_a_result_for_a_segment_that_has_left_the_log_meanwhile_changes_nothing(
    clock: LoopClock, fs: TimedDisk
) -> None:
    offload = _Held()
    async with living(fs, clock, EVERY_HOUR, tasks=ONLY, offload=offload) as broker:
        await three_closed(broker)
        flip_bit(fs, path(0), 100)
        flip_bit(fs, path(0, ".index"), 3)
        await offload.judged.wait()
        log = broker.partitions["t", 0].log
        doomed = log.truncation.drop_oldest(1)
        doomed.set_aside()
        offload.may_tell.set()
        await trio.sleep(1)
        assert log.state.damaged == []
        assert broker.metrics.scrub_findings == 0
        assert not any(name.endswith(".tmp") for name in fs.list_directory("/data/t-0"))
