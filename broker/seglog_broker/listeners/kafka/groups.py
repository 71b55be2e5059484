"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the members of groups. Source of the rules: Kafka's KafkaApis."""

from typing import Final

from seglog_broker.coordinators.groups.membership import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.group_errors import group_code
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.listeners.replies import as_seglog_error
from seglog_protocol.errors import (
    CoordinatorLoadingError,
    InconsistentGroupProtocolError,
    SeglogError,
    UnknownGroupError,
    UnknownMemberError,
)
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

REASON_CHARACTERS_MAX: Final = 255
"""Of the reason that a member gives for what it does."""

_WITH_REBALANCE_TIMEOUT_VERSION_MIN: Final = 1
_MEMBER_ID_REQUIRED_VERSION_MIN: Final = 4
_PROTOCOL_NAME_NULLABLE_VERSION_MIN: Final = 7
_SKIP_ASSIGNMENT_VERSION_MIN: Final = 9
_SYNC_WITH_PROTOCOL_VERSION_MIN: Final = 5
_LEAVE_OF_SEVERAL_VERSION_MIN: Final = 3


# --- JoinGroup --------------------------------------------------------------------------------------------------------


async def join_group(caller: Caller, request: messages.JoinGroupRequest, version: int) -> messages.JoinGroupResponse:
    """The next generation of a group, once all its members take part or their time is over."""
    timeout = request.session_timeout_ms
    if version >= _WITH_REBALANCE_TIMEOUT_VERSION_MIN:
        timeout = request.rebalance_timeout_ms
    asked = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id or "",
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout,
        protocol_type=request.protocol_type,
        protocols=[(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols],
        needs_known_member_id=version >= _MEMBER_ID_REQUIRED_VERSION_MIN,
        may_skip_assignment=version >= _SKIP_ASSIGNMENT_VERSION_MIN,
        reason=_shortened(request.reason),
    )
    try:
        result = await caller.groups.join(request.group_id, asked)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        result = JoinResult(request.member_id, error=as_seglog_error(error, "JoinGroup"))
    return _joined(result, version)


def join_refused(request: messages.JoinGroupRequest, version: int, error: SeglogError) -> messages.JoinGroupResponse:
    """The response that says ``error``."""
    return _joined(JoinResult(request.member_id, error=error), version)


def _joined(result: JoinResult, version: int) -> messages.JoinGroupResponse:
    # Before version 7 the name of the protocol cannot be null; since then, it is null rather than empty.
    protocol = result.protocol or (None if version >= _PROTOCOL_NAME_NULLABLE_VERSION_MIN else "")
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


def _shortened(reason: str | None) -> str | None:
    return None if reason is None else reason[:REASON_CHARACTERS_MAX]


# --- SyncGroup --------------------------------------------------------------------------------------------------------


async def sync_group(caller: Caller, request: messages.SyncGroupRequest, version: int) -> messages.SyncGroupResponse:
    """The assignment of a member, once the leader has brought those of all."""
    if version >= _SYNC_WITH_PROTOCOL_VERSION_MIN and (request.protocol_type is None or request.protocol_name is None):
        return sync_refused(
            request,
            version,
            InconsistentGroupProtocolError("the protocol type and name are missing", group=request.group_id),
        )
    asked = SyncRequest(
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={item.member_id: bytes(item.assignment) for item in request.assignments},
    )
    try:
        result = await caller.groups.sync(request.group_id, asked)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        result = SyncResult(error=as_seglog_error(error, "SyncGroup"))
    return _synced(result)


def sync_refused(request: messages.SyncGroupRequest, version: int, error: SeglogError) -> messages.SyncGroupResponse:
    """The response that says ``error``."""
    del request, version
    return _synced(SyncResult(error=error))


def _synced(result: SyncResult) -> messages.SyncGroupResponse:
    return messages.SyncGroupResponse(
        error_code=group_code(result.error, "SyncGroup"),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


# --- Heartbeat --------------------------------------------------------------------------------------------------------


def heartbeat(caller: Caller, request: messages.HeartbeatRequest, version: int) -> messages.HeartbeatResponse:
    """A member lives. While groups are loaded, all are taken to: sessions begin when that is done."""
    del version
    code = ErrorCode.NONE
    try:
        caller.groups.heartbeat(request.group_id, request.member_id, request.generation_id, request.group_instance_id)
    except CoordinatorLoadingError:
        pass
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code = group_code(error, "Heartbeat")
    return messages.HeartbeatResponse(error_code=code)


# --- LeaveGroup -------------------------------------------------------------------------------------------------------


async def leave_group(caller: Caller, request: messages.LeaveGroupRequest, version: int) -> messages.LeaveGroupResponse:
    """Memberships end. Before version 3 there is one, and its error is that of the request."""
    if version >= _LEAVE_OF_SEVERAL_VERSION_MIN:
        leaving = [
            LeavingMember(member.member_id, member.group_instance_id, _shortened(member.reason))
            async for member in in_turns(caller, request.members)
        ]
    else:
        leaving = [LeavingMember(request.member_id)]
    try:
        results = await caller.groups.leave(request.group_id, leaving)
    except (UnknownGroupError, UnknownMemberError) as error:  # without the group there is no member of it
        results = [LeaveResult(member.member_id, member.instance_id, _unknown(error)) for member in leaving]
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return messages.LeaveGroupResponse(error_code=group_code(error, "LeaveGroup"))
    if version < _LEAVE_OF_SEVERAL_VERSION_MIN:
        return messages.LeaveGroupResponse(error_code=group_code(results[0].error, "LeaveGroup"))
    return messages.LeaveGroupResponse(
        members=[
            messages.LeaveGroupResponse.MemberResponse(
                member_id=result.member_id,
                group_instance_id=result.instance_id,
                error_code=group_code(result.error, "LeaveGroup"),
            )
            async for result in in_turns(caller, results)
        ]
    )


def _unknown(error: UnknownGroupError | UnknownMemberError) -> UnknownMemberError:
    return error if isinstance(error, UnknownMemberError) else UnknownMemberError(error.message, group=error.group)
