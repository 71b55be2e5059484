"""FindCoordinator, and members of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat.

The only node coordinates all groups and all transactions.
Source of the rules: Kafka's KafkaApis, and KIP-848 and KIP-932 (ShareGroupHeartbeat) where the broker assigns.

FindCoordinator
  0   of a group
  1   key type: transactions; throttle time, error message
  3   flexible
  4   several keys
  5   TRANSACTION_ABORTABLE
  6   share groups

JoinGroup
  1   rebalance timeout
  2   throttle time
  4   MEMBER_ID_REQUIRED: a new member joins again with the id that it gets
  5   static members
  6   flexible
  7   protocol type; a null protocol name
  8   reason
  9   skip assignment

SyncGroup
  1   throttle time
  3   static members
  4   flexible
  5   protocol type and name, which are checked

Heartbeat
  1   throttle time
  3   static members
  4   flexible

LeaveGroup
  1   throttle time
  3   several members, static ones among them
  4   flexible
  5   reason

ConsumerGroupHeartbeat
  0   flexible
  1   subscription by regular expression; a member makes its id itself

ShareGroupHeartbeat
  1   flexible; the first one that is stable
"""

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_broker.coordinators.groups.membership import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from seglog_broker.coordinators.groups.share import ShareHeartbeat
from seglog_broker.listeners.kafka.context import Api, Ask, Repeats, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, group_code, group_failure
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_protocol import errors
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

_NO_NODE: Final = -1
_KINDS: Final[Mapping[int, Kind]] = MappingProxyType({0: Kind.GROUP, 1: Kind.TRANSACTIONAL_ID})

_SHOWN: Final = {Kind.GROUP: "Group", Kind.TRANSACTIONAL_ID: "Transactional Id"}

_UNKNOWN_KIND: Final = Failure(ErrorCode.INVALID_REQUEST, "seglog has no such coordinators")
"""Errors that are final for every client; with others, some try again for ever, without a word."""

_Coordinator = messages.FindCoordinatorResponse.Coordinator


def find_coordinator(
    context: RequestContext, request: messages.FindCoordinatorRequest
) -> messages.FindCoordinatorResponse | None:
    """The coordinator of the one key of an older version; None since version 4."""
    if context.version >= 4:
        return None
    found = _found(context, request.key, request.key_type)
    return messages.FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def find_coordinators(
    context: RequestContext, request: messages.FindCoordinatorRequest
) -> messages.FindCoordinatorResponse:
    """The coordinator of each key."""
    return messages.FindCoordinatorResponse(
        coordinators=[
            _found(context, key, request.key_type) async for key in in_turns(context, request.coordinator_keys)
        ]
    )


def _found(context: RequestContext, key: str, kind: int) -> _Coordinator:
    failure = _why_none(context, key, kind)
    if failure is not None:
        return _Coordinator(
            key=key, node_id=_NO_NODE, port=_NO_NODE, error_code=failure.code, error_message=failure.message
        )
    return _Coordinator(
        key=key, node_id=context.node_id, host=context.advertised.host, port=context.advertised.port, error_message=None
    )


def _why_none(context: RequestContext, key: str, kind: int) -> Failure | None:
    asked = _KINDS.get(kind)
    if asked is None:
        return _UNKNOWN_KIND
    code = context.code_for(Operation.DESCRIBE, asked, key)
    if code:
        return Failure(code, f"{_SHOWN[asked]} authorization failed." if context.version < 4 else None)
    try:
        if asked is Kind.GROUP:
            context.groups.check(key)
        else:
            context.transactions.check(key)
    except errors.CoordinatorLoadingError:
        return None  # the node is known; other requests get CoordinatorLoadingError
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return group_failure(error, "FindCoordinator")
    return None


