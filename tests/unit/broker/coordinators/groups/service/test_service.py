"""Groups on the forgetful disk: when they are answered, what a restart or a power cut leaves, when offsets expire."""

import errno
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.membership import LeavingMember
from seglog_broker.coordinators.groups.service.native import OFFSETS_A_TURN
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC
from seglog_protocol.messages import (
    CommittedOffsetsReply,
    CommittedOffsetsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    GroupPartition,
)
from tests.appends import append_batch
from tests.logs import ManualClock, batch
from tests.support import each_case
from tests.unit.broker.api.monitoring.test_topic_sources import samples, value
from tests.unit.broker.coordinators.groups.service.running import (
    MINUTE_MS,
    NOW,
    RETENTION_MS,
    TogetherClock,
    commit,
    committed,
    join_request,
    joined,
    open_broker,
    running,
    with_topic,
)

# --- Commits ----------------------------------------------------------------------------------------------------------


async def test_what_is_committed_is_found_again_after_a_stop_and_after_a_power_cut(fs: ForgetfulFileSystem) -> None:
    async with running(fs) as broker:
        await with_topic(broker)
        offsets = [OffsetToCommit("t", 0, 5, 0, "note"), OffsetToCommit("t", 2, 7)]
        assert await broker.groups.commit("g", Committer(), offsets) == [None, None]
        assert broker.directory.registry.topics[OFFSETS_TOPIC].config["cleanup.policy"] == "compact"
        before = broker.groups.committed("g", None)
        assert before == [
            Committed("t", 0, 5, 0, "note", NOW, NOW + RETENTION_MS),
            Committed("t", 2, 7, -1, "", NOW, NOW + RETENTION_MS),
        ]
        lost = fs.found_after(POWER_LOSS)
    for found in (fs, lost):
        async with running(found) as broker:
            assert broker.groups.committed("g", None) == before
            assert broker.groups.committed("g", [("t", 1), ("t", 2)]) == [Committed("t", 1), before[1]]
            assert broker.groups.committed("other", None) == []


async def test_the_log_names_commits_beyond_the_log_end_and_is_not_filled_by_them(broker: Broker) -> None:
    with capture_logs() as logged:
        for hour in range(2):
            for offset in (10, 11 + hour, 500, 9, 12):
                await commit(broker, "g", offset)
            await commit(broker, "g", 13, partition=1)
            await trio.sleep(3_600)
        for number in range(120):
            await commit(broker, f"g-{number}", 500)
    assert committed(broker, "g") == 12, "it is taken, as by Kafka"
    beyond = [line for line in logged if line["event"] == "committed_beyond_log_end"]
    told = [(line["group"], line["topic"], line["partition"], line["offset"]) for line in beyond]
    assert told[:4] == [("g", "t", 0, 11), ("g", "t", 1, 13), ("g", "t", 0, 12), ("g", "t", 1, 13)]
    assert {line["log_end_offset"] for line in beyond} == {10}
    assert len(told) == 4 + 100


async def test_what_could_not_be_written_is_an_error_and_the_former_commit_stays(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    await commit(broker, "g", 5)
    fs.inject(Fault("pwritev", f"{OFFSETS_TOPIC}-0/00000000000000000000.log", error=errno.EIO, sticky=True))
    (failed,) = await broker.groups.commit("g", Committer(), [OffsetToCommit("t", 0, 6)])
    assert isinstance(failed, errors.CoordinatorNotAvailableError)
    assert failed.retriable
    assert committed(broker, "g") == 5


@each_case(
    ("offset", "error"),
    [
        (OffsetToCommit("unknown", 0, 1), errors.UnknownTopicError),
        (OffsetToCommit("t", 3, 1), errors.UnknownPartitionError),
        (OffsetToCommit("t", -1, 1), errors.UnknownPartitionError),
        (OffsetToCommit("t", 1, 1, metadata="é" * 2049), errors.MetadataTooLargeError),
    ],
)
async def test_a_bad_offset_is_an_error_of_its_own(offset: OffsetToCommit, error: type[errors.SeglogError]) -> None:
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        good = OffsetToCommit("t", 0, 4, metadata="é" * 2048)
        results = await broker.groups.commit("g", Committer(), [offset, good])
        assert isinstance(results[0], error)
        assert results[1] is None
        assert committed(broker, "g") == 4


async def test_a_commit_that_cannot_be_encoded_leaves_no_other_under_way(broker: Broker) -> None:
    offsets = [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1, metadata="\ud800")]
    with pytest.raises(UnicodeEncodeError):
        await broker.groups.commit("g", Committer(), offsets)
    assert not broker.groups._offsets.is_under_way("g", ("t", 0))


