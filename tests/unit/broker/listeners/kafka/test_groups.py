"""Requests about groups and their members, in all versions: what groups are asked, what clients and admins are told."""

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.consumer_description import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    PartitionsOfTopic,
)
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.membership import (
    GroupDescription,
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    MemberDescription,
    SyncRequest,
    SyncResult,
)
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.errors import group_failure
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.group_requests import ID_OF, FakeGroups, context_of, serve, served_now

UNKNOWN_MEMBER = errors.UnknownMemberError("who")


@each_case(
    ("error", "api", "code"),
    [
        (errors.CoordinatorLoadingError("loading"), "JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (errors.CoordinatorNotAvailableError("no disk"), "JoinGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (errors.BrokerStoppingError("stopping"), "JoinGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (errors.DiskFullError("full"), "JoinGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (errors.PartitionReadOnlyError("broken"), "JoinGroup", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (errors.MessageTooLargeError("long"), "JoinGroup", ErrorCode.UNKNOWN_SERVER_ERROR),
        (errors.MessageTooLargeError("long"), "OffsetCommit", ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (errors.MessageTooLargeError("long"), "TxnOffsetCommit", ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (errors.NonEmptyGroupError("read"), "OffsetDelete", ErrorCode.NON_EMPTY_GROUP),
        (errors.UnknownGroupError("none"), "OffsetDelete", ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_errors_of_groups_have_kafkas_codes(error: errors.SeglogError, api: str, code: ErrorCode) -> None:
    assert group_failure(error, api) == (code, error.message)


def join_request(**more: Any) -> messages.JoinGroupRequest:
    cls = messages.JoinGroupRequest
    protocols = [cls.JoinGroupRequestProtocol(name=name, metadata=name.encode()) for name in ("range", "sticky")]
    fields = {"group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "member_id": "m-1"}
    return cls(**{**fields, "protocol_type": "consumer", "protocols": protocols, **more})


# --- JoinGroup --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_a_join_is_asked_as_its_version_means_it_and_the_leader_learns_of_the_members(
    groups: FakeGroups, version: int
) -> None:
    members = [JoinedMember("m-1", "i-1", b"one"), JoinedMember("m-2", None, b"two")]
    groups.joined = JoinResult("m-1", 7, "consumer", "range", "m-1", members, skip_assignment=True)
    told = await serve(groups, join_request(group_instance_id="i-1", reason="r" * 300), version)
    instance = "i-1" if version >= 5 else None
    asked = JoinRequest(
        member_id="m-1",
        instance_id=instance,
        client_id="app",
        client_host="/192.0.2.7",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000 if version else 10_000,
        protocol_type="consumer",
        protocols=[("range", b"range"), ("sticky", b"sticky")],
        needs_known_member_id=version >= 4,
        may_skip_assignment=version >= 9,
    )
    assert groups.asked == [("join", "g", asked)]
    assert (told.error_code, told.generation_id, told.protocol_name) == (0, 7, "range")
    assert (told.leader, told.member_id, told.skip_assignment) == ("m-1", "m-1", version >= 9)
    assert told.protocol_type == ("consumer" if version >= 7 else None)
    assert [(m.member_id, m.group_instance_id, bytes(m.metadata)) for m in told.members] == [
        ("m-1", instance, b"one"),
        ("m-2", None, b"two"),
    ]


@each_case("version", [0, 6, 7, 9])
async def test_a_join_without_a_generation_has_its_error_and_the_members_id(version: int) -> None:
    groups = FakeGroups()
    groups.joined = JoinResult("m-new", error=UNKNOWN_MEMBER)
    told = await serve(groups, join_request(member_id=""), version)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert (told.error_code, told.generation_id, told.member_id, told.leader) == (unknown, -1, "m-new", "")
    assert told.protocol_name == (None if version >= 7 else "")
    groups.error = UNKNOWN_MEMBER
    told = await serve(groups, join_request(), version)
    assert (told.error_code, told.generation_id, told.member_id) == (unknown, -1, "m-1")


async def test_a_bug_is_logged_and_answered(groups: FakeGroups) -> None:
    groups.error = ZeroDivisionError()
    with capture_logs() as logged:
        told = await serve(groups, join_request(), 9)
    assert told.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert [entry["event"] for entry in logged] == ["request_crashed"]


# --- SyncGroup --------------------------------------------------------------------------------------------------------


def sync_request(**more: Any) -> messages.SyncGroupRequest:
    cls = messages.SyncGroupRequest
    brought = [cls.SyncGroupRequestAssignment(member_id=name, assignment=name.encode()) for name in ("m-1", "m-2")]
    fields = {"group_id": "g", "generation_id": 3, "member_id": "m-1", "group_instance_id": "i-1"}
    return cls(**{**fields, "protocol_type": "consumer", "protocol_name": "range", "assignments": brought, **more})


@pytest.mark.parametrize("version", [2, 4, 5])
async def test_a_sync_brings_assignments_and_gets_one(groups: FakeGroups, version: int) -> None:
    groups.synced = SyncResult(b"mine", "consumer", "range")
    told = await serve(groups, sync_request(), version)
    kind, name = ("consumer", "range") if version >= 5 else (None, None)
    brought = {"m-1": b"m-1", "m-2": b"m-2"}
    asked = SyncRequest("m-1", 3, "i-1" if version >= 3 else None, kind, name, brought)
    assert groups.asked == [("sync", "g", asked)]
    assert (told.error_code, bytes(told.assignment), told.protocol_type, told.protocol_name) == (0, b"mine", kind, name)


async def test_a_sync_without_an_assignment_has_its_error(groups: FakeGroups) -> None:
    groups.synced = SyncResult(error=UNKNOWN_MEMBER)
    told = await serve(groups, sync_request(), 5)
    assert (told.error_code, bytes(told.assignment)) == (ErrorCode.UNKNOWN_MEMBER_ID, b"")
    groups.error = UNKNOWN_MEMBER
    assert (await serve(groups, sync_request(), 5)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_version_5_has_to_name_the_protocol(groups: FakeGroups, missing: str) -> None:
    told = await serve(groups, sync_request(**{missing: None}), 5)
    assert told.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert groups.asked == []


@pytest.mark.parametrize(("asked", "field"), [(join_request(), "protocols"), (sync_request(), "assignments")])
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


async def test_a_heartbeat_is_noted_and_while_groups_are_loaded_every_one_is_well(groups: FakeGroups) -> None:
    request = messages.HeartbeatRequest(group_id="g", generation_id=3, member_id="m-1", group_instance_id="i-1")
    for groups.error, code in (
        (None, ErrorCode.NONE),
        (UNKNOWN_MEMBER, ErrorCode.UNKNOWN_MEMBER_ID),
        (errors.CoordinatorLoadingError("loading"), ErrorCode.NONE),
    ):
        assert (await serve(groups, request, 4)).error_code == code
    assert groups.asked == [("heartbeat", "g", "m-1", 3, "i-1")] * 3


# --- LeaveGroup -------------------------------------------------------------------------------------------------------


MEMBERS = [
    messages.LeaveGroupRequest.MemberIdentity(member_id="m-1", reason="r" * 300),
    messages.LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id="i-2", reason="r" * 300),
]
LEAVING = messages.LeaveGroupRequest(group_id="g", member_id="m-1", members=MEMBERS)


@pytest.mark.parametrize("version", range(6))
async def test_members_leave_each_with_its_own_result(groups: FakeGroups, version: int) -> None:
    fenced = errors.FencedInstanceError("fenced")
    count = 2 if version >= 3 else 1
    groups.left = [LeaveResult("m-1", None), LeaveResult("m-2", "i-2", fenced)][:count]
    told = await serve(groups, LEAVING, version)
    assert told.error_code == 0
    assert groups.asked == [("leave", "g", [LeavingMember("m-1"), LeavingMember("", "i-2")][:count])]
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in told.members] == (
        [("m-1", None, 0), ("m-2", "i-2", ErrorCode.FENCED_INSTANCE_ID)] if version >= 3 else []
    )


async def test_the_error_of_the_only_member_was_that_of_the_request(groups: FakeGroups) -> None:
    groups.left = [LeaveResult("m-1", None, UNKNOWN_MEMBER)]
    assert (await serve(groups, LEAVING, 2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@each_case("version", [2, 3, 5])
@each_case("error", [errors.UnknownGroupError("none"), UNKNOWN_MEMBER])
async def test_an_unknown_group_has_none_of_the_members(error: errors.SeglogError, version: int) -> None:
    groups = FakeGroups()
    groups.error = error
    told = await serve(groups, LEAVING, version)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert told.error_code == (unknown if version < 3 else 0)
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in told.members] == (
        [("m-1", None, unknown), ("", "i-2", unknown)] if version >= 3 else []
    )
    groups.error = errors.CoordinatorLoadingError("loading")
    told = await serve(groups, LEAVING, version)
    assert (told.error_code, told.members) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []), "of all of them"


# --- ConsumerGroupHeartbeat and ConsumerGroupDescribe in their versions: what members of KIP-848 and admins are told --


ORDERS = ID_OF["orders"]


async def test_partitions_of_a_topic_that_is_named_twice_are_owned_together(groups: FakeGroups) -> None:
    groups.heartbeat_result = HeartbeatResult("m-1", 4, 5_000)
    owned = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    topics = [owned(topic_id=ORDERS, partitions=[number]) for number in range(2)]
    await serve(groups, messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", topic_partitions=topics), 1)
    assert groups.asked[0][2].owned == {ORDERS: frozenset({0, 1})}


def described() -> ConsumerGroupDescription:
    assigned = [PartitionsOfTopic(ORDERS, "orders", [0])]
    target = [PartitionsOfTopic(ORDERS, "orders", [0, 1])]
    members = [
        ConsumerMemberDescription(
            "m-1", "i-1", "r-1", 3, "app", "/192.0.2.7", ["orders"], "o.*", assigned, target, False, 45_000, 5
        ),
        ConsumerMemberDescription("m-2", None, None, 4, "app", "/192.0.2.8", [], "", [], [], True, 10_000, 5),
    ]
    return ConsumerGroupDescription("readers", "Reconciling", 5, 4, "uniform", members)


async def test_groups_named_twice_and_groups_that_do_not_fit() -> None:
    """A real Kafka describes it each time."""
    groups = FakeGroups()
    groups.consumer_descriptions = {"readers": described(), "others": described()}
    request = messages.ConsumerGroupDescribeRequest(group_ids=["readers", "none", "others"] * 1_000)
    told = await serve(groups, request, 1)
    assert [(group.group_id, group.error_code, len(group.members)) for group in told.groups] == [
        ("readers", 0, 2),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND, 0),
        ("others", 0, 2),
    ]
    told = await serve(groups, request, 1, response_bytes_max=3_000)
    assert [(group.error_code, len(group.members)) for group in told.groups] == [
        (0, 2),
        (ErrorCode.GROUP_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_REQUEST, 0),
    ]


# --- DescribeGroups, ListGroups and DeleteGroups in all their versions: what admins see of groups ---------------------


MEMBER = MemberDescription("m-1", "i-1", "app", "/192.0.2.7", b"topics", b"partitions", 10_000, 5)
ALL_GROUP_OPERATIONS = 0b1101_0100_1000


def description(name: str, state: str, kind: str = "classic", *members: MemberDescription) -> GroupDescription:
    return GroupDescription(name, kind, state, 3, "consumer", "range", "m-1", members)


@pytest.fixture
def groups() -> FakeGroups:
    groups = FakeGroups()
    for group in (
        description("busy", "Stable", "classic", MEMBER),
        description("moving", "PreparingRebalance", "classic", MEMBER),
        description("quiet", "Empty"),
        description("new", "Assigning", "consumer", MEMBER),
    ):
        groups.descriptions[group.group] = group
    return groups


# --- DescribeGroups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_while_a_group_is_stable_its_members_have_what_they_read(groups: FakeGroups, version: int) -> None:
    told = await serve(groups, messages.DescribeGroupsRequest(groups=["busy", "moving", "quiet"]), version)
    busy, moving, quiet = told.groups
    assert [(g.error_code, g.group_id, g.group_state, g.protocol_type, g.protocol_data) for g in told.groups] == [
        (0, "busy", "Stable", "consumer", "range"),
        (0, "moving", "PreparingRebalance", "consumer", ""),
        (0, "quiet", "Empty", "consumer", ""),
    ]
    (member,) = busy.members
    assert (member.member_id, member.client_id, member.client_host) == ("m-1", "app", "/192.0.2.7")
    assert member.group_instance_id == ("i-1" if version >= 4 else None)
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"topics", b"partitions")
    assert [(bytes(m.member_metadata), bytes(m.member_assignment)) for m in moving.members] == [(b"", b"partitions")]
    assert (busy.authorized_operations, quiet.members) == (-(2**31), []), "not asked for"


@pytest.mark.parametrize("version", range(7))
async def test_an_unknown_group_is_dead(groups: FakeGroups, version: int) -> None:
    request = messages.DescribeGroupsRequest(groups=["missing", "new", "busy"], **asking_for_operations(version))
    told = await serve(groups, request, version)
    operations = ALL_GROUP_OPERATIONS if version >= 3 else -(2**31)
    code, none = (ErrorCode.GROUP_ID_NOT_FOUND, -(2**31)) if version >= 6 else (0, operations)
    assert [(g.group_id, g.group_state, g.error_code, g.authorized_operations) for g in told.groups] == [
        ("missing", "Dead", code, none),
        ("new", "Dead", code, none),
        ("busy", "Stable", 0, operations),
    ]
    if version >= 6:
        assert [g.error_message for g in told.groups] == [
            "there is no group missing",
            "Group new is not a classic group.",
            None,
        ]


def asking_for_operations(version: int) -> dict[str, Any]:
    return {"include_authorized_operations": True} if version >= 3 else {}


async def test_what_cannot_be_told_or_deleted_has_the_error_of_the_coordinator(groups: FakeGroups) -> None:
    groups.error = errors.CoordinatorLoadingError("loading")
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    told = await serve(groups, messages.DescribeGroupsRequest(groups=["busy", "b"]), 6)
    assert [g.error_code for g in told.groups] == [loading] * 2
    told = await serve(groups, messages.ListGroupsRequest(), 5)
    assert (told.error_code, told.groups) == (loading, [])
    told = await serve(groups, messages.DeleteGroupsRequest(groups_names=["a", "b"]), 3)
    assert [result.error_code for result in told.results] == [loading] * 2


# --- DeleteGroups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_groups_are_deleted_each_once_with_its_own_result(groups: FakeGroups, version: int) -> None:
    groups.results = [None, errors.NonEmptyGroupError("read"), errors.UnknownGroupError("none")]
    request = messages.DeleteGroupsRequest(groups_names=["quiet", "busy", "quiet", "missing"])
    told = await serve(groups, request, version)
    assert groups.asked == [("delete", ["quiet", "busy", "missing"])]
    assert [(result.group_id, result.error_code) for result in told.results] == [
        ("quiet", 0),
        ("busy", ErrorCode.NON_EMPTY_GROUP),
        ("missing", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert [result.error_message for result in told.results] == ([None, "read", "none"] if version >= 3 else [None] * 3)


# --- Many times, and too much -----------------------------------------------------------------------------------------


async def test_a_group_that_is_named_many_times_is_described_once(groups: FakeGroups) -> None:
    """A real Kafka describes it each time: so 4,000 names in a request made an answer of 3.5 GB."""
    told = await serve(groups, messages.DescribeGroupsRequest(groups=["busy", "missing"] * 2_000), 6)
    assert [group.group_id for group in told.groups] == ["busy", "missing"]
    assert len(groups.asked) == 2


async def test_groups_that_do_not_fit_a_response_are_refused_one_by_one(groups: FakeGroups) -> None:
    large = MEMBER._replace(metadata=bytes(5_000))
    groups.descriptions["large"] = description("large", "Stable", "classic", large)
    asked = messages.DescribeGroupsRequest(groups=["busy", "large", "quiet"])
    told = await serve(groups, asked, 6, response_bytes_max=5_000)
    assert [(group.group_id, group.error_code, len(group.members)) for group in told.groups] == [
        ("busy", 0, 1),
        ("large", ErrorCode.INVALID_REQUEST, 0),
        ("quiet", 0, 0),
    ]
    assert "ask for less" in told.groups[1].error_message
    listed = await serve(groups, messages.ListGroupsRequest(), 5, response_bytes_max=200)
    assert (listed.error_code, listed.groups) == (ErrorCode.INVALID_REQUEST, [])


# --- FindCoordinator in every version: this node for groups, and for others an error that no client waits behind ------


GROUP, SHARE = 0, 2
VERSIONS = range(7)
HERE = (1, "here", 9092)
NOWHERE = (-1, "", -1)


async def found(groups: FakeGroups, version: int, kind: int, key: str = "readers") -> tuple[Any, int, str | None]:
    """The address and the error for a key, from where a client of this version looks for it."""
    request = messages.FindCoordinatorRequest()
    if version < 4:
        request.key = key
    else:
        request.coordinator_keys = [key, "others"]
    if version >= 1:
        request.key_type = kind
    response = await serve(groups, request, version)
    answer = response
    if version >= 4:
        assert [each.key for each in response.coordinators] == [key, "others"]
        answer = response.coordinators[0]
    return (answer.node_id, answer.host, answer.port), answer.error_code, answer.error_message


@each_case("version", VERSIONS)
@each_case(
    ("error", "key", "where", "code", "why"),
    [
        (None, "", NOWHERE, ErrorCode.INVALID_GROUP_ID, "the group id is empty"),
        (errors.CoordinatorLoadingError("loading"), "readers", HERE, 0, None),
        (errors.DiskFullError("no disk"), "readers", NOWHERE, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no disk"),
    ],
)
async def test_groups_without_a_name_and_those_that_cannot_be_written_have_no_coordinator(
    error: Exception | None, key: str, where: object, code: int, why: str | None, version: int
) -> None:
    groups = FakeGroups()
    groups.error = error
    assert await found(groups, version, GROUP, key) == (where, code, why if version else "")


@each_case("version", VERSIONS[1:])
async def test_nobody_waits_for_a_coordinator_that_there_is_not(version: int) -> None:
    where, given, why = await found(FakeGroups(), version, SHARE)
    assert (where, given) == (NOWHERE, ErrorCode.INVALID_REQUEST)
    assert "seglog has no" in (why or "")


async def test_very_many_groups_are_looked_up_in_turns(groups: FakeGroups) -> None:
    request = messages.FindCoordinatorRequest(coordinator_keys=[f"g-{number}" for number in range(1201)])
    assert served_now(groups, request, 6) is None
    assert groups.asked == []
    response = await serve(groups, request, 6)
    assert [(each.key, each.port) for each in response.coordinators] == [(f"g-{n}", 9092) for n in range(1201)]
