"""Groups of the consumer protocol (KIP-848) on the forgetful disk: restarts, power cuts, the other protocol."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.groups.consumer_protocol import assigned_partitions, subscribed_topics
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from seglog_broker.coordinators.groups.membership import LeavingMember
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.engine.pending_appends import PendingAppends
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.messages import AlterTopicRequest
from tests.unit.broker.coordinators.groups.service.running import (
    committed,
    join_request,
    joined,
    running,
)
from tests.unit.broker.coordinators.held_topic import FAILED


def heartbeat(member_id: str, epoch: int, **changes: object) -> ConsumerHeartbeat:
    request = ConsumerHeartbeat(member_id, epoch, client_id="app", client_host="/1.2.3.4")
    if epoch == 0:
        request = request._replace(rebalance_timeout_ms=20_000, topics=["t"], owned={})
    return request._replace(**changes)  # type: ignore[arg-type]


async def assigned(broker: Broker, group: str, member_id: str) -> ConsumerHeartbeatResult:
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


async def test_a_member_gets_partitions_that_are_added(broker: Broker) -> None:
    topic_id = id_bytes(broker.directory.registry.topics["t"].id)
    first = await assigned(broker, "g", "m-1")
    await broker.alter_topic(AlterTopicRequest("t", partitions=4))
    told = await broker.groups.consumer_heartbeat("g", heartbeat("m-1", first.member_epoch))
    assert told.assignment == {topic_id: frozenset(range(4))}


async def test_a_member_may_commit_with_an_older_epoch_what_it_has_had_since(broker: Broker) -> None:
    topic_id = id_bytes(broker.directory.registry.topics["t"].id)
    for member_id in ("m-1", "m-2"):
        await broker.groups.consumer_heartbeat("g", heartbeat(member_id, 0, assignor="range"))
    told = await broker.groups.consumer_heartbeat("g", heartbeat("m-1", 1))
    assert told.assignment == {topic_id: frozenset({0, 1})}
    await broker.groups.consumer_heartbeat("g", heartbeat("m-1", 1, owned=told.assignment))

    async def committed_by(epoch: int, *partitions: int) -> list[errors.SeglogError | None]:
        offsets = [OffsetToCommit("t", number, 5) for number in partitions]
        return await broker.groups.commit("g", Committer("m-1", epoch), offsets)

    [result, unknown] = await committed_by(1, 0, 7)
    assert (result, type(unknown)) == (None, errors.UnknownPartitionError)
    for epoch, partitions in ((1, (0, 2)), (3, (0,))):
        with pytest.raises(errors.StaleMemberEpochError):
            await committed_by(epoch, *partitions)
    with pytest.raises(errors.StaleMemberEpochError):
        broker.groups.committed("g", [("t", 0)], Committer("m-1", 1))


async def test_a_refused_first_heartbeat_leaves_no_group_behind(broker: Broker) -> None:
    with pytest.raises(errors.UnsupportedAssignorError):
        await broker.groups.consumer_heartbeat("g", heartbeat("m-1", 0, assignor="none"))
    with pytest.raises(errors.UnknownMemberError):
        await broker.groups.consumer_heartbeat("g", heartbeat("m-1", 3))
    with pytest.raises(errors.InvalidRequestError):
        await broker.groups.consumer_heartbeat("g", heartbeat("m-1", -3))
    assert await broker.groups.list_groups() == []


async def test_a_deleted_group_of_the_consumer_protocol_stays_deleted(fs: ForgetfulFileSystem, broker: Broker) -> None:
    joined_at = await assigned(broker, "g", "m-1")
    (refused,) = await broker.groups.delete(["g"])
    assert isinstance(refused, errors.NonEmptyGroupError)
    assert refused.members == ["m-1"]
    await broker.groups.consumer_heartbeat("g", heartbeat("m-1", -1))
    assert joined_at.member_epoch > 0
    assert await broker.groups.delete(["g"]) == [None]
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert await again.groups.list_groups() == []


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


async def test_a_group_after_a_failed_deletion(fs: ForgetfulFileSystem, broker: Broker) -> None:
    """A group made after a deletion that could not be written has nothing of its predecessor."""
    assert (await assigned(broker, "g", "m-1")).member_epoch == 1
    await broker.groups.consumer_heartbeat("g", heartbeat("m-1", -1))
    with failing_writes(broker):
        await broker.groups.delete(["g"])
    classic = await broker.groups.join("g", join_request(needs_known_member_id=False))
    assert classic.error is None
    before, _ = broker.groups.describe("g")
    async with running(fs.found_after(POWER_LOSS)) as again:
        after, _ = again.groups.describe("g")
        assert (after.kind, after.generation) == (before.kind, before.generation)


async def test_an_empty_group_changes_to_the_other_protocol_and_back_with_its_offsets(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    classic = await joined(broker, "g")
    await broker.groups.commit("g", Committer(classic.member_id, classic.generation), [OffsetToCommit("t", 0, 5)])
    await broker.groups.leave("g", [LeavingMember(classic.member_id)])
    member = await assigned(broker, "g", "m-1")
    assert broker.groups.describe("g")[0].kind == "consumer"
    await broker.groups.commit("g", Committer("m-1", member.member_epoch), [OffsetToCommit("t", 1, 6)])
    await broker.groups.consumer_heartbeat("g", heartbeat("m-1", -1))
    assert (await joined(broker, "g")).error is None
    assert broker.groups.describe("g")[0].kind == "classic"
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert again.groups.describe("g")[0].kind == "classic"
        assert (committed(again, "g", 0), committed(again, "g", 1)) == (5, 6)