async def test_the_errors_of_many_offsets_and_groups_hold_no_frames(broker: Broker) -> None:
    """A frame holds the results: such a cycle was kept for ever where it had survived two collections of garbage."""
    offsets = [OffsetToCommit("t", 99, 1), OffsetToCommit("none", 0, 1)]
    results = await broker.groups.commit("g", Committer(), offsets)
    results += await broker.groups.delete(["none"])
    created = await broker.create_topics([CreateTopicRequest("t", 1), CreateTopicRequest("", 1)])
    for error in [*results, *created]:
        assert isinstance(error, errors.SeglogError)
        assert error.__traceback__ is None


async def test_committed_offsets_are_looked_up_in_turns() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    async with running(ForgetfulFileSystem(), None, "seglog.handles.max=50") as broker:
        await broker.create_topic(CreateTopicRequest("t", 300))
        await broker.groups.commit("g", Committer(), [OffsetToCommit("t", number, number) for number in range(300)])
        broker._native_groups._scheduler = cast("Scheduler", SimpleNamespace(turn=turn))
        for asked in (None, [GroupPartition("t", number) for number in range(400)]):
            reply, _ = await broker.answer(CommittedOffsetsRequest("g", asked))
            assert isinstance(reply, CommittedOffsetsReply)
            found = [(item.partition, item.offset) for item in reply.offsets]
            assert found == [
                (number, number if number < 300 else None) for number in range(300 if asked is None else 400)
            ]
    assert turns == 300 // OFFSETS_A_TURN + 400 // OFFSETS_A_TURN


@each_case(
    ("call", "error"),
    [
        (lambda groups: groups.commit("", Committer("nobody", 3), []), errors.IllegalGenerationError),
        (lambda groups: groups.commit("g", Committer("nobody", 3), []), errors.IllegalGenerationError),
        (lambda groups: groups.commit("x" * 40_000, Committer(), []), errors.InvalidGroupIdError),
        (lambda groups: groups.leave("", []), errors.InvalidGroupIdError),
        (lambda groups: groups.delete_offsets("", []), errors.InvalidGroupIdError),
        (lambda groups: groups.delete_offsets("x" * 40_000, []), errors.InvalidGroupIdError),
        (lambda groups: groups.delete_offsets("g", []), errors.UnknownGroupError),
    ],
)
async def test_bad_requests_are_typed_errors(
    call: Callable[[object], Awaitable[object]], error: type[errors.SeglogError]
) -> None:
    async with running(ForgetfulFileSystem()) as broker:
        with pytest.raises(error):
            await call(broker.groups)


# --- Members ----------------------------------------------------------------------------------------------------------


