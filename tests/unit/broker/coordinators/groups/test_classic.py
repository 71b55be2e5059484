"""The phases of a classic group: who waits for whom, what a generation is, and what of it is written."""

import pytest
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.membership import LeavingMember
from seglog_protocol.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from tests.unit.broker.coordinators.groups.classic_coordinator import (
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Coordinator,
    subscription,
)


def test_a_single_member_joins_leads_syncs_and_lives_by_heartbeats(run: Coordinator) -> None:
    joined = run.join().result
    assert (joined.member_id, joined.leader, joined.generation) == ("app-1", "app-1", 1)
    assert (joined.protocol_type, joined.protocol, joined.skip_assignment) == ("consumer", "range", False)
    assert joined.members == [("app-1", None, subscription("orders"))]
    assert run.group.state == "CompletingRebalance"

    synced = run.sync("app-1", assignments={"app-1": b"all", "another": b"nothing"}).result
    assert synced == (b"all", "consumer", "range", None)
    assert run.group.state == "Stable"

    run.live_for(10 * SESSION_MS, "app-1")
    run.pass_time(SESSION_MS - 1)
    assert run.group.state == "Stable"
    run.pass_time(1)
    assert (run.group.state, run.group.generation, len(run.group.members)) == ("Empty", 2, 0)
    with pytest.raises(UnknownMemberError, match="'app-1'"):
        run.heartbeat("app-1")
    assert run.group.deadline_ms is None


def test_when_a_generation_is_written(run: Coordinator) -> None:
    """A generation is written without members when it is handed out and with them when it is assigned."""
    run.join(instance_id="blue")
    handed_out = run.records[-1]
    assert (handed_out.generation, handed_out.members, handed_out.leader, handed_out.protocol) == (1, [], None, None)
    assert (handed_out.protocol_type, handed_out.current_state_timestamp) == ("consumer", WALL_MS)

    run.pass_time(50)
    run.sync("blue-1", assignments={"blue-1": b"all"}, instance_id="blue")
    assert len(run.records) == 2
    assigned = run.records[-1]
    assert (assigned.generation, assigned.leader, assigned.protocol) == (1, "blue-1", "range")
    assert assigned.current_state_timestamp == WALL_MS + 50
    (member,) = assigned.members
    assert (member.member_id, member.group_instance_id, member.client_id) == ("blue-1", "blue", "app")
    assert (member.client_host, member.session_timeout, member.rebalance_timeout) == (
        "/10.0.0.1",
        SESSION_MS,
        REBALANCE_MS,
    )
    assert (member.subscription, member.assignment) == (subscription("orders"), b"all")

    run.leave(LeavingMember("", "blue"))
    assert len(run.records) == 3
    emptied = run.records[-1]
    assert (emptied.generation, emptied.members, emptied.leader, emptied.protocol) == (2, [], None, None)
    assert run.group.empty_since_ms == emptied.current_state_timestamp == WALL_MS + 50


def test_a_new_member_has_the_others_join_again_and_the_last_to_join_ends_the_wait(single: Coordinator) -> None:
    second = single.join()
    assert second.is_waiting
    assert single.group.state == "PreparingRebalance"
    with pytest.raises(RebalanceInProgressError):
        single.heartbeat("app-1")

    first = single.join("app-1")
    assert first.result.generation == second.result.generation == 2
    assert first.result.leader == second.result.leader == "app-1"
    assert [member.member_id for member in first.result.members] == ["app-1", "app-2"]
    assert second.result.members == ()


def test_followers_wait_for_the_assignments_of_the_leader(single: Coordinator) -> None:
    single.join()
    single.join("app-1")
    follower = single.sync("app-2")
    assert follower.is_waiting
    single.heartbeat("app-2")
    leader = single.sync("app-1", assignments={"app-2": b"mine"})
    assert leader.result.assignment == b""
    assert follower.result.assignment == b"mine"
    assert single.sync("app-2").result.assignment == b"mine"  # once more, if the answer was lost


def test_a_member_that_does_not_join_again_is_dropped_after_the_rebalance_timeout(run: Coordinator) -> None:
    run.stable(None, None, rebalance_ms=5_000)
    third = run.join(rebalance_ms=2_000)
    run.join("app-2", rebalance_ms=5_000)
    run.pass_time(4_999)
    assert third.is_waiting
    run.pass_time(1)
    assert third.result.leader == "app-2"
    assert list(run.group.members) == ["app-2", "app-3"]
    with pytest.raises(UnknownMemberError):
        run.heartbeat("app-1")


def test_members_that_never_sync_are_removed(single: Coordinator) -> None:
    """Members that never sync are removed after the rebalance timeout and the others join again."""
    single.join(rebalance_ms=20_000)
    single.join("app-1", rebalance_ms=20_000)
    assert single.sync("app-1", assignments={"app-1": b"all"}).result.assignment == b"all"
    single.live_for(19_000, "app-1", "app-2")
    single.pass_time(1_000)
    assert (single.group.state, list(single.group.members)) == ("PreparingRebalance", ["app-1"])


def test_followers_of_a_leader_that_never_syncs_are_told_to_join_again(single: Coordinator) -> None:
    single.join(rebalance_ms=20_000)
    single.join("app-1", rebalance_ms=20_000)
    follower = single.sync("app-2")
    single.live_for(19_000, "app-1")
    assert follower.is_waiting  # and its session does not end, because it waits
    single.pass_time(1_000)
    assert isinstance(follower.error, RebalanceInProgressError)
    assert single.join("app-2").result.leader == "app-2"


def test_followers_of_a_leader_that_dies_are_told_within_its_session_timeout(single: Coordinator) -> None:
    single.join()
    single.join("app-1")
    follower = single.sync("app-2")
    single.pass_time(SESSION_MS - 1)
    assert follower.is_waiting
    with capture_logs() as logged:
        single.pass_time(1)
    assert isinstance(follower.error, RebalanceInProgressError)
    assert [(e["event"], e["member"], e["session_timeout_ms"]) for e in logged] == [
        ("group_member_timed_out", "app-1", SESSION_MS)
    ]


def test_sync_is_refused(single: Coordinator) -> None:
    """Sync is refused for another generation protocol or member and while members join."""
    assert isinstance(single.sync("nobody").error, UnknownMemberError)
    assert isinstance(single.sync("app-1", generation=2).error, IllegalGenerationError)
    assert isinstance(single.sync("app-1", protocol="sticky").error, InconsistentGroupProtocolError)
    assert isinstance(single.sync("app-1", protocol_type="connect").error, InconsistentGroupProtocolError)
    single.join()
    assert isinstance(single.sync("app-1", protocol="range", protocol_type="consumer").error, RebalanceInProgressError)
