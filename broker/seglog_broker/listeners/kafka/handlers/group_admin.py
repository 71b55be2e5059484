"""DescribeGroups, ListGroups, DeleteGroups: groups as admins see them. Source of the rules: Kafka's KafkaApis.

DescribeGroups
  1   throttle time
  3   authorized operations
  4   static members
  5   flexible
  6   error message; an unknown group is GROUP_ID_NOT_FOUND, which was a group in state Dead

ListGroups
  1   throttle time
  3   flexible
  4   states
  5   types

DeleteGroups
  2   flexible
  3   error message

ConsumerGroupDescribe
  0   flexible
  1   type of a member: classic or consumer

ShareGroupDescribe
  1   flexible; the first one that is stable
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, TypeVar

from seglog_broker.coordinators.groups.consumer_description import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    PartitionsOfTopic,
)
from seglog_broker.coordinators.groups.membership import ListedGroup, MemberDescription
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX, Refused, group_code, group_failure
from seglog_broker.listeners.kafka.handlers import cluster
from seglog_broker.listeners.kafka.turns import PARTITION_COST, TOPIC_COST, each_outcome, in_turns
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import UnknownGroupError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

CLASSIC: Final = "classic"

MEMBER_BYTES: Final = 4 * PART_BYTES
"""Of a member in a response, besides its metadata and assignment."""

_DEAD: Final = "Dead"
_STABLE: Final = "Stable"

_Described = messages.DescribeGroupsResponse.DescribedGroup
_Member = messages.DescribeGroupsResponse.DescribedGroupMember
_Deleted = messages.DeleteGroupsResponse.DeletableGroupResult


async def describe_groups(
    context: RequestContext, request: messages.DescribeGroupsRequest
) -> messages.DescribeGroupsResponse:
    """Groups of the classic protocol with their members. One that is unknown is Dead; since version 6, an error."""
    response = messages.DescribeGroupsResponse()
    turns = Turns(context.turn)
    for name in dict.fromkeys(request.groups):
        code = context.code_for(Operation.DESCRIBE, Kind.GROUP, name)
        if code:
            await turns.spend(TOPIC_COST)
            response.groups.append(_Described(group_id=name, error_code=code))
            continue
        try:
            described = await _described(context, turns, name)
        except UnknownGroupError as error:
            described = _Described(group_id=name, group_state=_DEAD)
            if context.version >= 6:
                described.error_code, described.error_message = group_failure(error, "DescribeGroups")
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            code, why = group_failure(error, "DescribeGroups")
            described = _Described(group_id=name, error_code=code, error_message=why)
        if described.error_code == ErrorCode.NONE:
            described.authorized_operations = cluster.authorized(
                context, Kind.GROUP, name, asked=request.include_authorized_operations
            )
        response.groups.append(described)
    return response


async def _described(context: RequestContext, turns: Turns, name: str) -> _Described:
    """A group of the classic protocol. Raises UnknownGroupError for any other."""
    await turns.spend(TOPIC_COST)
    context.reserve(PART_BYTES + 2 * len(name))
    group, _ = context.groups.describe(name)
    if group.kind != CLASSIC:
        raise UnknownGroupError(f"Group {name[:MESSAGE_CHARACTERS_MAX]} is not a classic group.", group=name)
    is_stable = group.state == _STABLE
    return _Described(
        group_id=name,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol if is_stable else "",
        members=[await _member(context, turns, member, is_stable=is_stable) for member in group.members],
    )


async def _member(context: RequestContext, turns: Turns, member: MemberDescription, *, is_stable: bool) -> _Member:
    """A member, with what it said of itself only while the group is stable."""
    await turns.spend(TOPIC_COST)
    metadata = member.metadata if is_stable else b""
    context.reserve(MEMBER_BYTES + len(metadata) + len(member.assignment))
    return _Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=metadata,
        member_assignment=member.assignment,
    )


async def list_groups(context: RequestContext, request: messages.ListGroupsRequest) -> messages.ListGroupsResponse:
    """The groups in certain states and of certain types, in upper or lower case; none given: in all, of all."""
    states = {state.strip().lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    try:
        turns = Turns(context.turn)
        groups = await context.groups.list_groups()
        sees = context.session.sees
        sees_all = sees(Operation.DESCRIBE, Kind.CLUSTER)
        return messages.ListGroupsResponse(
            groups=[
                await _listed(context, turns, group)
                async for group in in_turns(context, groups)
                if (not states or group.state.lower() in states)
                and (not kinds or group.kind.lower() in kinds)
                and (sees_all or sees(Operation.DESCRIBE, Kind.GROUP, group.group))
            ]
        )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return messages.ListGroupsResponse(error_code=group_code(error, "ListGroups"))


async def _listed(context: RequestContext, turns: Turns, group: ListedGroup) -> messages.ListGroupsResponse.ListedGroup:
    await turns.spend(TOPIC_COST)
    context.reserve(PART_BYTES + 2 * len(group.group))
    return messages.ListGroupsResponse.ListedGroup(
        group_id=group.group, protocol_type=group.protocol_type, group_state=group.state, group_type=group.kind
    )


async def delete_groups(
    context: RequestContext, request: messages.DeleteGroupsRequest
) -> messages.DeleteGroupsResponse:
    """Groups without members are deleted with their offsets, each with its own result."""
    response = messages.DeleteGroupsResponse()
    names = []
    async for name in in_turns(context, dict.fromkeys(request.groups_names)):
        code = context.code_for(Operation.DELETE, Kind.GROUP, name)
        if code:
            response.results.append(_Deleted(group_id=name, error_code=code))
        else:
            names.append(name)
    errors = await each_outcome(context.groups.delete(names), len(names))
    async for name, why in in_turns(context, zip(names, errors, strict=True)):
        deleted = _Deleted(group_id=name)
        if why is not None:
            deleted.error_code, deleted.error_message = group_failure(why, "DeleteGroups")
        response.results.append(deleted)
    return response


NAME_COST: Final = 0.2
"""Names of topics, or numbers of partitions, that cost as much as a part of a response."""


DescribedT = TypeVar("DescribedT", messages.ConsumerGroupDescribeResponse, messages.ShareGroupDescribeResponse)

_HAS_OTHERS: Final = "The group has described topic(s) that the client is not authorized to describe."
"""Kafka's sentence."""

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


