"""DescribeGroups, ListGroups and DeleteGroups in all their versions: what admins see of groups."""

from typing import Any

import pytest

from seglog_broker.coordinators.groups.membership import GroupDescription, MemberDescription
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.unit.broker.listeners.kafka.fake_groups import FakeGroups
from tests.unit.broker.listeners.kafka.group_requests import serve

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


@pytest.mark.parametrize("version", range(7))
async def test_a_group_that_cannot_be_described_has_an_error(groups: FakeGroups, version: int) -> None:
    groups.error = errors.CoordinatorLoadingError("loading")
    told = await serve(groups, messages.DescribeGroupsRequest(groups=["busy", "b"]), version)
    assert [g.error_code for g in told.groups] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2


# --- ListGroups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed(groups: FakeGroups, version: int) -> None:
    told = await serve(groups, messages.ListGroupsRequest(), version)
    assert told.error_code == 0
    assert [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in told.groups] == [
        (name, "consumer", state if version >= 4 else "", kind if version >= 5 else "")
        for name, state, kind in (
            ("busy", "Stable", "classic"),
            ("moving", "PreparingRebalance", "classic"),
            ("new", "Assigning", "consumer"),
            ("quiet", "Empty", "classic"),
        )
    ]


@pytest.mark.parametrize(
    ("states", "types", "names"),
    [
        (["Stable"], [], ["busy"]),
        (["stable", " EMPTY "], [], ["busy", "quiet"]),
        ([], ["Consumer"], ["new"]),
        (["stable", "assigning"], ["consumer", "share"], ["new"]),
        (["Dead"], [], []),
        ([], ["unknown"], []),
    ],
)
async def test_states_and_types_choose_groups(
    groups: FakeGroups, states: list[str], types: list[str], names: list[str]
) -> None:
    told = await serve(groups, messages.ListGroupsRequest(states_filter=states, types_filter=types), 5)
    assert [g.group_id for g in told.groups] == names
    if not types:
        told = await serve(groups, messages.ListGroupsRequest(states_filter=states), 4)
        assert [g.group_id for g in told.groups] == names


@pytest.mark.parametrize("version", range(6))
async def test_groups_that_cannot_be_listed_are_an_error(groups: FakeGroups, version: int) -> None:
    groups.error = errors.CoordinatorNotAvailableError("stopping")
    told = await serve(groups, messages.ListGroupsRequest(), version)
    assert (told.error_code, told.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])


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


@pytest.mark.parametrize("version", range(4))
async def test_an_error_of_the_coordinator_is_one_of_every_group(groups: FakeGroups, version: int) -> None:
    groups.error = errors.CoordinatorLoadingError("loading")
    told = await serve(groups, messages.DeleteGroupsRequest(groups_names=["a", "b"]), version)
    assert [result.error_code for result in told.results] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2


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
