"""Groups over Kafka's wire in front of the real service: the whole life of a group in every version, and bad input."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka

pytestmark = pytest.mark.trio

AT_ONCE: Final = "group.initial.rebalance.delay.ms=0"
NONE: Final = ErrorCode.NONE


class Member:
    """A member of a group, on a connection of its own, that speaks certain versions."""

    def __init__(self, peer: KafkaPeer, group: str, version: int = 9, instance: str | None = None) -> None:
        self.peer = peer
        self.group = group
        self.version = version
        self.instance = instance
        self.id = ""
        self.generation = -1
        self.sessions_ms = 10_000
        self.protocols: Sequence[str] = ("range",)
        self.protocol_type = "consumer"

    @classmethod
    async def of(cls, served: KafkaServed, group: str, version: int = 9, instance: str | None = None) -> "Member":
        return cls(await served.connect(), group, version, instance)

    def _version(self, most: int) -> int:
        """Of another api, as high as it was when JoinGroup was at ``version``."""
        return min(most, self.version)

    def _instance(self, version: int, least: int) -> dict[str, Any]:
        return {"group_instance_id": self.instance} if version >= least else {}

    async def ask_to_join(self) -> None:
        cls = messages.JoinGroupRequest
        request = cls(
            group_id=self.group,
            session_timeout_ms=self.sessions_ms,
            rebalance_timeout_ms=60_000,
            member_id=self.id,
            protocol_type=self.protocol_type,
            protocols=[cls.JoinGroupRequestProtocol(name=name, metadata=b"metadata") for name in self.protocols],
            **self._instance(self.version, 5),
        )
        await self.peer.send(request, self.version)

    async def joined(self) -> messages.JoinGroupResponse:
        told = await self.peer.receive(messages.JoinGroupResponse)
        self.id, self.generation = told.member_id, told.generation_id
        return told

    async def join(self) -> messages.JoinGroupResponse:
        """Join, once more where the id is told first."""
        await self.ask_to_join()
        told = await self.joined()
        if told.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            assert self.version >= 4
            assert self.instance is None
            await self.ask_to_join()
            told = await self.joined()
        return told

    async def sync(self, *assigned: str) -> messages.SyncGroupResponse:
        cls = messages.SyncGroupRequest
        version = self._version(5)
        protocol = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        request = cls(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[cls.SyncGroupRequestAssignment(member_id=m, assignment=m.encode()) for m in assigned],
            **self._instance(version, 3),
            **protocol,
        )
        await self.peer.send(request, version)
        return await self.peer.receive(messages.SyncGroupResponse)

    async def heartbeat(self) -> int:
        version = self._version(4)
        request = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id, **self._instance(version, 3)
        )
        await self.peer.send(request, version)
        return (await self.peer.receive(messages.HeartbeatResponse)).error_code

    async def commit(self, offset: int, version: int = 9, *, topic: str = "plain", metadata: str = "note") -> int:
        cls = messages.OffsetCommitRequest
        partition = cls.OffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_metadata=metadata
        )
        named: dict[str, Any] = {"topic_id": self.topic_id} if version >= 10 else {"name": topic}
        request = cls(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[cls.OffsetCommitRequestTopic(partitions=[partition], **named)],
            **self._instance(version, 7),
        )
        await self.peer.send(request, version)
        [topic_] = (await self.peer.receive(messages.OffsetCommitResponse)).topics
        return topic_.partitions[0].error_code

    topic_id: bytes = bytes(16)

    async def committed(self, version: int = 8) -> tuple[int, str | None, int]:
        """Offset, metadata and error for the partition that ``commit`` is about."""
        cls = messages.OffsetFetchRequest
        if version < 8:
            topics = [cls.OffsetFetchRequestTopic(name="plain", partition_indexes=[1])]
            request = cls(group_id=self.group, topics=topics)
        else:
            named: dict[str, Any] = {"topic_id": self.topic_id} if version >= 10 else {"name": "plain"}
            topic = cls.OffsetFetchRequestTopics(partition_indexes=[1], **named)
            request = cls(groups=[cls.OffsetFetchRequestGroup(group_id=self.group, topics=[topic])])
        await self.peer.send(request, version)
        told = await self.peer.receive(messages.OffsetFetchResponse)
        place: Any = (told.groups[0].topics if version >= 8 else told.topics)[0].partitions[0]
        return place.committed_offset, place.metadata, place.error_code

    async def leave(self) -> int:
        cls = messages.LeaveGroupRequest
        version = self._version(5)
        if version < 3:
            await self.peer.send(cls(group_id=self.group, member_id=self.id), version)
            return (await self.peer.receive(messages.LeaveGroupResponse)).error_code
        leaving = [cls.MemberIdentity(member_id=self.id, group_instance_id=self.instance)]
        await self.peer.send(cls(group_id=self.group, members=leaving), version)
        told = await self.peer.receive(messages.LeaveGroupResponse)
        return told.error_code or told.members[0].error_code


async def described(peer: KafkaPeer, group: str, version: int = 6) -> Any:
    await peer.send(messages.DescribeGroupsRequest(groups=[group]), version)
    return (await peer.receive(messages.DescribeGroupsResponse)).groups[0]


async def deleted(peer: KafkaPeer, group: str, version: int = 2) -> int:
    await peer.send(messages.DeleteGroupsRequest(groups_names=[group]), version)
    return (await peer.receive(messages.DeleteGroupsResponse)).results[0].error_code


@each_case("version", range(10))
async def test_the_life_of_a_group_in_every_version(version: int) -> None:
    async with kafka(AT_ONCE) as served:
        one = await Member.of(served, "g", version)
        two = await Member.of(served, "g", version)
        one.topic_id = two.topic_id = served.id_of("plain")
        assert (await one.join()).error_code == NONE
        assert (one.generation, (await one.sync(one.id)).assignment) == (1, one.id.encode())

        if version >= 4:  # the id comes first, and disturbs nobody
            await two.ask_to_join()
            assert (await two.joined()).error_code == ErrorCode.MEMBER_ID_REQUIRED
            assert await one.heartbeat() == NONE
        await two.ask_to_join()
        await wait_all_tasks_blocked()
        assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        leading, following = await one.join(), await two.joined()
        assert (leading.generation_id, following.generation_id) == (2, 2)
        assert leading.leader == following.leader == one.id
        assert sorted(member.member_id for member in leading.members) == sorted([one.id, two.id])
        assert following.members == []
        assert leading.protocol_name == following.protocol_name == "range"
        assert (await one.sync(one.id, two.id)).assignment == one.id.encode()
        assert (await two.sync()).assignment == two.id.encode()
        assert [await one.heartbeat(), await two.heartbeat()] == [NONE, NONE]

        group = await described(one.peer, "g", min(6, version))
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
        assert {member.member_id: bytes(member.member_assignment) for member in group.members} == {
            one.id: one.id.encode(),
            two.id: two.id.encode(),
        }
        assert {(member.client_id, member.client_host) for member in group.members} == {("test", "/127.0.0.1")}

        commit_version, fetch_version = min(10, version + 2), min(10, version + 1)
        assert await two.commit(7, commit_version) == NONE
        assert await one.committed(fetch_version) == (7, "note", NONE)

        assert await deleted(one.peer, "g", min(2, version)) == ErrorCode.NON_EMPTY_GROUP
        assert [await one.leave(), await two.leave()] == [NONE, NONE]
        assert (await described(one.peer, "g", min(6, version))).group_state == "Empty"
        await one.peer.send(messages.ListGroupsRequest(), min(5, version))
        told = await one.peer.receive(messages.ListGroupsResponse)
        assert [(item.group_id, item.protocol_type) for item in told.groups] == [("g", "consumer")]
        assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await deleted(one.peer, "g", min(2, version)) == NONE
        assert await one.committed(fetch_version) == (-1, "", NONE)
        assert (await described(one.peer, "g", min(6, version))).group_state == "Dead"
        assert await deleted(one.peer, "g", min(2, version)) == ErrorCode.GROUP_ID_NOT_FOUND


async def test_committed_offsets_and_the_group_survive_a_restart(tmp_path: Any) -> None:
    async with kafka(AT_ONCE, folder=tmp_path) as served:
        one = await Member.of(served, "g", instance="i")
        await one.join()
        await one.sync(one.id)
        assert await one.commit(0) == NONE
    async with reopened(tmp_path) as served:
        peer = await served.connect()
        again = Member(peer, "g", instance="i")
        assert await again.committed() == (0, "note", NONE)
        again.id, again.generation = one.id, one.generation
        assert await again.heartbeat() == NONE, "it is a member as before"
        assert await again.commit(1) == NONE


@asynccontextmanager
async def reopened(folder: Any) -> AsyncIterator[KafkaServed]:
    async with kafka(AT_ONCE, folder=folder, topics={}) as served:
        yield served


# --- Bad input --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def undisturbed(*flags: str) -> AsyncIterator[tuple[KafkaServed, Member]]:
    """A broker with a member of the stable group ``g``; a group beside it must notice nothing."""
    async with kafka(AT_ONCE, *flags) as served:
        beside, member = await Member.of(served, "beside"), await Member.of(served, "g")
        for each in (beside, member):
            assert (await each.join()).error_code == NONE
            assert (await each.sync(each.id)).error_code == NONE
        assert await beside.commit(3) == NONE
        yield served, member
        assert await beside.heartbeat() == NONE
        assert beside.generation == 1
        assert await beside.committed() == (3, "note", NONE)
        assert (await described(beside.peer, "beside")).group_state == "Stable"


@pytest.mark.parametrize("generation", [0, 2, 2**31 - 1])
async def test_a_stale_generation(generation: int) -> None:
    async with undisturbed() as (_, member):
        member.generation = generation
        illegal = ErrorCode.ILLEGAL_GENERATION
        assert await member.heartbeat() == illegal
        assert (await member.sync()).error_code == illegal
        assert await member.commit(1) == illegal
        member.generation = 1
        assert [await member.heartbeat(), await member.commit(1)] == [NONE, NONE]


async def test_an_unknown_member() -> None:
    async with undisturbed() as (served, member):
        other = await Member.of(served, "g")
        for other.id in ("nobody", "n" * 32_000, ""):
            other.generation = 1
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            assert await other.heartbeat() == unknown
            assert (await other.sync()).error_code == unknown
            assert await other.commit(1) == unknown
            assert await other.leave() == unknown
            if other.id:
                await other.ask_to_join()
                assert (await other.joined()).error_code == unknown
        assert await member.heartbeat() == NONE


async def test_offsets_of_a_group_with_members_are_not_committed_by_others() -> None:
    async with undisturbed() as (served, member):
        other = await Member.of(served, "g")
        assert await other.commit(1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await member.committed() == (-1, "", NONE)
        other.group = "simple"
        assert await other.commit(1) == NONE, "of one without members they are"
        other.generation = 5
        other.id = "m"
        assert await other.commit(2, 9) in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        other.group = "missing"
        assert await other.commit(2, 8) == ErrorCode.ILLEGAL_GENERATION


async def test_a_fenced_instance() -> None:
    async with undisturbed() as (served, _):
        old, new = await Member.of(served, "static", instance="i"), await Member.of(served, "static", instance="i")
        assert (await old.join()).error_code == NONE
        assert (await old.sync(old.id)).error_code == NONE
        assert (await new.join()).error_code == NONE
        assert new.id != old.id
        assert new.generation == 1, "no new generation is made"
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert await old.heartbeat() == fenced
        assert await old.commit(1) == fenced
        assert (await old.sync()).error_code == fenced
        assert await old.leave() == fenced
        await old.ask_to_join()
        assert (await old.joined()).error_code == fenced
        assert await new.heartbeat() == NONE


@each_case("milliseconds", [-1, 0, 5_999, 1_800_001, 2**31 - 1])
@each_case("version", [0, 3, 9])
async def test_an_illegal_session_timeout(milliseconds: int, version: int) -> None:
    async with undisturbed() as (served, _):
        member = await Member.of(served, "g2", version)
        member.sessions_ms = milliseconds
        assert (await member.join()).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        assert (await described(member.peer, "g2", 5)).group_state == "Dead"


async def test_protocols_without_overlap() -> None:
    async with undisturbed() as (served, member):
        for protocols, kind in (
            (["sticky"], "consumer"),
            (["range"], "connect"),
            ([], "consumer"),
            (["range"], ""),
        ):
            other = await Member.of(served, "g")
            other.protocols, other.protocol_type = protocols, kind
            assert (await other.join()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await member.heartbeat() == NONE


@each_case("version", range(10))
async def test_an_empty_group_id(version: int) -> None:
    async with undisturbed() as (served, _):
        member = await Member.of(served, "", version)
        member.topic_id = served.id_of("plain")
        invalid = ErrorCode.INVALID_GROUP_ID
        assert (await member.join()).error_code == invalid
        assert (await member.sync()).error_code == invalid
        assert await member.heartbeat() == invalid
        assert await member.leave() == invalid
        assert await member.commit(1, version + 1 if version > 1 else 2) == NONE, "of no member, as in Kafka"


async def test_oversized_metadata() -> None:
    async with undisturbed("offset.metadata.max.bytes=10") as (_, member):
        large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await member.commit(1, metadata="0123456789") == NONE
        assert await member.commit(2, metadata="0123456789a") == large
        assert await member.commit(2, metadata="ключик") == large, "bytes count"
        assert await member.committed() == (1, "0123456789", NONE)


@each_case("version", range(2, 10))
async def test_offsets_of_partitions_that_do_not_exist(version: int) -> None:
    async with undisturbed() as (_, member):
        assert await member.commit(1, version, topic="missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await member.heartbeat() == NONE


async def test_a_leader_that_never_syncs_is_a_member_no_longer(autojump_clock: MockClock) -> None:
    async with kafka(AT_ONCE) as served:
        leader, other = await Member.of(served, "g"), await Member.of(served, "g")
        for each in (leader, other):
            each.sessions_ms = 300_000
        await leader.join()
        await leader.sync(leader.id)
        await other.ask_to_join()
        await other.joined()
        await other.ask_to_join()
        await wait_all_tasks_blocked()
        await leader.join()
        await other.joined()
        assert leader.generation == other.generation == 2
        assert (await other.sync()).error_code == ErrorCode.REBALANCE_IN_PROGRESS, "of the next generation"
        assert 60 <= trio.current_time() < 61
        told = await other.join()
        assert (told.generation_id, told.leader) == (3, other.id)
        assert await leader.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_dies_is_a_member_no_longer_and_the_other_one_is_asked_to_join(
    autojump_clock: MockClock,
) -> None:
    async with kafka(AT_ONCE) as served:
        dead, other = await Member.of(served, "g"), await Member.of(served, "g")
        await dead.join()
        await dead.sync(dead.id)
        await other.ask_to_join()
        await other.joined()
        await other.ask_to_join()
        await wait_all_tasks_blocked()
        await dead.join()
        await other.joined()
        await dead.sync(dead.id, other.id)
        await other.sync()
        await dead.peer.stream.aclose()
        for _ in range(4):  # its session lasts 10 s
            await trio.sleep(2)
            assert await other.heartbeat() == NONE
        await trio.sleep(3)
        assert await other.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert ((await other.join()).generation_id, other.generation) == (3, 3)