async def consumer_group_describe(
    context: RequestContext, request: messages.ConsumerGroupDescribeRequest
) -> messages.ConsumerGroupDescribeResponse:
    """Groups of the consumer protocol with their members. Any other is GROUP_ID_NOT_FOUND."""
    response = messages.ConsumerGroupDescribeResponse()
    return await _describe_each(context, request, response, context.groups.describe_consumer)


async def share_group_describe(
    context: RequestContext, request: messages.ShareGroupDescribeRequest
) -> messages.ShareGroupDescribeResponse:
    """Share groups with their members. Any other is GROUP_ID_NOT_FOUND."""
    response = messages.ShareGroupDescribeResponse()
    return await _describe_each(context, request, response, context.groups.describe_share)


async def _describe_each(
    context: RequestContext,
    request: messages.ConsumerGroupDescribeRequest | messages.ShareGroupDescribeRequest,
    response: DescribedT,
    find: Callable[[str], ConsumerGroupDescription],
) -> DescribedT:
    turns = Turns(context.turn)
    for name in dict.fromkeys(request.group_ids):
        await turns.spend(TOPIC_COST)
        described = response.DescribedGroup(group_id=name)
        response.groups.append(described)
        described.error_code = context.code_for(Operation.DESCRIBE, Kind.GROUP, name)
        if described.error_code:
            continue
        try:
            context.reserve(PART_BYTES + 2 * len(name))
            found = find(name)
            for member in found.members:
                await _check_topics(context, member)
                await _reserve_member(context, turns, member)
                described.members.append(_described_member(response, member))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            described.members = []
            described.error_code, described.error_message = group_failure(error, type(request).__name__)
            continue
        described.group_state = found.state
        described.group_epoch = found.group_epoch
        described.assignment_epoch = found.assignment_epoch
        described.assignor_name = found.assignor
        described.authorized_operations = cluster.authorized(
            context, Kind.GROUP, described.group_id, asked=request.include_authorized_operations
        )
    return response


async def _check_topics(context: RequestContext, member: ConsumerMemberDescription) -> None:
    """Raise Refused if a member has a topic that the client may not describe."""
    async for topic in in_turns(context, chain(member.assigned, member.target)):
        code = context.code_for(Operation.DESCRIBE, Kind.TOPIC, topic.topic)
        if code:
            raise Refused(code, _HAS_OTHERS)


async def _reserve_member(context: RequestContext, turns: Turns, member: ConsumerMemberDescription) -> None:
    """Wait for the turn of a member, and count its subscription and assignments, which may be very many topics."""
    topics = [*member.assigned, *member.target]
    partitions = sum([len(item.partitions) for item in topics])
    await turns.spend(TOPIC_COST + NAME_COST * (len(member.topics) + partitions) + PARTITION_COST * len(topics))
    context.reserve(
        MEMBER_BYTES + PART_BYTES * (len(member.topics) + 2 * len(topics)) + 2 * PART_BYTES * partitions // 8
    )


def _described_member(response: DescribedT, member: ConsumerMemberDescription) -> Any:
    """A member in such a response: what one of a share group has, and more for the consumer protocol."""
    described: Any = response.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        assignment=_assignment(response, member.assigned),
    )
    if isinstance(response, messages.ConsumerGroupDescribeResponse):
        described.instance_id = member.instance_id
        described.subscribed_topic_regex = member.regex
        described.target_assignment = _assignment(response, member.target)
        described.member_type = _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER
    return described


def _assignment(response: Any, topics: Iterable[PartitionsOfTopic]) -> Any:
    """An assignment in a response of this class."""
    return response.Assignment(
        topic_partitions=[
            response.TopicPartitions(topic_id=item.topic_id, topic_name=item.topic, partitions=list(item.partitions))
            for item in topics
        ]
    )


APIS: Final = (
    Api(15, "DescribeGroups", range(7), handle=describe_groups, is_carried=True),
    Api(16, "ListGroups", range(6), handle=list_groups, is_carried=True),
    Api(42, "DeleteGroups", range(4), handle=delete_groups, needs=(Operation.DELETE, Kind.GROUP), is_carried=True),
    Api(69, "ConsumerGroupDescribe", range(2), handle=consumer_group_describe, is_carried=True),
    Api(77, "ShareGroupDescribe", range(1, 2), handle=share_group_describe, is_carried=True),
)
