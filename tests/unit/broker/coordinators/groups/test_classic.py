"""A classic group: who waits for whom, what of a generation is written, who is static, lives, leaves and commits."""

import pytest
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.membership import LeavingMember
from seglog_protocol.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from seglog_protocol.kafka.messages import GroupMetadataValue
from tests.support import calls_of, each_case
from tests.unit.broker.coordinators.groups.classic_coordinator import (
    REBALANCE_MS,
    SESSION_MS,
    Coordinator,
    subscription,
)
from tests.unit.broker.coordinators.groups.consumer_coordinator import WALL_MS


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


def test_a_rebalance_that_is_asked_for_leaves_members_their_ids_and_one_whose_session_is_ended_is_gone(
    pair: Coordinator,
) -> None:
    generation = pair.group.generation
    for _ in range(2):  # the second time it is under way
        pair.group.rebalance(pair.now)
    for member in ("app-1", "app-2"):
        with pytest.raises(RebalanceInProgressError):
            pair.heartbeat(member)
    rejoined = [pair.join(member) for member in ("app-1", "app-2")]
    assert [(asked.result.member_id, asked.result.generation) for asked in rejoined] == [
        ("app-1", generation + 1),
        ("app-2", generation + 1),
    ]
    waiting = pair.sync("app-2")
    pair.group.rebalance(pair.now)
    pair.deliver()
    assert isinstance(waiting.error, RebalanceInProgressError), "also while they wait for the leader"
    pair.group.end_session("app-1", pair.now)
    with pytest.raises(UnknownMemberError):
        pair.heartbeat("app-1")
    with pytest.raises(RebalanceInProgressError):
        pair.heartbeat("app-2")


def test_sync_is_refused(single: Coordinator) -> None:
    """Sync is refused for another generation protocol or member and while members join."""
    assert isinstance(single.sync("nobody").error, UnknownMemberError)
    assert isinstance(single.sync("app-1", generation=2).error, IllegalGenerationError)
    assert isinstance(single.sync("app-1", protocol="sticky").error, InconsistentGroupProtocolError)
    assert isinstance(single.sync("app-1", protocol_type="connect").error, InconsistentGroupProtocolError)
    single.join()
    assert isinstance(single.sync("app-1", protocol="range", protocol_type="consumer").error, RebalanceInProgressError)


# --- Static members: who is started again takes the place of who was there before -------------------------------------


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


def test_while_members_join_the_older_request_is_fenced(run: Coordinator) -> None:
    run.stable("blue")
    older, newer = run.join(instance_id="green"), run.join(instance_id="green")
    assert isinstance(older.error, FencedInstanceError)
    run.join("blue-1", instance_id="blue")
    assert newer.result.generation == 2
    assert list(run.group.members) == ["blue-1", "green-3"]


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


# --- Living and leaving -----------------------------------------------------------------------------------------------


def test_a_heartbeat_that_comes_before_the_group_is_called_is_in_time(single: Coordinator) -> None:
    single.now_ms += 2 * SESSION_MS  # the broker had no time
    single.heartbeat("app-1")
    single.group.advance(single.now)
    assert single.group.state == "Stable"


def test_a_heartbeat_of_another_generation_or_of_nobody_is_refused(single: Coordinator) -> None:
    with pytest.raises(IllegalGenerationError, match="at generation 1, member 'app-1' at 0") as refused:
        single.heartbeat("app-1", generation=0)
    assert refused.value.generation == 1
    with pytest.raises(UnknownMemberError) as unknown:
        single.heartbeat("app-2")
    assert unknown.value.member_id == "app-2"
    single.pass_time(SESSION_MS)
    assert single.group.is_empty  # neither counted


def test_the_last_to_leave_a_rebalance_ends_the_wait_of_the_others(single: Coordinator) -> None:
    second = single.join()
    single.leave(LeavingMember("app-1"))
    assert second.result.leader == "app-2"


@pytest.mark.parametrize("does_sync", [True, False])
def test_requests_of_a_member_that_leaves_are_answered(does_sync: bool, single: Coordinator) -> None:
    waiting = single.join()
    if does_sync:
        single.join("app-1")
        waiting = single.sync("app-2")
    single.leave(LeavingMember("app-2"))
    assert isinstance(waiting.error, UnknownMemberError)


def test_a_group_whose_last_member_leaves_while_it_waits_for_a_new_one_is_empty(single: Coordinator) -> None:
    single.join(needs_known_member_id=True)
    single.leave(LeavingMember("app-1"))
    assert (single.group.state, single.group.generation) == ("Empty", 2)
    assert single.join("app-2", needs_known_member_id=True).result.generation == 3


# --- Commits, deletion ------------------------------------------------------------------------------------------------


def test_who_is_no_member_commits_to_an_empty_group_only(run: Coordinator) -> None:
    run.commit()
    run.stable(None)
    with pytest.raises(UnknownMemberError, match=r"app-1 \(10.0.0.1\)"):
        run.commit()
    run.leave(LeavingMember("app-1"))
    run.commit()


def test_when_a_member_may_commit(single: Coordinator) -> None:
    """A member commits in its generation also while members join but not before the assignments."""
    single.commit("app-1", 1)
    with pytest.raises(IllegalGenerationError):
        single.commit("app-1", 0)
    with pytest.raises(IllegalGenerationError):
        single.commit("app-1")
    with pytest.raises(UnknownMemberError):
        single.commit("app-2", 1)
    single.join()
    single.commit("app-1", 1)  # what it has read until now, before it joins
    single.join("app-1")
    with pytest.raises(RebalanceInProgressError):
        single.commit("app-1", 2)
    with pytest.raises(IllegalGenerationError):
        single.commit("app-1", 1)


