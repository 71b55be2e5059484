"""Requests of the native protocol about groups, and their replies."""

from dataclasses import dataclass
from typing import Final

from seglog_broker.coordinators.groups import membership
from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.consumer_protocol import assigned_partitions, subscribed_topics
from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_protocol import messages
from seglog_protocol.errors import UnstableOffsetCommitError

OFFSETS_A_TURN: Final = budget.items_of(cost=8)
"""Committed offsets that are looked up before other tasks run."""

LISTED_MAX: Final = 1_000
"""The most groups in one reply; further requests get the others."""

DEFAULT_CLIENT_ID: Final = "seglog"


@dataclass(eq=False, repr=False)
class NativeGroups(Service):
    """Answers native requests about groups."""

    _groups: GroupService

    async def answer(self, request: messages.Request, host: str) -> messages.Message | None:
        """The reply to a request about groups from ``host``; None to any other. Raises GroupError."""
        match request:
            case messages.CommitOffsetsRequest():
                return await self._commit(request)
            case messages.CommittedOffsetsRequest():
                return await self._committed(request)
            case messages.JoinGroupRequest():
                return await self._join(request, host)
            case messages.SyncGroupRequest():
                return await self._sync(request)
            case messages.GroupHeartbeatRequest():
                self._groups.heartbeat(request.group, request.member_id, request.generation, request.instance_id)
                return messages.GroupHeartbeatReply()
            case messages.LeaveGroupRequest():
                return await self._leave(request)
            case messages.ListGroupsRequest():
                return await self._list(request)
            case messages.DescribeGroupRequest():
                return self._describe(request)
        return None

    async def _join(self, request: messages.JoinGroupRequest, host: str) -> messages.JoinGroupReply:
        result = await self._groups.join(
            request.group,
            membership.JoinRequest(
                member_id=request.member_id or "",
                instance_id=request.instance_id,
                client_id=DEFAULT_CLIENT_ID if request.client_id is None else request.client_id,
                client_host=host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
                may_skip_assignment=True,
            ),
        )
        if result.error is not None:
            raise result.error
        is_leader = result.leader == result.member_id
        return messages.JoinGroupReply(
            result.member_id,
            result.generation,
            result.protocol or "",
            result.leader,
            [
                messages.JoinGroupMember(member.member_id, member.metadata, member.instance_id)
                for member in result.members
            ]
            if is_leader
            else None,
            True if result.skip_assignment else None,
        )

    async def _sync(self, request: messages.SyncGroupRequest) -> messages.SyncGroupReply:
        result = await self._groups.sync(
            request.group,
            membership.SyncRequest(
                request.member_id,
                request.generation,
                request.instance_id,
                assignments={item.member_id: item.assignment for item in request.assignments or ()},
            ),
        )
        if result.error is not None:
            raise result.error
        return messages.SyncGroupReply(result.assignment)

    async def _leave(self, request: messages.LeaveGroupRequest) -> messages.LeaveGroupReply:
        members = [membership.LeavingMember(item.member_id or "", item.instance_id) for item in request.members]
        results = await self._groups.leave(request.group, members)
        return messages.LeaveGroupReply([messages.LeaveGroupResult(*result) for result in results])

    async def _commit(self, request: messages.CommitOffsetsRequest) -> messages.CommitOffsetsReply:
        committer = Committer(
            request.member_id or "",
            membership.NO_GENERATION if request.generation is None else request.generation,
            request.instance_id,
        )
        topic_ids = request.topic_ids or {}
        transaction = None
        if request.producer_id is not None and request.producer_epoch is not None:
            transaction = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        errors = await self._groups.commit(
            request.group,
            committer,
            [
                OffsetToCommit(
                    item.topic,
                    item.partition,
                    item.offset,
                    -1 if item.leader_epoch is None else item.leader_epoch,
                    item.metadata or "",
                    topic_ids.get(item.topic, ""),
                )
                for item in request.offsets
            ],
            transaction,
        )
        return messages.CommitOffsetsReply(
            [
                messages.CommitOffsetResult(item.topic, item.partition, error)
                for item, error in zip(request.offsets, errors, strict=True)
            ]
        )

    async def _committed(self, request: messages.CommittedOffsetsRequest) -> messages.CommittedOffsetsReply:
        if request.partitions is None:
            known = self._groups.committed_topics(request.group)
            asked = [(topic, number) for topic, numbers in known.items() for number in numbers]
        else:
            asked = [(item.topic, item.partition) for item in request.partitions]
        found: list[messages.CommittedOffset] = []
        for begin in range(0, max(1, len(asked)), OFFSETS_A_TURN):
            if begin:
                await self._scheduler.turn()
            some = self._groups.committed(request.group, asked[begin : begin + OFFSETS_A_TURN])
            for one in some:
                if request.stable and one.is_unstable:
                    found.append(_unstable(request.group, one))
                elif one.offset >= 0 or request.partitions is not None:
                    found.append(_committed(one))
        return messages.CommittedOffsetsReply(found, self._clock.now_ms())

    async def _list(self, request: messages.ListGroupsRequest) -> messages.ListGroupsReply:
        limit = min(LISTED_MAX, LISTED_MAX if request.limit is None else request.limit)
        found = await self._groups.list_groups(request.after, limit + 1)
        return messages.ListGroupsReply(
            [messages.ListedGroup(*group[:6], group.expires_ms) for group in found[:limit]],
            self._clock.now_ms(),
            more=len(found) > limit,
        )

    def _describe(self, request: messages.DescribeGroupRequest) -> messages.DescribeGroupReply:
        described, listed = self._groups.describe(request.group)
        is_consumer = described.protocol_type == membership.CONSUMER_PROTOCOL_TYPE
        return messages.DescribeGroupReply(
            *described[:7],
            [_member(member, is_consumer=is_consumer) for member in described.members],
            self._clock.now_ms(),
            *listed[6:],
        )


def _unstable(group: str, one: Committed) -> messages.CommittedOffset:
    error = UnstableOffsetCommitError(
        f"an open transaction has committed an offset of group {group} for {one.topic}-{one.partition}: try again",
        group=group,
        topic=one.topic,
        partition=one.partition,
    )
    return messages.CommittedOffset(one.topic, one.partition, error=error)


def _committed(one: Committed) -> messages.CommittedOffset:
    if one.offset < 0:
        return messages.CommittedOffset(one.topic, one.partition)
    return messages.CommittedOffset(
        *one[:3],
        None if one.leader_epoch < 0 else one.leader_epoch,
        one.metadata or None,
        one.committed_ms,
        one.expires_ms,
    )


def _member(member: membership.MemberDescription, *, is_consumer: bool) -> messages.DescribedMember:
    assigned = assigned_partitions(member.assignment) if is_consumer else None
    topics = subscribed_topics([member.metadata]) if is_consumer else None
    return messages.DescribedMember(
        member.member_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms,
        member.quiet_ms,
        member.instance_id,
        None if topics is None else sorted(topics),
        None
        if assigned is None
        else [messages.DescribedPartitions(topic, numbers) for topic, numbers in sorted(assigned.items())],
    )
