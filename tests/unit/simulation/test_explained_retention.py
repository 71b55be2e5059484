"""The predictions of ``explain segments`` come true: the real tasks, on the forgetful disk, in mock time.

The example: retention after 10 minutes, segments of 16,384 bytes that fill every 7 minutes, a check every 5 minutes,
and a minute until what was deleted leaves the disk.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC
from typing import Final, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from seglog.cli.pictures.explained import segments_picture
from seglog.cli.pictures.text import lines_of as drawn
from seglog.cli.retention import kept_text
from seglog.cli.segment_table import lines_of
from seglog.core.explaining import PartitionExplanation
from seglog_broker.api.broker import Broker
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol import messages
from tests.appends import append_batch
from tests.logs import batch_of_size
from tests.support import REPOSITORY
from tests.unit.broker.tasks.living_broker import START_MS, LoopClock, living

MINUTE: Final = 60.0
CHECK_MINUTES: Final = 5
PHASES: Final = range(20)
TOPIC: Final = {"retention.ms": 600_000, "segment.bytes": 16_384, "file.delete.delay.ms": 60_000}
BATCHES: Final = 16
"""Of 1,024 bytes: one segment."""


class WatchedFileSystem(ForgetfulFileSystem):
    """Notes when a ``.log`` loses its name, and when the file goes: minutes by the base offset of the segment."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[int, float] = {}
        self.gone: dict[int, float] = {}

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._note(new, self.left)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._note(path, self.gone)

    @staticmethod
    def _note(path: str, moments: dict[int, float]) -> None:
        found = re.search(r"/(\d{20})\.log\.deleted$", path)
        if found is not None:
            moments[int(found[1])] = minutes_now()


class Told(NamedTuple):
    """A prediction about a segment, and when it was made (minutes)."""

    at: float
    segment: messages.ExplainedSegment


