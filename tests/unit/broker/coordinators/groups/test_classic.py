"""The phases of a classic group: who waits for whom, what of a generation is written, who is static."""

import pytest
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.membership import LeavingMember
from seglog_protocol.errors import (
    FencedInstanceError,
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


# --- Static members of a classic group: who is started again takes the place of who was there before ------------------


def test_a_follower_that_is_started_again_takes_its_place_without_a_rebalance(statics: Coordinator) -> None:
    again = statics.join(instance_id="green").result
    assert (again.member_id, again.generation, again.leader, again.members) == ("green-3", 2, "blue-1", ())
    assert not again.skip_assignment
    assert statics.group.state == "Stable"
    assert statics.sync("green-3", instance_id="green").result.assignment == b"green-2 has it"
    assert [member.member_id for member in statics.records[-1].members] == ["blue-1", "green-3"]
    assert statics.records[-1].members[1].assignment == b"green-2 has it"
    assert statics.records[-1].generation == 2


def test_the_one_that_was_there_before_is_fenced_in_all_it_asks_for(statics: Coordinator) -> None:
    statics.join(instance_id="green")
    assert isinstance(statics.join("green-2", instance_id="green").error, FencedInstanceError)
    assert isinstance(statics.sync("green-2", instance_id="green").error, FencedInstanceError)
    with pytest.raises(FencedInstanceError, match="'green'"):
        statics.heartbeat("green-2", instance_id="green")
    with pytest.raises(FencedInstanceError):
        statics.commit("green-2", 2, "green")
    with pytest.raises(UnknownMemberError):
        statics.heartbeat("green-2")
    (left,) = statics.leave(LeavingMember("green-2", "green"))
    assert isinstance(left.error, FencedInstanceError)
    assert list(statics.group.members) == ["blue-1", "green-3"]


def test_a_leader_that_is_started_again_is_told_to_leave_the_assignments_as_they_are(statics: Coordinator) -> None:
    again = statics.join(instance_id="blue", may_skip_assignment=True).result
    assert again.skip_assignment
    assert again.leader == again.member_id == statics.group.leader == "blue-3"
    assert [member.member_id for member in again.members] == ["green-2", "blue-3"]
    assert (
        statics.sync("blue-3", assignments={"blue-3": b"other"}, instance_id="blue").result.assignment
        == b"blue-1 has it"
    )


def test_one_that_does_not_know_of_that_takes_itself_for_a_follower(statics: Coordinator) -> None:
    again = statics.join(instance_id="blue").result
    assert (again.leader, again.members, again.skip_assignment) == ("blue-1", (), False)
    assert statics.group.leader == "blue-3"
    assert statics.join("blue-3", instance_id="blue").is_waiting  # as the leader, it has a rebalance when it wants one


def test_other_metadata_under_the_same_protocol_need_no_rebalance_but_are_known(run: Coordinator) -> None:
    run.stable("blue")
    run.join(instance_id="blue", protocols=[("range", subscription("fruit"))])
    assert run.group.state == "Stable"
    assert run.group.subscribed_topics == frozenset({"fruit"})


def test_a_change_of_the_chosen_protocol_needs_a_rebalance(run: Coordinator) -> None:
    run.stable("blue", protocols=[("range", b""), ("sticky", b"")])
    again = run.join(instance_id="blue", protocols=[("sticky", b""), ("range", b"")])
    assert (again.result.generation, again.result.protocol) == (2, "sticky")


def test_before_the_assignments_it_needs_a_rebalance(run: Coordinator) -> None:
    run.stable("blue")
    run.join(instance_id="green")
    run.join("blue-1", instance_id="blue")
    syncing = run.sync("green-2", instance_id="green")
    again = run.join(instance_id="green")
    assert isinstance(syncing.error, FencedInstanceError)
    assert again.is_waiting
    run.join("blue-1", instance_id="blue")
    assert again.result.generation == 3


def test_while_members_join_the_older_request_is_fenced(run: Coordinator) -> None:
    run.stable("blue")
    older, newer = run.join(instance_id="green"), run.join(instance_id="green")
    assert isinstance(older.error, FencedInstanceError)
    run.join("blue-1", instance_id="blue")
    assert newer.result.generation == 2
    assert list(run.group.members) == ["blue-1", "green-3"]


def test_an_absent_static_member_keeps_its_place(run: Coordinator) -> None:
    """A static member that does not join again keeps its place until its session ends."""
    run.stable("blue", "green", rebalance_ms=5_000)
    run.pass_time(1_000)
    run.join("blue-1", instance_id="blue", rebalance_ms=5_000)
    run.pass_time(5_000)
    assert (run.group.state, list(run.group.members)) == ("CompletingRebalance", ["blue-1", "green-2"])
    run.sync("blue-1", instance_id="blue")
    run.pass_time(SESSION_MS - 6_001)
    run.heartbeat("blue-1")
    run.pass_time(1)
    assert (run.group.state, list(run.group.members)) == ("PreparingRebalance", ["blue-1"])


@pytest.mark.parametrize("syncs", [True, False])
def test_a_static_member_restarts_before_its_sync(syncs: bool, run: Coordinator) -> None:
    """One that had not synced may be started again and is removed unless it syncs in time."""
    run.stable("blue", rebalance_ms=20_000)
    run.join(instance_id="green", rebalance_ms=20_000)
    run.join("blue-1", instance_id="blue", rebalance_ms=20_000)
    run.sync("blue-1", instance_id="blue")
    run.join(instance_id="green", rebalance_ms=20_000)
    run.live_for(19_000, "blue-1", "green-3")
    if syncs:
        run.sync("green-3", instance_id="green")
        run.live_for(19_000, "blue-1", "green-3")
        assert (run.group.state, list(run.group.members)) == ("Stable", ["blue-1", "green-3"])
    else:
        run.pass_time(1_000)
        assert (run.group.state, list(run.group.members)) == ("PreparingRebalance", ["blue-1"])


def test_an_admin_removes_static_members_by_their_instance_ids(statics: Coordinator) -> None:
    results = statics.leave(LeavingMember("", "green"), LeavingMember("", "red"), LeavingMember(""))
    assert [result.error is None for result in results] == [True, False, False]
    assert isinstance(results[1].error, UnknownMemberError)
    assert results[0][:2] == ("", "green")
    assert list(statics.group.members) == ["blue-1"]
    with pytest.raises(RebalanceInProgressError):
        statics.heartbeat("blue-1")


def test_an_instance_that_nobody_is_does_not_join_with_a_member_id(single: Coordinator) -> None:
    assert isinstance(single.join("app-1", instance_id="blue").error, UnknownMemberError)
