"""Explanations of segments by a broker on the forgetful disk: why they are kept, and when they are deleted."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from seglog_broker.partitions.cleaning import cleaning
from seglog_broker.runtime.offload import Arguments, T
from seglog_broker.testing.offload import InlineOffload
from seglog_broker.texts import time_text
from seglog_protocol import errors, messages
from seglog_protocol.batch_builder import NewRecord, encode_batch
from tests.unit.broker.api.scene import FIRST, INTERVAL, MINUTE, NOW, SIZE, Scene, made


async def test_each_segment_tells_its_offsets_size_times_and_why_it_was_closed(scene: Scene) -> None:
    scene.append(NOW - 3 * MINUTE, NOW - 2 * MINUTE)
    scene.clock.now += 1000
    scene.append(NOW)
    reply, [first, second, active] = await scene.explain()
    assert [(s.base_offset, s.next_offset, s.size) for s in (first, second, active)] == [
        (0, 1, SIZE),
        (1, 2, SIZE),
        (2, 3, SIZE),
    ]
    assert [s.state for s in (first, second, active)] == ["closed", "closed", "active"]
    assert [(s.first_timestamp, s.largest_timestamp) for s in (first, second)] == [
        (NOW - 3 * MINUTE, NOW - 3 * MINUTE),
        (NOW - 2 * MINUTE, NOW - 2 * MINUTE),
    ]
    assert [(s.rolled, s.rolled_ms) for s in (first, second, active)] == [
        ("size", NOW),
        ("size", NOW + 1000),
        (None, None),
    ]
    assert (first.idle_roll_ms, active.idle_roll_ms) == (None, NOW + 1000 + 604_800_000)
    assert (reply.earliest, reply.latest, reply.segments, reply.size, reply.waiting) == (0, 3, 3, 3 * SIZE, 0)
    assert reply.earliest_reason is None
    assert (reply.now_ms, reply.next_check_ms, reply.check_interval_ms) == (NOW + 1000, NOW + 1000 + FIRST, INTERVAL)
    assert reply.config["retention.ms"].to_wire() == {"value": "600000", "origin": "topic", "where": "retention.ms"}
    assert reply.config["log.retention.check.interval.ms"].origin == "default"


@pytest.mark.parametrize(
    ("settings", "first"), [({}, NOW - 3 * MINUTE), ({"message_timestamp_type": "LogAppendTime"}, NOW)]
)
async def test_the_times_of_a_segment_begin_with_its_first_record(settings: dict[str, str], first: int) -> None:
    scene = await made(segment_bytes=10 * SIZE, **settings)
    records: list[NewRecord] = [(NOW - 3 * MINUTE, None, b"1", ()), (NOW - MINUTE, None, b"2", ())]
    scene.append_batch(encode_batch(records))
    [segment] = await scene.segments()
    assert (segment.first_timestamp, segment.largest_timestamp) == (first, NOW if settings else NOW - MINUTE)


async def test_when_a_segment_is_deleted(scene: Scene) -> None:
    """A segment goes at the next check if it is due and else at most an interval after it is."""
    scene.append(NOW - 11 * MINUTE, NOW - 10 * MINUTE, NOW - 9 * MINUTE)
    next_check = NOW + FIRST
    due, soon, later = await scene.segments()
    assert (due.rule, due.deletable_ms) == ("time", NOW - MINUTE)
    assert (due.leaves_from_ms, due.leaves_by_ms) == (next_check, next_check)
    assert (due.gone_from_ms, due.gone_by_ms) == (next_check + MINUTE, next_check + MINUTE)
    assert due.why == (
        "its newest record is 11 min old, longer than retention.ms = 600000 (10 min): the next check takes it"
    )
    assert (soon.rule, soon.kept, soon.deletable_ms) == (None, "age", NOW)
    assert (soon.leaves_from_ms, soon.leaves_by_ms) == (next_check, next_check), "by then it is"
    assert (later.kept, later.behind, later.deletable_ms) == ("older segment", 1, NOW + MINUTE)
    assert (later.leaves_from_ms, later.leaves_by_ms) == (NOW + MINUTE, NOW + MINUTE + INTERVAL)
    assert (
        later.why == "its newest record is 9 min old and retention.ms = 600000 (10 min) keeps it; appends put that off"
    )


async def test_a_segment_behind_a_younger_one_says_which_it_waits_for(scene: Scene) -> None:
    scene.append(NOW - MINUTE, NOW - 20 * MINUTE, NOW)
    _, old, _ = await scene.segments()
    assert old.deletable_ms == NOW + 9 * MINUTE
    assert old.why == (
        "its newest record is 20 min old, longer than retention.ms = 600000 (10 min); "
        "it must wait for segment 0: segments are deleted from the oldest on"
    )


async def test_a_segment_that_left_the_log_is_shown_until_it_leaves_the_disk(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.append(NOW - 12 * MINUTE, NOW - 11 * MINUTE, NOW)
    await scene.check()
    await trio.sleep(20)
    scene.clock.now += 20_000
    reply, [first, second, active] = await scene.explain()
    assert [(s.base_offset, s.next_offset, s.size, s.state, s.rule) for s in (first, second)] == [
        (0, 1, SIZE, "deleted", "time"),
        (1, 2, SIZE, "deleted", "time"),
    ]
    assert (first.gone_from_ms, first.gone_by_ms) == (NOW + MINUTE, NOW + MINUTE)
    assert (active.base_offset, active.state) == (2, "active")
    assert (reply.waiting, reply.waiting_size, reply.segments, reply.size) == (2, 2 * SIZE, 1, SIZE)
    assert (reply.earliest, reply.earliest_reason) == (2, "expired")


async def test_pages_together_are_the_whole(autojump_clock: MockClock, scene: Scene) -> None:
    scene.append(*(NOW - 15 * MINUTE + number * MINUTE for number in range(12)))
    await scene.check()
    whole = await scene.segments()
    assert [s.state for s in whole] == [*["deleted"] * 5, *["closed"] * 6, "active"]
    for limit in range(1, 14):
        told: list[messages.ExplainedSegment] = []
        more = True
        while more:
            after = {"after": told[-1].base_offset} if told else {}
            reply, page = await scene.explain(limit=limit, **after)
            assert len(page) == min(limit, len(whole) - len(told))
            told += page
            more = reply.more
        assert told == whole, f"{limit} at a time"
    _, page = await scene.explain(after=whole[-1].base_offset)
    assert page == []


async def test_segments_below_the_log_start_are_due_with_any_cleanup_policy() -> None:
    scene = await made(retention_ms=-1)
    scene.append(NOW, NOW, NOW)
    await scene.broker.truncate(messages.TruncateRequest([messages.TruncatePartition("t", 0, 1)]))
    await scene.broker.alter_topic(messages.AlterTopicRequest("t", {"cleanup.policy": ""}))
    reply, [below, kept, _] = await scene.explain()
    assert (reply.earliest, reply.earliest_reason) == (1, "truncated")
    assert (below.rule, below.deletable_ms, below.leaves_by_ms) == ("log start", NOW, NOW + FIRST)
    assert below.why == "it lies below the log start offset, 1: the next check takes it"
    assert (kept.rule, kept.kept, kept.deletable_ms, kept.leaves_from_ms, kept.gone_by_ms) == (
        *(None, "policy", None, None, None),
    )
    assert kept.why == "cleanup.policy is empty: no deletion"


async def test_without_a_limit_no_segment_is_due_and_the_reason_is_given() -> None:
    scene = await made(retention_ms=-1)
    assert (await scene.segments())[0].why == "nothing is in it yet; the next record goes there"
    scene.append(NOW)
    [active] = await scene.segments()
    assert (active.kept, active.deletable_ms, active.bytes_to_come) == ("no limit", None, None)
    assert active.why == ("retention.ms = -1 sets no limit to its age; retention.bytes = -1 sets no limit to the log")


async def test_the_size_rule_reports_the_missing_bytes() -> None:
    scene = await made(retention_ms=-1, retention_bytes=2500)
    scene.append(NOW, NOW, NOW, NOW)
    first, second, third, active = await scene.segments()
    assert (first.rule, first.bytes_to_come, first.leaves_by_ms) == ("size", None, NOW + FIRST)
    assert first.why == "the log has retention.bytes = 2500 without it: the next check takes it"
    assert [(s.bytes_to_come, s.leaves_by_ms) for s in (second, third, active)] == [
        *[(452, None), (1476, None), (None, None)],
    ]
    assert "without it the log is smaller than retention.bytes = 2500" in second.why


async def test_timestamps_that_are_missing_or_lie_in_the_future_are_warned_about(scene: Scene) -> None:
    scene.append(-1)
    scene.clock.now += MINUTE
    scene.append(scene.clock.now + 3_000_000, scene.clock.now)
    none, future, _ = await scene.segments()
    assert (none.first_timestamp, none.largest_timestamp) == (None, None)
    assert none.age_source == "modification time"
    assert "none of its records has a timestamp" in none.warnings[0]
    assert f"{time_text(scene.clock.now + 3_000_000)}, lies in the future" in future.warnings[0]


async def test_a_segment_of_unknown_age_and_all_later_ones_have_no_predicted_times(scene: Scene) -> None:
    scene.append(-1, NOW)
    scene.fs.set_mtime(scene.log.segments[0].log_path, NOW + 3_000_000)
    unknown, behind = await scene.segments()
    assert (unknown.deletable_ms, unknown.leaves_from_ms, unknown.gone_by_ms) == (None, None, None)
    assert "its age is not known" in unknown.why
    assert "it ages from the next retention check" in unknown.warnings[0]
    assert (behind.behind, behind.deletable_ms) == (0, None)


async def test_a_clock_jump_is_reported_as_a_doubt_and_postpones_expiry_by_age(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.append(NOW)
    schedule = scene.broker.retention_schedule
    schedule.begin()
    scene.broker.clock_trust.now_ms()
    scene.clock.now += 3_600_000
    reply, [segment] = await scene.explain()
    assert reply.doubts == ["the clock was set forward by 1 h: nothing expires by age until it has held for 1 h more"]
    assert reply.next_check_ms == scene.clock.now + FIRST
    hour = scene.clock.now + 3_600_000
    assert (segment.leaves_from_ms, segment.leaves_by_ms) == (hour, hour + INTERVAL)
    scene.clock.now -= 2 * 3_600_000
    reply, [segment] = await scene.explain()
    assert reply.doubts == []
    assert "lies in the future" in segment.warnings[0]


async def test_during_a_check_the_prediction_allows_for_this_check_and_the_next(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.append(NOW - 11 * MINUTE)
    schedule = scene.broker.retention_schedule
    schedule.begin()
    await trio.sleep(FIRST / 1000)
    scene.clock.now += FIRST
    with schedule.checking():
        [segment] = await scene.segments()
        assert (segment.leaves_from_ms, segment.leaves_by_ms) == (NOW + FIRST, NOW + FIRST + INTERVAL)
    [segment] = await scene.segments()
    assert segment.leaves_from_ms == segment.leaves_by_ms == NOW + FIRST + INTERVAL


async def test_problems_of_the_partition_stand_beside_its_segments(scene: Scene) -> None:
    scene.broker.partitions["t", 0].problems["retention"] = "the disk is full"
    reply, _ = await scene.explain()
    assert reply.problems == ["t-0: retention is held up: the disk is full"]
    scene.log.state_file.mark_read_only("an fsync failed: EIO")
    reply, _ = await scene.explain()
    assert reply.problems[0] == "t-0 is read-only because an fsync failed: EIO"
    assert reply.problems == scene.broker.hello().problems


async def test_why_a_segment_was_closed_after_a_restart(scene: Scene) -> None:
    """Why a segment was closed is known after a restart unless the file that says so is gone."""
    scene.append(NOW, NOW)
    scene.broker.close()
    scene.open()
    assert [s.rolled for s in await scene.segments()] == ["size", None]
    scene.broker.close()
    scene.fs.unlink("/data/t-0/seglog-partition.json")
    scene.open()
    assert [s.rolled for s in await scene.segments()] == [None, None]


async def test_a_compacted_partition_tells_how_compaction_stands() -> None:
    scene = await made(cleanup_policy="compact", retention_ms=-1)
    reply, [active] = await scene.explain()
    assert active.why == "nothing is in it yet; the next record goes there"
    assert reply.compaction is not None
    assert (reply.compaction.dirty_ratio, reply.compaction.cleanable_until, reply.compaction.last_run_ms) == (
        0,
        0,
        None,
    )
    assert reply.compaction.why_not_now == (
        "no closed segment that is old enough has records that compaction has not seen"
    )
    with cleaning(scene.broker.partitions["t", 0]):
        reply, _ = await scene.explain()
        assert reply.doubts == ["it is being compacted: nothing leaves the log before that is done"]
        assert reply.compaction is not None
        assert reply.compaction.why_not_now is None
    await scene.broker.alter_topic(messages.AlterTopicRequest("t", {"cleanup.policy": "delete"}))
    assert (await scene.explain())[0].compaction is None


class Meddling(InlineOffload):
    """Runs a function during the first cold read."""

    meddle: Callable[[], Awaitable[object]] | None = None

    async def cold_read(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            await meddle()
        return await super().cold_read(fn, *args)


async def cold_scene(offload: Meddling) -> Scene:
    """Three segments that were just opened, with none of their bytes in memory."""
    scene = Scene(offload)
    await scene.create()
    scene.append(NOW - 11 * MINUTE, NOW, NOW)
    scene.broker.close()
    scene.open()
    for path in scene.fs.snapshot():
        if "/t-0/" in path and not path.endswith("/"):
            scene.fs.evict(path)
    return scene


async def test_a_segment_that_expires_during_a_cold_read_is_shown_as_deleted() -> None:
    offload = Meddling()
    scene = await cold_scene(offload)
    offload.meddle = scene.check
    assert [(s.base_offset, s.state) for s in await scene.segments()] == [(0, "deleted"), (1, "closed"), (2, "active")]


@pytest.mark.parametrize("every", [1, 1_000], ids=["all the time", "twice"])
async def test_a_page_is_whole_though_segments_are_deleted(every: int) -> None:
    """A page is whole though segments leave the log while others before it are judged."""
    scene = await made(retention_ms=-1)
    scene.append(*[NOW] * 1_000)
    turns = 0
    is_over = False

    async def shorten() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            if (turns in {15, 20} or turns % every == 0) and scene.log.log_start_offset < 800:
                before = scene.log.log_start_offset + 10
                await scene.broker.answer(messages.TruncateRequest([messages.TruncatePartition("t", 0, before)]))
                await scene.check()
            if turns == 3:
                scene.append(NOW)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shorten)
        reply, told = await scene.explain(after=949)
        is_over = True
    assert turns > 3
    assert scene.log.log_start_offset >= 20
    assert [segment.base_offset for segment in told] == list(range(950, 1_001))
    assert (reply.latest, told[-1].next_offset, reply.more) == (1_001, 1_001, False)
    assert [segment.state for segment in told] == ["closed"] * 50 + ["active"]
    assert told[0].behind == reply.earliest


async def test_a_topic_that_is_deleted_while_the_disk_is_waited_for_is_unknown() -> None:
    offload = Meddling()
    scene = await cold_scene(offload)
    offload.meddle = lambda: scene.broker.delete_topic(messages.DeleteTopicRequest("t"))
    with pytest.raises(errors.UnknownTopicError, match="was deleted"):
        await scene.explain()


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("retention_ms", (False, False, False)),
        ("file_delete_delay_ms", (True, True, False)),
        ("segment_ms", (True, True, True)),
    ],
)
async def test_a_setting_as_large_as_can_be_means_never(setting: str, told: tuple[bool, bool, bool]) -> None:
    scene = await made(**{setting: messages.INT64_MAX})
    scene.append(NOW)
    [active] = await scene.segments()
    moments = (active.deletable_ms, active.leaves_by_ms, active.gone_by_ms)
    assert tuple(moment is not None for moment in moments) == told
    assert (active.idle_roll_ms is None) == (setting == "segment_ms")


async def test_a_check_that_never_comes_has_the_largest_possible_time(autojump_clock: MockClock) -> None:
    scene = Scene(
        flags=[
            f"log.retention.check.interval.ms={messages.INT64_MAX}",
            f"log.initial.task.delay.ms={messages.INT64_MAX}",
        ]
    )
    await scene.create()
    scene.append(NOW - 11 * MINUTE)
    reply, [active] = await scene.explain()
    assert (reply.next_check_ms, active.rule, active.leaves_by_ms) == (messages.INT64_MAX, "time", None)


async def test_unknown_topics_and_partitions_are_refused_as_everywhere(scene: Scene) -> None:
    with pytest.raises(errors.UnknownTopicError):
        await scene.broker.answer(messages.ExplainSegmentsRequest("nope", 0))
    with pytest.raises(errors.UnknownPartitionError):
        await scene.broker.answer(messages.ExplainSegmentsRequest("t", 7))