class Running(NamedTuple):
    """A broker with its tasks running."""

    broker: Broker
    fs: WatchedFileSystem

    async def append(self) -> None:
        """Append a batch of 1,024 bytes with the current time."""
        encoded = batch_of_size(1024, self.broker.clock.now_ms())
        reply = await append_batch(self.broker, encoded, "commits").wait()
        assert reply.partitions[0].error is None

    async def explain(self) -> tuple[messages.ExplainSegmentsReply, list[messages.ExplainedSegment]]:
        """Explain the whole partition; assert that the lag of the first and last offset of each segment agrees."""
        reply, segments = await self._ask()
        kept = [s for s in segments if s.state != "deleted" and s.base_offset < s.next_offset]
        places = [place for s in kept for place in (s.base_offset, s.next_offset - 1)]
        lag, _ = await self.broker.answer(
            messages.LagRequest([messages.LagPartition("commits", 0, place) for place in places])
        )
        assert isinstance(lag, messages.LagReply)
        if (await self._ask())[1] == segments:  # else appends or a check were at work in between
            for number, place in enumerate(lag.partitions):
                segment = kept[number // 2]
                assert place.segment == segment.base_offset
                assert (place.lost_from_ms, place.lost_by_ms) == (segment.leaves_from_ms, segment.leaves_by_ms)
                assert (place.bytes_to_come, place.why) == (segment.bytes_to_come, segment.why)
        return reply, segments

    async def _ask(self) -> tuple[messages.ExplainSegmentsReply, list[messages.ExplainedSegment]]:
        reply, payload = await self.broker.answer(messages.ExplainSegmentsRequest("commits", 0))
        assert isinstance(reply, messages.ExplainSegmentsReply)
        return reply, messages.decode_segments(payload)


@asynccontextmanager
async def running(phase_ms: int) -> AsyncGenerator[Running, None]:
    """Its checks come ``phase_ms`` after full intervals of five minutes."""
    flags = [
        f"log.retention.check.interval.ms={CHECK_MINUTES * 60_000}",
        f"log.initial.task.delay.ms={phase_ms}",
    ]
    fs = WatchedFileSystem()
    async with living(fs, LoopClock(), *flags) as broker:
        await broker.create_topic(messages.CreateTopicRequest("commits", 1, {**TOPIC}))
        yield Running(broker, fs)


def minutes_now() -> float:
    return trio.current_time() / MINUTE


def minutes_of(moment_ms: int | None) -> float:
    """Minutes from the start to a time of the broker's clock."""
    assert moment_ms is not None
    return (moment_ms - START_MS) / 60_000


async def at_minutes(moments: list[float], work: Callable[[], Awaitable[None]]) -> None:
    for moment in moments:
        await trio.sleep_until(moment * MINUTE)
        await work()


def check_interval(told: Told, left: float, gone: float) -> None:
    """Assert that one prediction came true."""
    at, segment = told
    assert at < gone + 1e-9, "what has left the disk is not told of"
    assert minutes_of(segment.gone_from_ms) <= gone + 1e-9
    if segment.state == "deleted":
        assert gone == pytest.approx(minutes_of(segment.gone_from_ms))
        assert segment.gone_by_ms == segment.gone_from_ms
        return
    assert minutes_of(segment.deletable_ms) < left
    assert minutes_of(segment.leaves_from_ms) <= left + 1e-9
    if segment.state == "closed":  # appends put off the active one
        assert left <= minutes_of(segment.leaves_by_ms) + 1e-9, f"said at minute {at}"
        assert gone <= minutes_of(segment.gone_by_ms) + 1e-9, f"said at minute {at}"


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase == 10 else [pytest.mark.soak]) for phase in PHASES]
)
async def test_each_segment_leaves_within_the_predicted_interval(autojump_clock: MockClock, phase: int) -> None:
    phase_ms = phase * CHECK_MINUTES * 60_000 // len(PHASES)
    told: list[Told] = []
    async with running(phase_ms) as run:

        async def explain() -> None:
            told.extend(Told(minutes_now(), segment) for segment in (await run.explain())[1])

        # The last batch of a segment comes when it is full, the first of the next one in the same moment.
        appends = [7.0 * (number + k / (BATCHES - 1)) for number in range(5) for k in range(BATCHES)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at_minutes, appends, run.append)
            nursery.start_soon(at_minutes, [0.5 * number for number in range(100)], explain)
        await trio.sleep_until(52 * MINUTE)
        left, gone = run.fs.left, run.fs.gone

    first = next(segment for at, segment in told if segment.base_offset == 0 and segment.state == "closed")
    assert minutes_of(first.rolled_ms) == 7
    assert first.rolled == "size"
    assert first.size == 16_384
    assert minutes_of(first.deletable_ms) == minutes_of(first.leaves_from_ms) == 17
    assert minutes_of(first.leaves_by_ms) == 22
    assert (minutes_of(first.gone_from_ms), minutes_of(first.gone_by_ms)) == (18, 23)
    check = next(phase_ms / 60_000 + CHECK_MINUTES * n for n in range(9) if phase_ms / 60_000 + CHECK_MINUTES * n > 17)
    assert left[0] == pytest.approx(check)
    assert gone[0] == pytest.approx(check + 1)

    assert set(left) == set(gone) == {0, 16, 32, 48, 64}, "all had the time to go, the active one too"
    for said in told:
        if said.segment.size:
            check_interval(said, left[said.segment.base_offset], gone[said.segment.base_offset])
        else:
            assert said.segment.deletable_ms is None, "an empty segment is never taken"
    assert {said.segment.state for said in told} == {"active", "closed", "deleted"}


async def test_the_retention_page_shows_what_is_printed(autojump_clock: MockClock) -> None:
    """At minute 17.5, with checks at minutes 2.25, 7.25 and so on."""
    async with running(phase_ms=135_000) as run:
        moments = [7.0 * (number + k / (BATCHES - 1)) for number in range(4) for k in range(BATCHES)]
        await at_minutes([moment for moment in moments if moment < 17.5], run.append)
        await trio.sleep_until(17.5 * MINUTE)
        explained = PartitionExplanation(*await run.explain())
    assert kept_text(explained) == "17 to 23 min, configured 10 min"
    page = (REPOSITORY / "docs" / "RETENTION.md").read_text(encoding="utf-8")
    command = r"\$ seglog explain segments commits"
    shown = re.findall(
        rf"^```text\n{command}\n(.*?)^```$.*?^```text\n{command} --picture\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    assert shown == [(text_of(lines_of(explained, UTC, 100)), text_of(drawn(segments_picture(explained, UTC), 100)))]


def text_of(lines: Iterable[str]) -> str:
    """Lines as a text."""
    return "".join(f"{line}\n" for line in lines)
