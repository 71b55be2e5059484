"""ConsumerGroupHeartbeat and ConsumerGroupDescribe in their versions: what members of KIP-848 and admins are told."""

import pytest

from seglog_broker.coordinators.groups.consumer_description import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    PartitionsOfTopic,
)
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.unit.broker.listeners.kafka.fake_groups import FakeGroups
from tests.unit.broker.listeners.kafka.group_requests import ID_OF, serve

ORDERS = ID_OF["orders"]


async def test_all_that_a_member_says_arrives_and_it_learns_what_it_is_to_have(groups: FakeGroups) -> None:
    groups.heartbeat_result = ConsumerHeartbeatResult("m-1", 4, 5_000, {ORDERS: frozenset({1, 0})})
    owned = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    told = await serve(
        groups,
        messages.ConsumerGroupHeartbeatRequest(
            group_id="readers",
            member_id="m-1",
            member_epoch=3,
            instance_id="i-1",
            rack_id="r-1",
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["orders"],
            subscribed_topic_regex="o.*",
            server_assignor="range",
            topic_partitions=[owned(topic_id=ORDERS, partitions=[0]), owned(topic_id=ORDERS, partitions=[1])],
        ),
        1,
    )
    assert groups.asked == [
        (
            "consumer_heartbeat",
            "readers",
            ConsumerHeartbeat(
                "m-1",
                3,
                "i-1",
                "r-1",
                60_000,
                ["orders"],
                "o.*",
                "range",
                {ORDERS: frozenset({0, 1})},
                "app",
                "/192.0.2.7",
            ),
        )
    ]
    assert (told.error_code, told.member_id, told.member_epoch, told.heartbeat_interval_ms) == (0, "m-1", 4, 5_000)
    assert [(bytes(t.topic_id), t.partitions) for t in told.assignment.topic_partitions] == [(ORDERS, [0, 1])]


@pytest.mark.parametrize("version", [0, 1])
async def test_what_a_member_leaves_out_is_left_out(groups: FakeGroups, version: int) -> None:
    groups.heartbeat_result = ConsumerHeartbeatResult("m-1", 4, 5_000)
    request = messages.ConsumerGroupHeartbeatRequest(group_id="readers", member_id="m-1", member_epoch=4)
    told = await serve(groups, request, version)
    (_, _, heartbeat) = groups.asked[0]
    assert heartbeat == ConsumerHeartbeat("m-1", 4, client_id="app", client_host="/192.0.2.7")
    assert told.assignment is None


async def test_since_version_1_members_make_their_ids(groups: FakeGroups) -> None:
    groups.heartbeat_result = ConsumerHeartbeatResult("made", 1, 5_000, {})
    request = messages.ConsumerGroupHeartbeatRequest(
        group_id="readers", rebalance_timeout_ms=9, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert (await serve(groups, request, 0)).member_id == "made"
    told = await serve(groups, request, 1)
    assert told.error_code == ErrorCode.INVALID_REQUEST
    assert "member_id" in told.error_message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownMemberError("m"), ErrorCode.UNKNOWN_MEMBER_ID),
        (errors.FencedMemberEpochError("m"), ErrorCode.FENCED_MEMBER_EPOCH),
        (errors.UnreleasedInstanceError("m"), ErrorCode.UNRELEASED_INSTANCE_ID),
        (errors.UnsupportedAssignorError("m"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (errors.InvalidRegularExpressionError("m"), ErrorCode.INVALID_REGULAR_EXPRESSION),
        (errors.FencedInstanceError("m"), ErrorCode.FENCED_INSTANCE_ID),
        (errors.GroupMaxSizeError("m"), ErrorCode.GROUP_MAX_SIZE_REACHED),
        (errors.CoordinatorNotAvailableError("m"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_errors_have_kafkas_codes_and_a_sentence(groups: FakeGroups, error: Exception, code: ErrorCode) -> None:
    groups.error = error
    told = await serve(groups, messages.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m"), 1)
    assert (told.error_code, told.error_message, told.member_id, told.assignment) == (code, "m", None, None)


def described() -> ConsumerGroupDescription:
    assigned = [PartitionsOfTopic(ORDERS, "orders", [0])]
    target = [PartitionsOfTopic(ORDERS, "orders", [0, 1])]
    members = [
        ConsumerMemberDescription(
            "m-1", "i-1", "r-1", 3, "app", "/192.0.2.7", ["orders"], "o.*", assigned, target, False, 45_000, 5
        ),
        ConsumerMemberDescription("m-2", None, None, 4, "app", "/192.0.2.8", [], "", [], [], True, 10_000, 5),
    ]
    return ConsumerGroupDescription("readers", "Reconciling", 4, 4, "uniform", members)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_group_is_described_with_what_members_have_and_are_to_have(groups: FakeGroups, version: int) -> None:
    groups.consumer_descriptions["readers"] = described()
    request = messages.ConsumerGroupDescribeRequest(group_ids=["readers", "none"], include_authorized_operations=True)
    told = await serve(groups, request, version)
    found, missing = told.groups
    assert (missing.group_id, missing.error_code, missing.error_message) == (
        "none",
        ErrorCode.GROUP_ID_NOT_FOUND,
        "there is no group none",
    )
    assert (found.group_id, found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        "readers",
        "Reconciling",
        4,
        4,
        "uniform",
    )
    assert found.authorized_operations == 0b1101_0100_1000
    first, second = found.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m-1", "i-1", "r-1", 3)
    assert (first.client_id, first.client_host) == ("app", "/192.0.2.7")
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["orders"], "o.*")
    assert second.subscribed_topic_regex == ""
    (has,) = first.assignment.topic_partitions
    (is_to_have,) = first.target_assignment.topic_partitions
    assert (bytes(has.topic_id), has.topic_name, has.partitions, is_to_have.partitions) == (
        ORDERS,
        "orders",
        [0],
        [0, 1],
    )
    assert [member.member_type for member in found.members] == ([1, 0] if version else [-1, -1])


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
