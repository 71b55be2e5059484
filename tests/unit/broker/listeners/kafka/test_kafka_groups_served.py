"""Groups over Kafka's wire in front of the real service: the whole life of a group.

What each version asks and answers is held in front of fakes.
"""

from typing import Any, Final

from trio.testing import wait_all_tasks_blocked

from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka

AT_ONCE: Final = "group.initial.rebalance.delay.ms=0"
NONE: Final = ErrorCode.NONE


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

    async def commit(self, offset: int, *, metadata: str = "note") -> Any:
        cls = messages.OffsetCommitRequest
        partition = cls.OffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_metadata=metadata
        )
        topics = [cls.OffsetCommitRequestTopic(name="plain", partitions=[partition])]
        request = cls(**self._named(), generation_id_or_member_epoch=self.generation, topics=topics)
        [topic] = (await self.peer.ask(request, 9)).topics
        return topic.partitions[0].error_code

    async def committed(self) -> tuple[int, str | None, int]:
        """Offset, metadata and error for the partition that ``commit`` is about."""
        cls = messages.OffsetFetchRequest
        topic = cls.OffsetFetchRequestTopics(name="plain", partition_indexes=[1])
        request = cls(groups=[cls.OffsetFetchRequestGroup(group_id=self.group, topics=[topic])])
        place = (await self.peer.ask(request, 8)).groups[0].topics[0].partitions[0]
        return place.committed_offset, place.metadata, place.error_code

    async def leave(self) -> Any:
        cls = messages.LeaveGroupRequest
        leaving = [cls.MemberIdentity(member_id=self.id, group_instance_id=self.instance)]
        told = await self.peer.ask(cls(group_id=self.group, members=leaving), 5)
        return told.error_code or told.members[0].error_code

    async def described(self) -> Any:
        return (await self.peer.ask(messages.DescribeGroupsRequest(groups=[self.group]), 6)).groups[0]

    async def deleted(self) -> Any:
        return (await self.peer.ask(messages.DeleteGroupsRequest(groups_names=[self.group]), 2)).results[0].error_code


async def test_the_life_of_a_group() -> None:
    async with kafka(AT_ONCE) as served:
        one, two = await Member.of(served, "g"), await Member.of(served, "g")
        assert (await one.join()).error_code == NONE
        assert (one.generation, (await one.sync(one.id)).assignment) == (1, one.id.encode())
        await two.ask_to_join()  # the id comes first, and disturbs nobody
        assert (await two.joined()).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert await one.heartbeat() == NONE
        await two.ask_to_join()
        await wait_all_tasks_blocked()
        assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        leading, following = await one.join(), await two.joined()
        assert (leading.generation_id, following.generation_id) == (2, 2)
        assert leading.leader == following.leader == one.id
        assert sorted(member.member_id for member in leading.members) == sorted([one.id, two.id])
        assert (await one.sync(one.id, two.id)).assignment == one.id.encode()
        assert (await two.sync()).assignment == two.id.encode()
        assert [await one.heartbeat(), await two.heartbeat()] == [NONE, NONE]
        group = await one.described()
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
        assigned = {member.member_id: bytes(member.member_assignment) for member in group.members}
        assert assigned == {one.id: one.id.encode(), two.id: two.id.encode()}
        assert {(member.client_id, member.client_host) for member in group.members} == {("test", "/127.0.0.1")}
        assert await two.commit(7) == NONE
        assert await one.committed() == (7, "note", NONE)
        assert await one.deleted() == ErrorCode.NON_EMPTY_GROUP
        assert [await one.leave(), await two.leave()] == [NONE, NONE]
        assert (await one.described()).group_state == "Empty"
        told = await one.peer.ask(messages.ListGroupsRequest(), 5)
        assert [(item.group_id, item.protocol_type) for item in told.groups] == [("g", "consumer")]
        assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await one.deleted() == NONE
        assert await one.committed() == (-1, "", NONE)
        assert (await one.described()).group_state == "Dead"
        assert await one.deleted() == ErrorCode.GROUP_ID_NOT_FOUND


async def test_oversized_metadata() -> None:
    async with kafka(AT_ONCE, "offset.metadata.max.bytes=10") as served:
        member = await Member.of(served, "g")
        large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await member.commit(1, metadata="0123456789") == NONE
        assert await member.commit(2, metadata="0123456789a") == large
        assert await member.commit(2, metadata="ключик") == large, "bytes count"
        assert await member.committed() == (1, "0123456789", NONE)
