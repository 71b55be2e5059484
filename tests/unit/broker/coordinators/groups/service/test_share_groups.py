"""Share groups in a broker: restarts, the state of their partitions, their settings, and groups of other kinds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config.kafka_configs import Alteration, Operation, ResourceType
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_broker.coordinators.groups.membership import LeavingMember, SyncRequest
from seglog_broker.coordinators.groups.share import ShareHeartbeat
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.share.in_flight import NO_OFFSET
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.messages import DeleteTopicRequest
from tests.logs import ManualClock
from tests.unit.broker.coordinators.groups.service.running import (
    NOW,
    States,
    commit,
    join_request,
    open_broker,
    with_tasks,
    with_topic,
)

FLAGS = ("group.share.assignment.interval.ms=0",)


@asynccontextmanager
async def serving(fs: ForgetfulFileSystem, states: States, *flags: str) -> AsyncIterator[Broker]:
    broker = open_broker(fs, ManualClock(NOW), *FLAGS, *flags)
    broker.groups.shares.states = states
    async with with_tasks(broker):
        yield broker
    broker.close()


@pytest.fixture
async def served(fs: ForgetfulFileSystem) -> AsyncIterator[tuple[Broker, States]]:
    """A broker with the topic ``t``."""
    states = States()
    async with serving(fs, states) as broker:
        await with_topic(broker)
        yield broker, states


async def beat(broker: Broker, group: str, member: str, epoch: int = 0, **changes: Any) -> HeartbeatResult:
    """A heartbeat, after which all that it has set off is done."""
    request = ShareHeartbeat(member, epoch, None, ["t"] if epoch == 0 else None, "app", "/1.2.3.4")
    result = await broker.groups.shares.heartbeat(group, request._replace(**changes))
    await trio.testing.wait_all_tasks_blocked()
    return result


async def joined(broker: Broker, group: str = "g", member: str = "a") -> HeartbeatResult:
    """A member with its partitions."""
    first = await beat(broker, group, member)
    return await beat(broker, group, member, first.member_epoch)


def topic_id(broker: Broker) -> bytes:
    return id_bytes(broker.directory.registry.topics["t"].id)


async def test_a_member_goes_on_after_a_power_cut(fs: ForgetfulFileSystem, served: tuple[Broker, States]) -> None:
    broker, states = served
    told = await joined(broker)
    assert told.assignment == {topic_id(broker): frozenset(range(3))}
    assert states.known == {("g", topic_id(broker)): dict.fromkeys(range(3), NO_OFFSET)}
    assert states.epochs == [2]
    before = broker.groups.describe_share("g")
    [listed] = await broker.groups.list_groups()
    assert (listed.kind, listed.state, listed.protocol_type, listed.members) == ("share", "Stable", "share", 1)
    async with serving(fs.found_after(POWER_LOSS), states) as again:
        after = again.groups.describe_share("g")
        assert after._replace(members=list(after.members)) == before._replace(members=list(before.members))
        assert (await beat(again, "g", "a", told.member_epoch)).assignment is None
        await beat(again, "g", "a", -1)
    assert len(states.epochs) == 1, "once for all"


async def test_a_state_that_cannot_be_made_is_made_with_a_later_heartbeat(served: tuple[Broker, States]) -> None:
    broker, states = served
    states.error = errors.CoordinatorNotAvailableError("the disk is full")
    with capture_logs() as logs:
        told = await joined(broker)
    assert told.assignment is None
    warned = [line for line in logs if line["event"] == "share_state_not_initialized"]
    assert [(line["group"], line["reason"]) for line in warned] == [("g", "the disk is full")] * 2
    states.error = None
    await beat(broker, "g", "a", told.member_epoch)
    assert (await beat(broker, "g", "a", told.member_epoch)).assignment == {topic_id(broker): frozenset(range(3))}


async def test_a_group_is_deleted_with_the_state_of_its_partitions(served: tuple[Broker, States]) -> None:
    broker, states = served
    told = await joined(broker)
    [refused] = await broker.groups.delete(["g"])
    assert isinstance(refused, errors.NonEmptyGroupError)
    await beat(broker, "g", "a", -1)
    states.error = errors.CoordinatorNotAvailableError("the disk is full")
    assert [str(error) for error in await broker.groups.delete(["g"])] == ["the disk is full"]
    states.error = None
    assert await broker.groups.delete(["g"]) == [None]
    assert states.known == {("g", topic_id(broker)): {}}
    assert await broker.groups.list_groups() == []
    with pytest.raises(errors.UnknownGroupError, match="Share group g not found"):
        await beat(broker, "g", "a", told.member_epoch)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_deleted_topic_is_forgotten(
    fs: ForgetfulFileSystem, served: tuple[Broker, States], is_killed: bool
) -> None:
    broker, states = served
    await joined(broker)
    if is_killed:
        broker.groups.shares.sweep.want = lambda: None  # type: ignore[method-assign]
    await broker.delete_topic(DeleteTopicRequest("t"))
    await trio.testing.wait_all_tasks_blocked()
    assert any(broker.groups.shares.find("g").shared) == is_killed
    async with serving(fs.found_after(POWER_LOSS), states) as again:
        await trio.sleep(1)  # until all is loaded
        assert not any(again.groups.shares.find("g").shared)


async def test_administrators_say_where_a_group_without_members_reads(served: tuple[Broker, States]) -> None:
    broker, states = served
    shares, topic = broker.groups.shares, topic_id(broker)
    await shares.alter("g", {topic: {0: 7}})
    assert states.known["g", topic] == {0: 7}
    told = await joined(broker)
    assert (told.assignment, states.known["g", topic]) == ({topic: frozenset(range(3))}, {0: 7, 1: 0, 2: 0})
    with pytest.raises(errors.NonEmptyGroupError):
        await shares.alter("g", {topic: {0: 1}})
    with pytest.raises(errors.NonEmptyGroupError):
        await shares.forget("g", {topic})
    await beat(broker, "g", "a", -1)
    states.error = errors.CoordinatorNotAvailableError("the disk is full")
    for change in (shares.alter("g", {topic: {0: 1}}), shares.forget("g", {topic})):
        with pytest.raises(errors.CoordinatorNotAvailableError):
            await change
    assert shares.find("g").shared.deleting == {topic: "t"}
    states.error = None
    await shares.forget("g", {topic})
    assert (states.known["g", topic], any(shares.find("g").shared)) == ({}, False)
    with pytest.raises(errors.UnknownGroupError):
        await shares.forget("nope", {topic})


async def test_the_settings_of_a_group_are_in_force(served: tuple[Broker, States]) -> None:
    broker, _ = served
    changes = [Alteration("share.heartbeat.interval.ms", Operation.SET, "6000")]
    await broker.configs.alter(ResourceType.GROUP, "own", changes)
    assert (await beat(broker, "own", "a")).heartbeat_interval_ms == 6_000
    assert (await beat(broker, "g", "a")).heartbeat_interval_ms == 5_000


async def test_a_group_without_members_does_not_expire() -> None:
    flags = ("offsets.retention.minutes=1", "offsets.retention.check.interval.ms=60000")
    async with serving(ForgetfulFileSystem(), States(), *flags) as broker:
        await with_topic(broker)
        await beat(broker, "g", "a")
        await beat(broker, "g", "a", -1)
        await trio.sleep(3_600)
        assert [group.state for group in await broker.groups.list_groups()] == ["Empty"]


# --- Groups of other kinds --------------------------------------------------------------------------------------------


async def test_members_of_other_protocols_find_no_group_of_theirs(served: tuple[Broker, States]) -> None:
    """With the errors of a real Kafka 4.4.0."""
    broker, _ = served
    groups = broker.groups
    await joined(broker)
    refused = await groups.join("g", join_request())
    assert isinstance(refused.error, errors.InconsistentGroupProtocolError)
    synced = await groups.sync("g", SyncRequest("a", 3))
    assert isinstance(synced.error, errors.UnknownMemberError)
    with pytest.raises(errors.UnknownMemberError):
        groups.heartbeat("g", "a", 3)
    [left] = await groups.leave("g", [LeavingMember("a")])
    assert isinstance(left.error, errors.UnknownMemberError)
    for epoch in (0, 3):
        asked = ConsumerHeartbeat("c", epoch, rebalance_timeout_ms=1, topics=["t"], owned={})
        with pytest.raises(errors.UnknownGroupError, match="Group g is not a consumer group"):
            await groups.consumer_heartbeat("g", asked)
    with pytest.raises(errors.UnknownGroupError, match="Group g is not a consumer group"):
        await groups.delete_offsets("g", [("t", 0)])
    with pytest.raises(errors.UnknownGroupError, match="not of the consumer protocol"):
        groups.describe_consumer("g")
    assert groups.committed("g", [("t", 0)])[0].offset == -1
    assert groups.describe("g")[0].kind == "share"


async def test_groups_of_other_kinds_are_no_share_groups(served: tuple[Broker, States]) -> None:
    broker, _ = served
    await commit(broker, "offsets", 1)
    asked = ConsumerHeartbeat("c", 0, rebalance_timeout_ms=1, topics=["t"], owned={})
    await broker.groups.consumer_heartbeat("consumers", asked)
    for group in ("offsets", "consumers"):
        for epoch in (0, 3, -1):
            with pytest.raises(errors.UnknownGroupError, match=f"Group {group} is not a share group"):
                await beat(broker, group, "a", epoch)
        with pytest.raises(errors.UnknownGroupError):
            broker.groups.describe_share(group)
    with pytest.raises(errors.InvalidRequestError, match="GroupId can't be empty"):
        await beat(broker, "", "a")
    assert not broker.groups.has("nope")