async def join_group(context: RequestContext, request: messages.JoinGroupRequest) -> messages.JoinGroupResponse:
    """The next generation of a group, once all its members take part or their time is over."""
    timeout = request.session_timeout_ms
    if context.version >= 1:
        timeout = request.rebalance_timeout_ms
    asked = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.client_address,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout,
        protocol_type=request.protocol_type,
        protocols=[(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols],
        needs_known_member_id=context.version >= 4,
        may_skip_assignment=context.version >= 9,
    )
    request.protocols = []  # it may wait for minutes, and what the group keeps of them is counted there
    try:
        result = await context.groups.join(request.group_id, asked)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        result = JoinResult(request.member_id, error=as_seglog_error(error, "JoinGroup"))
    return _joined(context, result)


def _joined(context: RequestContext, result: JoinResult) -> messages.JoinGroupResponse:
    # Before version 7 the name of the protocol cannot be null; since then, it is null rather than empty.
    protocol = result.protocol or (None if context.version >= 7 else "")
    return messages.JoinGroupResponse(
        error_code=group_code(result.error, "JoinGroup"),
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            messages.JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )


async def sync_group(context: RequestContext, request: messages.SyncGroupRequest) -> messages.SyncGroupResponse:
    """The assignment of a member, once the leader has sent all assignments."""
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        missing = errors.InconsistentGroupProtocolError(
            "the protocol type and name are missing", group=request.group_id
        )
        return _synced(SyncResult(error=missing))
    try:
        result = await context.groups.sync(request.group_id, _taken_out_of(request))
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        result = SyncResult(error=as_seglog_error(error, "SyncGroup"))
    return _synced(result)


def _taken_out_of(request: messages.SyncGroupRequest) -> SyncRequest:
    """What is asked, with the assignments, which ``request`` keeps no more: it may wait, as JoinGroup."""
    assignments = {item.member_id: bytes(item.assignment) for item in request.assignments}
    request.assignments = []
    return SyncRequest(
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=assignments,
    )