async def test_members_are_members_again_after_a_restart_and_generations_do_not_go_back(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    member = await joined(broker, "g")
    assert member.generation == broker.groups.facts("g").rebalances == 1
    async with running(fs.found_after(POWER_LOSS)) as again:
        again.groups.heartbeat("g", member.member_id, 1)
        with pytest.raises(errors.IllegalGenerationError):
            again.groups.heartbeat("g", member.member_id, 0)
        with pytest.raises(errors.UnknownMemberError):
            again.groups.heartbeat("g", "another", 1)
        assert again.groups.facts("g").rebalances == 0
        assert (await again.groups.join("g", join_request(member.member_id))).generation == 2
        assert again.groups.facts("g").rebalances == 1, "since the start"
        await again.groups.leave("g", [LeavingMember(member.member_id)])
        assert await again.groups.delete(["g"]) == [None]
        await joined(again, "g")
        assert again.groups.facts("g").rebalances == 1, "of another group"


async def test_a_join_that_is_refused_leaves_no_group_behind(broker: Broker) -> None:
    result = await broker.groups.join("g", join_request(session_timeout_ms=1))
    assert isinstance(result.error, errors.InvalidSessionTimeoutError)
    assert await broker.groups.list_groups() == []


# --- Deleted, listed --------------------------------------------------------------------------------------------------


async def test_deleted_groups_stay_deleted(fs: ForgetfulFileSystem, broker: Broker) -> None:
    member = await joined(broker, "g")
    await broker.groups.commit("g", Committer(member.member_id, 1), [OffsetToCommit("t", 0, 3)])
    await commit(broker, "parked", 2)
    assert value(broker, "seglog_group_lag", "parked", "t", "0") is not None
    results = await broker.groups.delete(["g", "parked", "unknown"])
    for family in ("seglog_group_lag", "seglog_group_time_to_loss_seconds"):
        assert "parked" not in {label for sample in samples(broker, family) for label in sample.labels}, "no alert"
    assert isinstance(results[0], errors.NonEmptyGroupError)
    assert results[1] is None
    assert isinstance(results[2], errors.UnknownGroupError)
    await broker.groups.leave("g", [LeavingMember(member.member_id)])
    assert await broker.groups.delete(["g"]) == [None]
    assert await broker.groups.list_groups() == []
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert await again.groups.list_groups() == []


async def test_groups_are_listed_by_name_and_page(broker: Broker) -> None:
    for group in ("b", "a", "c"):
        await commit(broker, group, 1)
    await joined(broker, "bb")
    assert [listed.group for listed in await broker.groups.list_groups()] == ["a", "b", "bb", "c"]
    (listed,) = await broker.groups.list_groups("b", 1)
    assert (listed.group, listed.state, listed.protocol_type, listed.members) == ("bb", "Stable", "consumer", 1)
    (listed,) = await broker.groups.list_groups(None, 1)
    assert (listed.state, listed.protocol_type, listed.partitions) == ("Empty", "", 1)
    assert listed.expires_ms == NOW + RETENTION_MS


async def test_groups_that_are_not_loaded_yet_are_not_left_out_in_silence(fs: ForgetfulFileSystem) -> None:
    async with running(fs) as broker:
        await with_topic(broker)
        await commit(broker, "g", 1)
    broker = open_broker(fs, ManualClock(NOW))
    for ask in (
        broker.groups.list_groups,
        lambda: broker.groups.commit("g", Committer(), []),
        lambda: broker.groups.delete_offsets("g", []),
    ):
        with pytest.raises(errors.CoordinatorLoadingError):
            await ask()
    assert isinstance((await broker.groups.join("g", join_request())).error, errors.CoordinatorLoadingError)
    broker.close()


# --- Topics -----------------------------------------------------------------------------------------------------------


async def test_commits_of_a_recreated_topic_stay(fs: ForgetfulFileSystem) -> None:
    """Commits of a topic made again under its name outlive the search for those of the other."""
    groups = [f"g-{number}" for number in range(140)]
    async with running(fs) as broker:
        await with_topic(broker)
        await with_topic(broker, "other")
        for group in groups:
            for topic in ("t", "other"):
                await commit(broker, group, 5, topic=topic)
        again = groups[::7]
        with capture_logs() as logged:
            await broker.delete_topic(DeleteTopicRequest("t"))
            await broker.create_topic(CreateTopicRequest("t", 3))
            assert {committed(broker, group) for group in groups} == {-1}
            assert {found.topic for group in groups for found in broker.groups.committed(group, None)} == {"other"}
            async with trio.open_nursery() as nursery:
                for group in again:
                    nursery.start_soon(commit, broker, group, 0)
            await trio.testing.wait_all_tasks_blocked()
        lines = [line for line in logged if line["event"] == "committed_offsets_forgotten"]
        assert len({line["group"] for line in lines}) == len(lines) == 100, "many do not fill the log"
        (total,) = (line for line in logged if line["event"] == "committed_offsets_forgotten_total")
        assert len(groups) - len(again) <= total["groups"] == total["partitions"] <= len(groups)
        before = {group: broker.groups.committed(group, None) for group in groups}
    async with running(fs) as broker:
        assert {group: broker.groups.committed(group, None) for group in groups} == before
        for group in groups:
            assert committed(broker, group) == (0 if group in again else -1)
            assert broker.groups.committed(group, [("other", 0)])[0].offset == 5


async def test_a_commit_for_a_topic_that_was_deleted_is_none_for_the_next_one_of_its_name(broker: Broker) -> None:
    former = broker.directory.registry.topics["t"].id
    assert await broker.groups.commit("g", Committer(), [OffsetToCommit("t", 0, 5, topic_id=former)]) == [None]
    await broker.delete_topic(DeleteTopicRequest("t"))
    await with_topic(broker)
    (refused,) = await broker.groups.commit("g", Committer(), [OffsetToCommit("t", 0, 6, topic_id=former)])
    assert isinstance(refused, errors.InconsistentTopicIdError)
    assert (refused.topic, refused.topic_id) == ("t", broker.directory.registry.topics["t"].id)
    assert not refused.retriable
    assert committed(broker, "g") == -1


async def test_a_commit_under_way_while_its_topic_is_deleted_is_not_one_of_the_next_topic(broker: Broker) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit, broker, "g", 5)
        nursery.start_soon(broker.delete_topic, DeleteTopicRequest("t"))
    await with_topic(broker)
    assert committed(broker, "g") == -1
    await trio.testing.wait_all_tasks_blocked()
    assert committed(broker, "g") == -1


