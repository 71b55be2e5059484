"""Groups over Kafka's wire in front of the real service: the whole life of a group."""

from typing import Any, Final

from trio.testing import wait_all_tasks_blocked

from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka

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
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[cls.JoinGroupRequestProtocol(name="range", metadata=b"metadata")],
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

    async def sync(self, *assigned: str) -> Any:
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
        return await self.peer.ask(request, version)

    async def heartbeat(self) -> Any:
        version = self._version(4)
        request = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id, **self._instance(version, 3)
        )
        return (await self.peer.ask(request, version)).error_code

    async def commit(self, offset: int, version: int = 9, *, metadata: str = "note") -> Any:
        cls = messages.OffsetCommitRequest
        partition = cls.OffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_metadata=metadata
        )
        named: dict[str, Any] = {"topic_id": self.topic_id} if version >= 10 else {"name": "plain"}
        request = cls(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[cls.OffsetCommitRequestTopic(partitions=[partition], **named)],
            **self._instance(version, 7),
        )
        [topic_] = (await self.peer.ask(request, version)).topics
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
        told = await self.peer.ask(request, version)
        place: Any = (told.groups[0].topics if version >= 8 else told.topics)[0].partitions[0]
        return place.committed_offset, place.metadata, place.error_code

    async def leave(self) -> Any:
        cls = messages.LeaveGroupRequest
        version = self._version(5)
        if version < 3:
            return (await self.peer.ask(cls(group_id=self.group, member_id=self.id), version)).error_code
        leaving = [cls.MemberIdentity(member_id=self.id, group_instance_id=self.instance)]
        told = await self.peer.ask(cls(group_id=self.group, members=leaving), version)
        return told.error_code or told.members[0].error_code


async def described(peer: KafkaPeer, group: str, version: int = 6) -> Any:
    return (await peer.ask(messages.DescribeGroupsRequest(groups=[group]), version)).groups[0]


async def deleted(peer: KafkaPeer, group: str, version: int = 2) -> Any:
    return (await peer.ask(messages.DeleteGroupsRequest(groups_names=[group]), version)).results[0].error_code


@each_case("version", [0, 3, 4, 6, 9])  # what versions ask and answer is held in front of fakes
async def test_the_life_of_a_group(version: int) -> None:
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
        told = await one.peer.ask(messages.ListGroupsRequest(), min(5, version))
        assert [(item.group_id, item.protocol_type) for item in told.groups] == [("g", "consumer")]
        assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await deleted(one.peer, "g", min(2, version)) == NONE
        assert await one.committed(fetch_version) == (-1, "", NONE)
        assert (await described(one.peer, "g", min(6, version))).group_state == "Dead"
        assert await deleted(one.peer, "g", min(2, version)) == ErrorCode.GROUP_ID_NOT_FOUND


async def test_oversized_metadata() -> None:
    async with kafka(AT_ONCE, "offset.metadata.max.bytes=10") as served:
        member = await Member.of(served, "g")
        large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await member.commit(1, metadata="0123456789") == NONE
        assert await member.commit(2, metadata="0123456789a") == large
        assert await member.commit(2, metadata="ключик") == large, "bytes count"
        assert await member.committed() == (1, "0123456789", NONE)
