"""Groups of the consumer protocol (KIP-848) in a broker: restarts, power cuts, their settings, their expressions."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import thread_time
from typing import Final

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.config.kafka_configs import Alteration, Operation, ResourceType
from seglog_broker.coordinators.client_patterns import ClientPattern
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.groups.consumer_protocol import assigned_partitions, subscribed_topics
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult, all_topics
from seglog_broker.coordinators.groups.service.topic_matching import PATTERNS_MAX
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.messages import CreateTopicRequest, DeleteTopicRequest
from tests.unit.broker.coordinators.groups.service.running import (
    TogetherClock,
    running,
    with_topic,
)
from tests.unit.broker.coordinators.held_topic import FAILED


def heartbeat(member_id: str, epoch: int, **changes: object) -> ConsumerHeartbeat:
    request = ConsumerHeartbeat(member_id, epoch, client_id="app", client_host="/1.2.3.4")
    if epoch == 0:
        request = request._replace(rebalance_timeout_ms=20_000, topics=["t"], owned={})
    return request._replace(**changes)  # type: ignore[arg-type]


async def assigned(broker: Broker, group: str, member_id: str) -> HeartbeatResult:
    """A member, the only one, which has joined."""
    result = await broker.groups.consumer_heartbeat(group, heartbeat(member_id, 0))
    assert result.assignment is not None
    return result


async def test_one_member_of_the_consumer_protocol(fs: ForgetfulFileSystem, broker: Broker) -> None:
    """A member of the consumer protocol has all partitions and goes on after a restart."""
    topic_id = id_bytes(broker.directory.registry.topics["t"].id)
    joined_at = await assigned(broker, "g", "m-1")
    assert joined_at.assignment == {topic_id: frozenset({0, 1, 2})}
    member = Committer("m-1", joined_at.member_epoch)
    assert await broker.groups.commit("g", member, [OffsetToCommit("t", 0, 5)]) == [None]
    with pytest.raises(errors.StaleMemberEpochError):
        await broker.groups.commit("g", Committer("m-1", 77), [OffsetToCommit("t", 0, 1)])
    with pytest.raises(errors.UnknownMemberError):
        broker.groups.committed("g", None, Committer("m-2", 1))
    described, listed = broker.groups.describe("g")
    assert (described.kind, described.state, described.protocol, listed.kind) == (
        "consumer",
        "Stable",
        "uniform",
        "consumer",
    )
    (one,) = described.members
    assert assigned_partitions(one.assignment) == {"t": [0, 1, 2]}
    assert subscribed_topics([one.metadata]) == frozenset({"t"})
    before = broker.groups.describe_consumer("g")
    members = list(before.members)
    async with running(fs.found_after(POWER_LOSS)) as again:
        after = again.groups.describe_consumer("g")
        assert (after._replace(members=before.members), list(after.members)) == (before, members)
        told = await again.groups.consumer_heartbeat("g", heartbeat("m-1", joined_at.member_epoch))
        assert (told.member_epoch, told.assignment) == (joined_at.member_epoch, None)
        assert again.groups.committed("g", [("t", 0)], member)[0].offset == 5


async def with_empty_group(broker: Broker) -> None:
    """The group g, whose only member has left, with a committed offset."""
    member = await assigned(broker, "g", "m-1")
    await broker.groups.commit("g", Committer("m-1", member.member_epoch), [OffsetToCommit("t", 0, 5)])
    await broker.groups.consumer_heartbeat("g", heartbeat("m-1", -1))


@contextmanager
def failing_writes(broker: Broker) -> Iterator[None]:
    """Nothing can be written to the topic of groups in this block."""
    topic = broker.groups._topic

    def failed(*_: object, **__: object) -> PendingAppends:
        raise FAILED

    append, topic._append_batches = topic._append_batches, failed
    yield
    topic._append_batches = append


async def test_a_group_whose_deletion_could_not_be_written_may_be_deleted_again(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    await with_empty_group(broker)
    assert await broker.groups.delete_offsets("g", [("t", 0)]) == [None]
    with failing_writes(broker):
        (failed,) = await broker.groups.delete(["g"])
        assert isinstance(failed, errors.CoordinatorNotAvailableError)
    assert await broker.groups.delete(["g"]) == [None]
    (unknown,) = await broker.groups.delete(["g"])
    assert isinstance(unknown, errors.UnknownGroupError)
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert await again.groups.list_groups() == []


# --- Settings of single groups: their members of the consumer protocol get them, and those of other groups do not -----


FLAGS: Final = ("group.consumer.min.session.timeout.ms=1000", "group.consumer.min.heartbeat.interval.ms=100")


async def alter(broker: Broker, group: str, **settings: str | None) -> None:
    """Set keys, with ``_`` for ``.``, or delete those that are None."""
    changes = [
        Alteration(key.replace("_", "."), Operation.DELETE if value is None else Operation.SET, value)
        for key, value in settings.items()
    ]
    await broker.configs.alter(ResourceType.GROUP, group, changes)


async def interval_of(broker: Broker, group: str, epoch: int = 0) -> int:
    """The heartbeat interval in the answer to the only member of a group."""
    return (await broker.groups.consumer_heartbeat(group, heartbeat("m", epoch))).heartbeat_interval_ms


def members(broker: Broker, group: str) -> int:
    return len(broker.groups.describe_consumer(group).members)


async def test_members_are_told_the_interval_of_their_group_also_after_a_power_cut(fs: ForgetfulFileSystem) -> None:
    async with running(fs, None, *FLAGS, closes=False) as broker:
        await with_topic(broker)
        await alter(broker, "own", consumer_heartbeat_interval_ms="500")
        assert await interval_of(broker, "own") == 500
        assert await interval_of(broker, "other") == 5_000
        await alter(broker, "own", consumer_heartbeat_interval_ms="700")
        epoch = broker.groups.describe_consumer("own").members[0].epoch
        assert await interval_of(broker, "own", epoch) == 700
    async with running(fs.crash(POWER_LOSS), None, *FLAGS) as broker:
        assert await interval_of(broker, "own", epoch) == 700
        await alter(broker, "own", consumer_heartbeat_interval_ms=None)
        assert await interval_of(broker, "own", epoch) == 5_000


async def test_a_member_is_dead_after_the_session_timeout_of_its_group() -> None:
    async with running(ForgetfulFileSystem(), TogetherClock(), *FLAGS) as broker:
        await with_topic(broker)
        await alter(broker, "own", consumer_session_timeout_ms="2s", consumer_heartbeat_interval_ms="500")
        for group in ("own", "other"):
            await interval_of(broker, group)
        await trio.sleep(1.9)
        assert (members(broker, "own"), members(broker, "other")) == (1, 1)
        await trio.sleep(0.2)
        assert (members(broker, "own"), members(broker, "other")) == (0, 1)
        await trio.sleep(44)
        assert (members(broker, "own"), members(broker, "other")) == (0, 0)


# --- Expressions of members against topics that come and go, in a broker: what is read, and in how many turns ---------


def joins(regex: str, member_id: str = "a") -> ConsumerHeartbeat:
    return heartbeat(member_id, 0, topics=[], regex=regex)


async def make(broker: Broker, *names: str) -> None:
    for name in names:
        await broker.create_topic(CreateTopicRequest(name, 1))


def read_by(broker: Broker, group: str, member_id: str = "a") -> list[str]:
    members = broker.groups.describe_consumer(group).members
    [member] = [member for member in members if member.member_id == member_id]
    return sorted(item.topic for item in member.target)


async def refreshed(broker: Broker, group: str, epoch: int, member_id: str = "a") -> list[str]:
    """What a member reads with its heartbeat after the pause between two looks."""
    await trio.sleep(11)
    await broker.groups.consumer_heartbeat(group, ConsumerHeartbeat(member_id, epoch))
    return read_by(broker, group, member_id)


async def test_so_many_expressions_are_kept_as_they_were_read(broker: Broker) -> None:
    matching = broker.groups._matching
    for number in range(2 * PATTERNS_MAX):
        await matching.match_all(f"t{number}.*", all_topics)
    assert matching._pattern.cache_info().currsize == PATTERNS_MAX


async def test_topics_that_are_made_and_deleted_are_found(broker: Broker) -> None:
    await make(broker, "fruit-1", "other")
    joined = await broker.groups.consumer_heartbeat("g", joins("fruit-.*|__consumer.*"))
    assert read_by(broker, "g") == ["fruit-1"]
    await make(broker, "fruit-2")
    assert await refreshed(broker, "g", joined.member_epoch) == ["__consumer_offsets", "fruit-1", "fruit-2"]
    await broker.delete_topic(DeleteTopicRequest("fruit-1"))
    assert await refreshed(broker, "g", joined.member_epoch + 1) == ["__consumer_offsets", "fruit-2"]


async def test_after_a_restart_topics_of_meanwhile_are_found(fs: ForgetfulFileSystem, broker: Broker) -> None:
    await make(broker, "fruit-1")
    joined = await broker.groups.consumer_heartbeat("g", joins("fruit-.*"))
    await make(broker, "fruit-2")
    async with running(fs.found_after(POWER_LOSS)) as again:
        await again.groups.consumer_heartbeat("g", ConsumerHeartbeat("a", joined.member_epoch))  # for whom
        assert await refreshed(again, "g", joined.member_epoch) == ["fruit-1", "fruit-2"]


async def test_topics_that_a_member_may_not_see_are_none_of_its_group(fs: ForgetfulFileSystem, broker: Broker) -> None:
    """Those that are there, that come later, and that are found after a restart, when a member is heard of."""

    def may_see(topic: str) -> bool:
        return not topic.endswith("hidden")

    await make(broker, "fruit-1", "fruit-hidden")
    joined = await broker.groups.consumer_heartbeat("g", joins("fruit-.*"), may_see)
    assert read_by(broker, "g") == ["fruit-1"]
    await make(broker, "fruit-2", "fruit-2-hidden")
    await trio.sleep(11)
    joined = await broker.groups.consumer_heartbeat("g", ConsumerHeartbeat("a", joined.member_epoch), may_see)
    assert read_by(broker, "g") == ["fruit-1", "fruit-2"]
    await make(broker, "fruit-3", "fruit-3-hidden")
    async with running(fs.found_after(POWER_LOSS)) as again:
        await trio.sleep(3)
        for _ in range(2):
            joined = await again.groups.consumer_heartbeat("g", ConsumerHeartbeat("a", joined.member_epoch), may_see)
            await trio.sleep(11)
        assert read_by(again, "g") == ["fruit-1", "fruit-2", "fruit-3"]


async def test_many_expressions_meet_a_new_topic_in_turns_and_each_once(broker: Broker) -> None:
    """However many expressions there are: one of them, and one name, in a turn of the loop."""
    await make(broker, "fruit-1")
    for member in range(30):
        for group in ("g", "h"):
            await broker.groups.consumer_heartbeat(group, joins(f"fruit-.*|x{member}", f"m{member}"))
    await trio.sleep(3)
    work: list[tuple[int, str]] = []
    turns = 0

    class Noted(ClientPattern):
        def matching(
            self, names: Iterable[str], processor_seconds: Callable[[], float] = thread_time
        ) -> Iterator[str | None]:
            names = list(names)
            work.extend((turns, name) for name in names)
            return super().matching(names, processor_seconds)

    broker.groups._matching._pattern = lru_cache(PATTERNS_MAX)(Noted)
    async with trio.open_nursery() as nursery:

        async def count_turns() -> None:
            nonlocal turns
            while turns < math.inf:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count_turns)
        await make(broker, "fruit-2")
        for _ in range(2_000):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [name for _, name in work] == ["fruit-2"] * 30, "once for both groups"
    assert len({turn for turn, _ in work}) == 30