# --- After a crash ----------------------------------------------------------------------------------------------------


async def test_a_clamped_offset_is_answered_when_durable(fs: ForgetfulFileSystem) -> None:
    """An offset that is set back is answered when a second crash does not bring it forward."""
    data = batch(*(b"w" for _ in range(5)))
    async with running(fs, closes=False) as broker:
        await with_topic(broker)
        append_batch(broker, data)
        await commit(broker, "g", 15)
    fs = fs.crash(POWER_LOSS)
    broker = open_broker(fs, ManualClock(NOW))
    refusals = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.groups.run)
        while True:
            try:
                assert committed(broker, "g") == 10
            except errors.CoordinatorLoadingError as error:
                refusals.append(error.message)
                await trio.lowlevel.checkpoint()
            else:
                break
        append_batch(broker, data)  # the log has offset 14 again, of another record
        nursery.cancel_scope.cancel()
    assert any("t-0 is being compared" in refusal for refusal in refusals)
    async with running(fs.crash(PROCESS_KILL)) as broker:
        assert broker.directory.logs["t", 0].log_end_offset == 15
        assert committed(broker, "g") == 10


async def test_many_clamped_groups_do_not_fill_the_log(fs: ForgetfulFileSystem) -> None:
    async with running(fs, closes=False) as broker:
        await with_topic(broker, partitions=7)
        for number in range(7):
            data = batch(*(b"w" for _ in range(5)))
            append_batch(broker, data, partition=number)
        offsets = [OffsetToCommit("t", number, 15) for number in range(7)]
        for number in range(110):
            assert await broker.groups.commit(f"g-{number}", Committer(), offsets) == [None] * 7
    fs = fs.crash(POWER_LOSS)
    with capture_logs() as logged:
        async with running(fs) as broker:
            assert {committed(broker, f"g-{group}", number) for group in range(110) for number in range(7)} == {10}
            await trio.sleep(1)
    lines = [line for line in logged if line["event"] == "committed_offsets_clamped"]
    assert len(lines) == 100
    assert (lines[0]["partitions"], len(lines[0]["first"])) == (7, 5)
    assert lines[0]["first"][0] == {"topic": "t", "partition": 0, "committed": 15, "log_end_offset": 10}
    (total,) = (line for line in logged if line["event"] == "committed_offsets_clamped_total")
    assert (total["groups"], total["partitions"]) == (110, 770)


# --- Expiry -----------------------------------------------------------------------------------------------------------


