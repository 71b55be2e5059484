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
"""

from typing import Final

from seglog_broker.coordinators.groups.membership import ListedGroup, MemberDescription
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX, group_code, group_failure
from seglog_broker.listeners.kafka.handlers import cluster
from seglog_broker.listeners.kafka.turns import TOPIC_COST, in_turns
from seglog_broker.listeners.session import Administration
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
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
                context, cluster.GROUP_OPERATIONS, asked=request.include_authorized_operations
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
        return messages.ListGroupsResponse(
            groups=[
                await _listed(context, turns, group)
                for group in groups
                if (not states or group.state.lower() in states) and (not kinds or group.kind.lower() in kinds)
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
    names = list(dict.fromkeys(request.groups_names))
    try:
        errors: list[Exception | None] = list(await context.groups.delete(names))
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        errors = [error] * len(names)
    response = messages.DeleteGroupsResponse()
    async for name, why in in_turns(context, zip(names, errors, strict=True)):
        deleted = _Deleted(group_id=name)
        if why is not None:
            deleted.error_code, deleted.error_message = group_failure(why, "DeleteGroups")
        response.results.append(deleted)
    return response


APIS: Final = (
    Api(15, "DescribeGroups", range(7), handle=describe_groups),
    Api(16, "ListGroups", range(6), handle=list_groups),
    Api(42, "DeleteGroups", range(4), handle=delete_groups, changes=Administration.GROUPS),
)
