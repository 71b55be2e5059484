"""Sessions that end and groups that rebalance because a test says so, as members of both protocols see it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from seglog_broker.listeners.serving import serve_kafka
from seglog_broker.testing.request_faults import RequestFaults
from seglog_protocol.errors import UnknownGroupError, UnknownMemberError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka


class Member:
    """A member of a group, on a connection of its own."""

    def __init__(self, peer: KafkaPeer, group: str, instance: str | None) -> None:
        self.peer = peer
        self.group = group
        self.instance = instance
        self.id = ""
        self.generation = -1

    @classmethod
    async def of(cls, served: KafkaServed, group: str, instance: str | None = None) -> "Member":
        return cls(await served.connect(), group, instance)

    def _named(self) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": self.id, "group_instance_id": self.instance}

    async def ask_to_join(self) -> None:
        cls = messages.JoinGroupRequest
        protocols = [cls.JoinGroupRequestProtocol(name="range", metadata=b"metadata")]
        request = cls(
            **self._named(),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        await self.peer.send(request, 9)

    async def joined(self) -> messages.JoinGroupResponse:
        told = await self.peer.receive(messages.JoinGroupResponse)
        self.id, self.generation = told.member_id, told.generation_id
        return told

    async def join(self) -> messages.JoinGroupResponse:
        """Join, once more where the id is told first."""
        await self.ask_to_join()
        told = await self.joined()
        if told.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            assert self.instance is None
            await self.ask_to_join()
            told = await self.joined()
        return told

    async def sync(self, *assigned: str) -> Any:
        cls = messages.SyncGroupRequest
        assignments = [cls.SyncGroupRequestAssignment(member_id=m, assignment=m.encode()) for m in assigned]
        request = cls(
            **self._named(),
            generation_id=self.generation,
            assignments=assignments,
            protocol_type="consumer",
            protocol_name="range",
        )
        return await self.peer.ask(request, 5)

    async def heartbeat(self) -> Any:
        request = messages.HeartbeatRequest(**self._named(), generation_id=self.generation)
        return (await self.peer.ask(request, 4)).error_code


@asynccontextmanager
async def faulty_groups() -> AsyncIterator[tuple[KafkaServed, RequestFaults]]:
    faults = RequestFaults()
    async with kafka("group.initial.rebalance.delay.ms=0", serve=partial(serve_kafka, faults=faults)) as served:
        faults.begin(served.broker)
        yield served, faults


async def two_members(served: KafkaServed) -> tuple[Member, Member]:
    """A stable group of two, the first of which leads."""
    leader, follower = await Member.of(served, "workers"), await Member.of(served, "workers", instance="static-2")
    await leader.join()
    await leader.sync(leader.id)
    await follower.ask_to_join()
    while await leader.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:  # else it may be alone once more
        await trio.lowlevel.checkpoint()
    await settle(leader, follower, joins=[leader])
    return leader, follower


async def settle(*members: Member, joins: Sequence[Member]) -> None:
    """Let these join, the others have asked to, and the leader assign."""
    for member in joins:
        await member.ask_to_join()
    leader = ""
    for member in members:
        told = await member.joined()
        assert told.error_code == ErrorCode.NONE
        leader = told.leader
    for member in sorted(members, key=lambda member: member.id != leader):
        assigned = [each.id for each in members] if member.id == leader else []
        assert (await member.sync(*assigned)).error_code == ErrorCode.NONE


async def test_a_member_whose_session_ends_learns_it_and_joins_again_and_the_others_rebalance() -> None:
    async with faulty_groups() as (served, faults):
        leader, follower = await two_members(served)
        faults.expire_session("workers", leader.id)
        assert await leader.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        leader.id = ""
        await leader.ask_to_join()
        assert (await leader.joined()).error_code == ErrorCode.MEMBER_ID_REQUIRED
        await settle(follower, leader, joins=[leader, follower])


@pytest.mark.parametrize("by", ["instance id", "member id"])
async def test_a_static_member_is_known_by_either_id(by: str) -> None:
    async with faulty_groups() as (served, faults):
        _, follower = await two_members(served)
        faults.expire_session("workers", "static-2" if by == "instance id" else follower.id)
        assert await follower.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_rebalance_leaves_the_members_their_ids() -> None:
    async with faulty_groups() as (served, faults):
        members = await two_members(served)
        ids, generation = [member.id for member in members], members[0].generation
        faults.rebalance("workers")
        faults.rebalance("workers")  # it is under way
        for member in members:
            assert await member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        await settle(*members, joins=members)
        assert [member.id for member in members] == ids
        assert {member.generation for member in members} == {generation + 1}


async def test_members_that_wait_for_the_leader_are_told_to_join_again() -> None:
    async with faulty_groups() as (served, faults):
        member = await Member.of(served, "workers")
        await member.join()
        faults.rebalance("workers")
        assert await member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


class ConsumerMember:
    """A member of the consumer protocol."""

    def __init__(self, peer: KafkaPeer, member_id: str) -> None:
        self.peer = peer
        self.member_id = member_id
        self.epoch = 0

    async def heartbeat(self) -> int:
        options: dict[str, Any] = {}
        if self.epoch == 0:
            options = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["plain"], "topic_partitions": []}
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id="workers", member_id=self.member_id, member_epoch=self.epoch, **options
        )
        told = await self.peer.ask(request, 1)
        if told.error_code == ErrorCode.NONE:
            self.epoch = told.member_epoch
        return int(told.error_code)


async def test_members_of_the_consumer_protocol_get_another_epoch_and_lose_sessions() -> None:
    async with faulty_groups() as (served, faults):
        first = ConsumerMember(await served.connect(), "m-0")
        for _ in range(2):
            assert await first.heartbeat() == ErrorCode.NONE
        epoch = first.epoch
        faults.rebalance("workers")
        assert await first.heartbeat() == ErrorCode.NONE
        assert first.epoch == epoch + 1
        faults.expire_session("workers", "m-0")
        assert await first.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        first.epoch = 0
        assert await first.heartbeat() == ErrorCode.NONE
        assert first.epoch > epoch + 1


async def test_unknown_groups_and_members_are_answered_with_those_that_there_are() -> None:
    async with faulty_groups() as (served, faults):
        with pytest.raises(UnknownGroupError, match="there are none"):
            faults.rebalance("workers")
        leader, follower = await two_members(served)
        with pytest.raises(UnknownGroupError, match="groups with members: 'workers'"):
            faults.expire_session("worker", leader.id)
        with pytest.raises(UnknownMemberError, match=leader.id) as unknown:
            faults.expire_session("workers", "nobody")
        assert follower.id in str(unknown.value)
        with pytest.raises(UnknownMemberError, match="has 2 members 'test'"):
            faults.expire_session("workers", "test")