async def test_offsets_of_an_empty_group_expire_and_then_the_group_does() -> None:
    clock = TogetherClock()
    fs = ForgetfulFileSystem()
    flags = ["offsets.retention.minutes=10", "offsets.retention.check.interval.ms=60000"]
    async with running(fs, clock, *flags) as broker:
        await with_topic(broker)
        await commit(broker, "parked", 1)
        member = await joined(broker, "g")
        await broker.groups.commit("g", Committer(member.member_id, 1), [OffsetToCommit("t", 0, 3)])
        for _ in range(100):
            await trio.sleep(9)  # 15 minutes: longer than the retention
            broker.groups.heartbeat("g", member.member_id, 1)
        assert committed(broker, "g") == 3, "a group with members keeps its offsets"
        assert broker.groups.committed("g", None)[0].expires_ms is None
        assert committed(broker, "parked") == -1
        await broker.groups.leave("g", [LeavingMember(member.member_id)])
        left_ms = clock.now_ms()
        _, listed = broker.groups.describe("g")
        assert listed.empty_since_ms == left_ms
        assert listed.expires_ms == left_ms + 10 * MINUTE_MS
        await trio.sleep(9 * 60)
        assert committed(broker, "g") == 3
        await trio.sleep(3 * 60)
        assert await broker.groups.list_groups() == []
    async with running(fs, clock, *flags) as broker:
        assert await broker.groups.list_groups() == []


@pytest.mark.parametrize("minutes", [1, 10, 60])
async def test_the_log_warns_once_before_offsets_expire_however_short_the_retention(minutes: int) -> None:
    clock = TogetherClock()
    flags = [f"offsets.retention.minutes={minutes}", "offsets.retention.check.interval.ms=600000"]
    with capture_logs() as logged:
        async with running(ForgetfulFileSystem(), clock, *flags) as broker:
            await with_topic(broker)
            for number in range(20):
                await commit(broker, f"g-{number}", 1)
                await trio.sleep(37)
            await trio.sleep(60 * minutes + 600)
            assert await broker.groups.list_groups() == []
    for number in range(20):
        told = [line["event"] for line in logged if line.get("group") == f"g-{number}"]
        assert told == ["committed_offsets_expire_soon", "committed_offsets_expired"]


async def test_a_commit_under_way_while_the_one_before_expires_is_kept() -> None:
    clock = ManualClock(NOW)
    fs = ForgetfulFileSystem()
    flags = ["offsets.retention.minutes=1"]
    async with running(fs, clock, *flags) as broker:
        await with_topic(broker)
        await commit(broker, "g", 1)
        clock.now += 2 * MINUTE_MS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, broker, "g", 2)
            while not broker.groups._offsets.is_under_way("g", ("t", 0)):
                await trio.lowlevel.checkpoint()
            assert not broker.groups._expiry._expired("g", clock.now)
            await broker.groups._expiry._sweep.sweep()
        assert committed(broker, "g") == 2
    async with running(fs, clock, *flags) as broker:
        assert committed(broker, "g") == 2


async def test_nothing_expires_right_after_the_wall_clock_jumped() -> None:
    clock = TogetherClock()
    flags = ["offsets.retention.minutes=10", "offsets.retention.check.interval.ms=60000"]
    async with running(ForgetfulFileSystem(), clock, *flags) as broker:
        await with_topic(broker)
        await commit(broker, "g", 1)
        clock.ahead_ms = 3_600_000
        await trio.sleep(300)  # five checks
        assert committed(broker, "g") == 1
        clock.ahead_ms = 0
        await trio.sleep(120)
        assert committed(broker, "g") == 1


async def test_groups_of_one_request_are_deleted_by_a_few_writes() -> None:
    writes = 0
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        groups = [f"g{number}" for number in range(300)]
        for group in groups:
            await commit(broker, group, 5)
        log = broker.partitions.partition(OFFSETS_TOPIC, 0).log
        before = log.log_end_offset
        append = broker.groups._topic._append_batches

        def counted(*arguments: Any, **options: Any) -> PendingAppends:
            nonlocal writes
            writes += 1
            return append(*arguments, **options)

        broker.groups._topic._append_batches = counted
        *deleted, unknown = await broker.groups.delete([*groups, "g0", "unknown"])
        assert deleted == [None] * 301
        assert isinstance(unknown, errors.UnknownGroupError)
        assert log.log_end_offset == before + 300
        assert writes < 20
        assert await broker.groups.list_groups() == []
