"""Static members of a classic group: who is started again takes the place of who was there before."""

import pytest

from seglog_broker.coordinators.groups.membership import LeavingMember
from seglog_protocol.errors import FencedInstanceError, RebalanceInProgressError, UnknownMemberError
from tests.unit.broker.coordinators.groups.classic_coordinator import SESSION_MS, Coordinator, subscription


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
