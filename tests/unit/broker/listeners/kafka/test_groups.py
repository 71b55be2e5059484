"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup in all their versions: what groups are asked, what clients are told."""

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.membership import (
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.fake_groups import FakeGroups
from tests.unit.broker.listeners.kafka.group_requests import context_of, serve

GROUP_ERRORS: list[tuple[errors.SeglogError, ErrorCode]] = [
    (errors.CoordinatorLoadingError("loading"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    (errors.CoordinatorNotAvailableError("no disk"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (errors.IllegalGenerationError("stale"), ErrorCode.ILLEGAL_GENERATION),
    (errors.InconsistentGroupProtocolError("none in common"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    (errors.InvalidGroupIdError("empty"), ErrorCode.INVALID_GROUP_ID),
    (errors.UnknownMemberError("who"), ErrorCode.UNKNOWN_MEMBER_ID),
    (errors.InvalidSessionTimeoutError("short"), ErrorCode.INVALID_SESSION_TIMEOUT),
    (errors.RebalanceInProgressError("again"), ErrorCode.REBALANCE_IN_PROGRESS),
    (errors.MemberIdRequiredError("again"), ErrorCode.MEMBER_ID_REQUIRED),
    (errors.GroupMaxSizeError("full"), ErrorCode.GROUP_MAX_SIZE_REACHED),
    (errors.FencedInstanceError("fenced"), ErrorCode.FENCED_INSTANCE_ID),
    (errors.BrokerStoppingError("stopping"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (errors.DiskFullError("full"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (errors.PartitionReadOnlyError("broken"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (errors.MessageTooLargeError("long"), ErrorCode.UNKNOWN_SERVER_ERROR),
]


def join_request(**more: Any) -> messages.JoinGroupRequest:
    cls = messages.JoinGroupRequest
    protocols = [cls.JoinGroupRequestProtocol(name=name, metadata=name.encode()) for name in ("range", "sticky")]
    fields = {"group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "member_id": "m-1"}
    return cls(**{**fields, "protocol_type": "consumer", "protocols": protocols, **more})


# --- JoinGroup --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_a_join_is_asked_as_its_version_means_it(groups: FakeGroups, version: int) -> None:
    groups.joined = JoinResult("m-1", 1, "consumer", "range", "m-1")
    more: dict[str, Any] = {"group_instance_id": "i-1"} if version >= 5 else {}
    if version >= 8:
        more["reason"] = "r" * 300
    await serve(groups, join_request(**more), version)
    assert groups.asked == [
        (
            "join",
            "g",
            JoinRequest(
                member_id="m-1",
                instance_id="i-1" if version >= 5 else None,
                client_id="app",
                client_host="/192.0.2.7",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000 if version else 10_000,
                protocol_type="consumer",
                protocols=[("range", b"range"), ("sticky", b"sticky")],
                needs_known_member_id=version >= 4,
                may_skip_assignment=version >= 9,
                reason="r" * 255 if version >= 8 else None,
            ),
        )
    ]


@pytest.mark.parametrize("version", range(10))
async def test_the_leader_learns_of_the_generation_and_its_members(groups: FakeGroups, version: int) -> None:
    groups.joined = JoinResult(
        "m-1",
        7,
        "consumer",
        "range",
        "m-1",
        [JoinedMember("m-1", "i-1", b"one"), JoinedMember("m-2", None, b"two")],
        skip_assignment=True,
    )
    told = await serve(groups, join_request(), version)
    assert (told.error_code, told.generation_id, told.protocol_name) == (0, 7, "range")
    assert (told.leader, told.member_id) == ("m-1", "m-1")
    assert told.protocol_type == ("consumer" if version >= 7 else None)
    assert told.skip_assignment == (version >= 9)
    instance = "i-1" if version >= 5 else None
    assert [(m.member_id, m.group_instance_id, bytes(m.metadata)) for m in told.members] == [
        ("m-1", instance, b"one"),
        ("m-2", None, b"two"),
    ]


@each_case("version", [0, 6, 7, 9])
@each_case(("error", "code"), GROUP_ERRORS)
async def test_a_join_without_a_generation_has_kafkas_code_and_the_members_id(
    groups: FakeGroups, error: errors.SeglogError, code: ErrorCode, version: int
) -> None:
    groups.joined, groups.error = JoinResult("m-new", error=error), None
    told = await serve(groups, join_request(member_id=""), version)
    assert (told.error_code, told.generation_id, told.member_id, told.leader) == (code, -1, "m-new", "")
    assert told.protocol_name == (None if version >= 7 else "")
    groups.error = error
    told = await serve(groups, join_request(), version)
    assert (told.error_code, told.generation_id, told.member_id) == (code, -1, "m-1")


async def test_a_client_without_an_id_has_an_empty_one(groups: FakeGroups) -> None:
    groups.joined = JoinResult("m-1", 1)
    await serve(groups, join_request(), 9, client_id=None)
    assert groups.asked[0][2].client_id == ""


async def test_a_bug_is_logged_and_answered(groups: FakeGroups) -> None:
    groups.error = ZeroDivisionError()
    with capture_logs() as logged:
        told = await serve(groups, join_request(), 9)
    assert told.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [entry["event"] for entry in logged] == ["request_crashed"]


# --- SyncGroup --------------------------------------------------------------------------------------------------------


def sync_request(version: int, **more: Any) -> messages.SyncGroupRequest:
    cls = messages.SyncGroupRequest
    brought = [cls.SyncGroupRequestAssignment(member_id=name, assignment=name.encode()) for name in ("m-1", "m-2")]
    fields: dict[str, Any] = {"group_id": "g", "generation_id": 3, "member_id": "m-1", "assignments": brought}
    if version >= 3:
        fields["group_instance_id"] = "i-1"
    if version >= 5:
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
    return cls(**{**fields, **more})


@pytest.mark.parametrize("version", range(6))
async def test_a_sync_brings_assignments_and_gets_one(groups: FakeGroups, version: int) -> None:
    groups.synced = SyncResult(b"mine", "consumer", "range")
    told = await serve(groups, sync_request(version), version)
    protocol = ("consumer", "range") if version >= 5 else (None, None)
    instance = "i-1" if version >= 3 else None
    brought = {"m-1": b"m-1", "m-2": b"m-2"}
    assert groups.asked == [("sync", "g", SyncRequest("m-1", 3, instance, protocol[0], protocol[1], brought))]
    assert (told.error_code, bytes(told.assignment)) == (0, b"mine")
    assert (told.protocol_type, told.protocol_name) == protocol


@each_case("version", range(6))
@each_case(("error", "code"), GROUP_ERRORS)
async def test_a_sync_without_an_assignment_has_kafkas_code(
    groups: FakeGroups, error: errors.SeglogError, code: ErrorCode, version: int
) -> None:
    groups.synced, groups.error = SyncResult(error=error), None
    told = await serve(groups, sync_request(version), version)
    assert (told.error_code, bytes(told.assignment)) == (code, b"")
    groups.error = error
    assert (await serve(groups, sync_request(version), version)).error_code == code


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_version_5_has_to_name_the_protocol(groups: FakeGroups, missing: str) -> None:
    told = await serve(groups, sync_request(5, **{missing: None}), 5)
    assert told.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.asked == []


@pytest.mark.parametrize(("asked", "field"), [(join_request(), "protocols"), (sync_request(5), "assignments")])
async def test_what_a_request_brings_is_kept_by_the_group_alone_while_it_waits(
    groups: FakeGroups, asked: Any, field: str
) -> None:
    async with trio.open_nursery() as nursery:
        handle = APIS[asked.API_KEY].handle
        assert handle is not None
        nursery.start_soon(handle, context_of(groups, 5), asked)
        await groups.is_waiting.wait()
        assert getattr(groups.asked[0][2], field)
        assert not getattr(asked, field)
        nursery.cancel_scope.cancel()


# --- Heartbeat --------------------------------------------------------------------------------------------------------


def heartbeat_request(version: int) -> messages.HeartbeatRequest:
    more = {"group_instance_id": "i-1"} if version >= 3 else {}
    return messages.HeartbeatRequest(group_id="g", generation_id=3, member_id="m-1", **more)


@pytest.mark.parametrize("version", range(5))
async def test_a_heartbeat_is_noted(groups: FakeGroups, version: int) -> None:
    assert (await serve(groups, heartbeat_request(version), version)).error_code == 0
    assert groups.asked == [("heartbeat", "g", "m-1", 3, "i-1" if version >= 3 else None)]


@each_case("version", range(5))
@each_case(("error", "code"), GROUP_ERRORS[1:])
async def test_a_heartbeat_tells_the_member_what_to_do(
    groups: FakeGroups, error: errors.SeglogError, code: ErrorCode, version: int
) -> None:
    groups.error = error
    assert (await serve(groups, heartbeat_request(version), version)).error_code == code


async def test_while_groups_are_loaded_every_heartbeat_is_well(groups: FakeGroups) -> None:
    groups.error = errors.CoordinatorLoadingError("loading")
    assert (await serve(groups, heartbeat_request(4), 4)).error_code == ErrorCode.NONE


# --- LeaveGroup -------------------------------------------------------------------------------------------------------


def leave_request(version: int) -> messages.LeaveGroupRequest:
    cls = messages.LeaveGroupRequest
    if version < 3:
        return cls(group_id="g", member_id="m-1")
    more = {"reason": "r" * 300} if version >= 5 else {}
    return cls(
        group_id="g",
        members=[
            cls.MemberIdentity(member_id="m-1", **more),
            cls.MemberIdentity(member_id="", group_instance_id="i-2", **more),
        ],
    )


@pytest.mark.parametrize("version", range(6))
async def test_members_leave_each_with_its_own_result(groups: FakeGroups, version: int) -> None:
    fenced = errors.FencedInstanceError("fenced")
    groups.left = [LeaveResult("m-1", None), LeaveResult("m-2", "i-2", fenced)][: 2 if version >= 3 else 1]
    told = await serve(groups, leave_request(version), version)
    assert told.error_code == 0
    reason = "r" * 255 if version >= 5 else None
    leaving = [LeavingMember("m-1", None, reason), LeavingMember("", "i-2", reason)]
    assert groups.asked == [("leave", "g", leaving if version >= 3 else [LeavingMember("m-1")])]
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in told.members] == (
        [("m-1", None, 0), ("m-2", "i-2", ErrorCode.FENCED_INSTANCE_ID)] if version >= 3 else []
    )


@pytest.mark.parametrize("version", range(3))
async def test_the_error_of_the_only_member_was_that_of_the_request(groups: FakeGroups, version: int) -> None:
    groups.left = [LeaveResult("m-1", None, errors.UnknownMemberError("who"))]
    assert (await serve(groups, leave_request(version), version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("error", [errors.UnknownGroupError("none"), errors.UnknownMemberError("who")])
async def test_an_unknown_group_has_none_of_the_members(
    groups: FakeGroups, version: int, error: errors.SeglogError
) -> None:
    groups.error = error
    told = await serve(groups, leave_request(version), version)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    if version < 3:
        assert told.error_code == unknown
    else:
        assert told.error_code == 0
        assert [(m.member_id, m.group_instance_id, m.error_code) for m in told.members] == [
            ("m-1", None, unknown),
            ("", "i-2", unknown),
        ]


@pytest.mark.parametrize("version", range(6))
async def test_an_error_of_the_group_is_one_of_all(groups: FakeGroups, version: int) -> None:
    groups.error = errors.CoordinatorLoadingError("loading")
    told = await serve(groups, leave_request(version), version)
    assert (told.error_code, told.members) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