def _synced(result: SyncResult) -> messages.SyncGroupResponse:
    return messages.SyncGroupResponse(
        error_code=group_code(result.error, "SyncGroup"),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


def heartbeat(context: RequestContext, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
    """Restart a member's session timer. While groups are loaded every member is accepted: sessions begin afterwards."""
    code = ErrorCode.NONE
    try:
        context.groups.heartbeat(request.group_id, request.member_id, request.generation_id, request.group_instance_id)
    except errors.CoordinatorLoadingError:
        pass
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code = group_code(error, "Heartbeat")
    return messages.HeartbeatResponse(error_code=code)


async def leave_group(context: RequestContext, request: messages.LeaveGroupRequest) -> messages.LeaveGroupResponse:
    """Memberships end. Before version 3 there is one, and its error is that of the request."""
    if context.version >= 3:
        leaving = [
            LeavingMember(member.member_id, member.group_instance_id)
            async for member in in_turns(context, request.members)
        ]
    else:
        leaving = [LeavingMember(request.member_id)]
    try:
        results = await context.groups.leave(request.group_id, leaving)
    except (errors.UnknownGroupError, errors.UnknownMemberError) as error:  # without the group there is no member of it
        results = [LeaveResult(member.member_id, member.instance_id, _unknown(error)) for member in leaving]
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return messages.LeaveGroupResponse(error_code=group_code(error, "LeaveGroup"))
    if context.version < 3:
        return messages.LeaveGroupResponse(error_code=group_code(results[0].error, "LeaveGroup"))
    return messages.LeaveGroupResponse(
        members=[
            messages.LeaveGroupResponse.MemberResponse(
                member_id=result.member_id,
                group_instance_id=result.instance_id,
                error_code=group_code(result.error, "LeaveGroup"),
            )
            async for result in in_turns(context, results)
        ]
    )


def _unknown(error: errors.UnknownGroupError | errors.UnknownMemberError) -> errors.UnknownMemberError:
    if isinstance(error, errors.UnknownGroupError):
        return errors.UnknownMemberError(error.message, group=error.group)
    return error


async def consumer_group_heartbeat(
    context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest
) -> messages.ConsumerGroupHeartbeatResponse:
    """A member joins, stays or leaves, and gets its assignment; answered once its records are durable."""
    owned = request.topic_partitions
    if not await _may_describe(context, request.subscribed_topic_names):
        return messages.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        _check_names(context, request)
        result = await context.groups.consumer_heartbeat(
            request.group_id,
            ConsumerHeartbeat(
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topics=request.subscribed_topic_names,
                regex=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                owned=None if owned is None else await _owned(context, owned),
                client_id=context.client_id or "",
                client_host=context.client_address,
            ),
            partial(context.session.sees, Operation.DESCRIBE, Kind.TOPIC),
        )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, why = group_failure(error, "ConsumerGroupHeartbeat")
        return messages.ConsumerGroupHeartbeatResponse(error_code=code, error_message=why)
    response = messages.ConsumerGroupHeartbeatResponse()
    await _tell(context, response, result)
    return response


async def _may_describe(context: RequestContext, topics: Iterable[str] | None) -> bool:
    """True if the client may describe all topics that it subscribes to."""
    async for name in in_turns(context, topics or ()):
        if not context.session.allows(Operation.DESCRIBE, Kind.TOPIC, name):
            return False
    return True


async def _tell(context: RequestContext, response: Any, result: HeartbeatResult) -> None:
    """Say the result of a heartbeat in a response to one."""
    response.member_id, response.member_epoch = result.member_id, result.member_epoch
    response.heartbeat_interval_ms = result.heartbeat_interval_ms
    if result.assignment is not None:
        response.assignment = response.Assignment(
            topic_partitions=[
                response.TopicPartitions(topic_id=topic, partitions=sorted(result.assignment[topic]))
                async for topic in in_turns(context, sorted(result.assignment))
            ]
        )


def _check_names(context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest) -> None:
    if not request.group_id.strip():
        raise errors.InvalidRequestError("group_id must not be empty: set group.id", field="group_id")
    if context.version >= 1 and not request.member_id:
        raise errors.InvalidRequestError(
            "member_id must not be empty: since version 1 members make it", field="member_id"
        )


async def _owned(
    context: RequestContext, topics: Iterable[messages.ConsumerGroupHeartbeatRequest.TopicPartitions]
) -> Assignment:
    owned: dict[bytes, frozenset[int]] = {}
    async for topic in in_turns(context, topics):
        if topic.partitions:
            topic_id = bytes(topic.topic_id)
            owned[topic_id] = owned.get(topic_id, frozenset()) | frozenset(topic.partitions)
    return owned


async def share_group_heartbeat(
    context: RequestContext, request: messages.ShareGroupHeartbeatRequest
) -> messages.ShareGroupHeartbeatResponse:
    """A member of a share group joins, stays or leaves, and gets its assignment; answered once that is durable."""
    if not await _may_describe(context, request.subscribed_topic_names):
        return messages.ShareGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        asked = ShareHeartbeat(
            request.member_id,
            request.member_epoch,
            request.rack_id,
            request.subscribed_topic_names,
            context.client_id or "",
            context.client_address,
        )
        result = await context.groups.shares.heartbeat(request.group_id, asked)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, why = group_failure(error, "ShareGroupHeartbeat")
        return messages.ShareGroupHeartbeatResponse(error_code=code, error_message=why)
    response = messages.ShareGroupHeartbeatResponse()
    await _tell(context, response, result)
    return response


_READ: Final = Ask(Operation.READ, Kind.GROUP, "group_id")

APIS: Final = (
    Api(10, "FindCoordinator", range(7), find_coordinator, find_coordinators),
    Api(11, "JoinGroup", range(10), handle=join_group, waits=True, asks=_READ),
    Api(12, "Heartbeat", range(5), heartbeat, repeats=Repeats(), asks=_READ),
    Api(13, "LeaveGroup", range(6), handle=leave_group, asks=_READ),
    Api(14, "SyncGroup", range(6), handle=sync_group, waits=True, asks=_READ),
    Api(68, "ConsumerGroupHeartbeat", range(2), handle=consumer_group_heartbeat, asks=_READ, is_carried=True),
    Api(76, "ShareGroupHeartbeat", range(1, 2), handle=share_group_heartbeat, asks=_READ, is_carried=True),
)