def test_a_commit_counts_as_a_heartbeat(single: Coordinator) -> None:
    single.pass_time(SESSION_MS - 1)
    single.commit("app-1", 1)
    single.pass_time(SESSION_MS - 1)
    assert single.group.state == "Stable"


def test_a_group_with_members_is_not_deleted_and_says_who_they_are() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    run.group.check_delete()
    for _ in range(7):
        run.join()
    with pytest.raises(NonEmptyGroupError, match="2 more") as refused:
        run.group.check_delete()
    assert refused.value.members == [f"app-{number}" for number in range(1, 8)]


# --- What a group says of itself --------------------------------------------------------------------------------------


def test_a_stable_group_is_described_with_metadata_and_assignments(run: Coordinator) -> None:
    run.stable("blue")
    run.pass_time(1_500)
    group = run.group.described_as_classic(run.now)
    assert group[:7] == ("workers", "classic", "Stable", 1, "consumer", "range", "blue-1")
    assert list(group.members) == [
        ("blue-1", "blue", "app", "/10.0.0.1", subscription("orders"), b"blue-1 has it", SESSION_MS, 1_500)
    ]


def test_while_members_join_it_is_described_without_metadata(single: Coordinator) -> None:
    single.join()
    group = single.group.described_as_classic(single.now)
    assert (group.state, group.protocol) == ("PreparingRebalance", "")
    assert [(member.metadata, member.assignment) for member in group.members] == [(b"", b"app-1 has it"), (b"", b"")]


def test_the_topics_of_a_group_are_those_that_any_member_reads() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    assert run.group.subscribed_topics == frozenset()
    run.join(protocols=[("range", subscription("orders", "fruit"))])
    run.join(protocols=[("range", subscription("fruit", "people", version=0))])
    run.pass_time(6_000)
    assert run.group.subscribed_topics == frozenset({"orders", "fruit", "people"})


@each_case(
    ("protocol_type", "metadata"),
    [("consumer", b""), ("consumer", b"\x00\x00\x00\x00\x00\x09\x00"), ("consumer", b"\xff\xff"), ("connect", b"")],
)
def test_topics_are_unknown_where_metadata_are_malformed_or_of_another_protocol_type(
    protocol_type: str, metadata: bytes
) -> None:
    run = Coordinator()
    run.join(protocol_type=protocol_type, protocols=[("range", metadata)])
    assert run.group.subscribed_topics is None


# --- Restarts and failed writes ---------------------------------------------------------------------------------------


def test_a_record_of_an_old_broker_has_no_rebalance_timeout_and_no_time() -> None:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m", client_id="app", client_host="/h", session_timeout=7_000, subscription=b"", assignment=b"x"
    )
    value = GroupMetadataValue(protocol_type="connect", generation=9, protocol="eager", leader="m", members=[member])
    run = Coordinator(value)
    assert run.group.members["m"].rebalance_timeout_ms == 7_000
    assert run.group.subscribed_topics is None
    value.members = []
    assert Coordinator(value).group.empty_since_ms is None


def test_a_record_that_names_a_member_or_an_instance_twice_has_it_once() -> None:
    before = Coordinator()
    before.stable("blue")
    value = before.records[-1]
    value.members = value.members * 2
    assert list(Coordinator(value).group.members) == ["blue-1"]


def test_a_restored_group_that_is_too_large_has_its_members_join_again() -> None:
    before = Coordinator()
    before.stable(None, None)
    run = Coordinator(before.records[-1], max_size=1)
    assert run.group.state == "PreparingRebalance"
    first = run.join("app-2")
    run.join("app-1")
    assert first.result.leader == "app-2"
    assert list(run.group.members) == ["app-2"]


@pytest.mark.parametrize("does_sync", [True, False])
def test_members_join_again_if_what_they_were_told_could_not_be_written(does_sync: bool, single: Coordinator) -> None:
    single.join()
    single.join("app-1")
    waiting = single.sync("app-2")
    if does_sync:
        single.sync("app-1", assignments={"app-2": b"mine"})
    single.group.write_failed(single.now)
    single.deliver()
    assert (waiting.results[0].error is None) is does_sync
    assert single.group.state == "PreparingRebalance"
    assert [member.assignment for member in single.group.members.values()] == [b"", b""]
    single.join("app-1")
    assert single.join("app-2").result.generation == 3


def test_all_that_waits_is_to_join_again_when_a_group_becomes_another(single: Coordinator) -> None:
    joining = single.join()
    single.group.refuse_waits()
    single.deliver()
    assert isinstance(joining.error, RebalanceInProgressError)


# --- A thousand of them -----------------------------------------------------------------------------------------------


def come_and_go(members: int) -> None:
    """So many join, get assignments, die all at once; others come and leave one by one."""
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    asked = [run.join() for _ in range(members)]
    run.pass_time(6_000)
    ids = [each.result.member_id for each in asked]
    for member_id in ids:
        run.heartbeat(member_id)
    waiting = [run.sync(member_id) for member_id in ids[1:]]
    run.sync(ids[0], assignments=dict.fromkeys(ids, b"some"))
    assert all(each.result.assignment == b"some" for each in waiting)
    run.pass_time(SESSION_MS)
    assert run.group.is_empty
    for _ in range(members):
        run.join()
    for member_id in reversed(list(run.group.members)):
        assert run.leave(LeavingMember(member_id))[0].error is None
    run.pass_time(6_000)
    assert run.group.is_empty


def test_the_cost_of_members_that_come_and_go_grows_with_their_number_and_not_faster() -> None:
    few, many = calls_of(lambda: come_and_go(100)), calls_of(lambda: come_and_go(1_000))
    assert many < 12 * few
