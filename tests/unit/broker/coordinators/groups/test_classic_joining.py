"""Who may join a classic group, when its first generation comes, and what joining again does."""

import pytest

from seglog_broker.coordinators.groups.membership import PROTOCOLS_MAX, LeavingMember
from seglog_protocol.errors import (
    GroupMaxSizeError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from tests.support import each_case
from tests.unit.broker.coordinators.groups.classic_coordinator import SESSION_MS, Coordinator, Protocols, subscription

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000


@each_case("session_ms", [5_999, 6_000, 30_000, 30_001, 0, -1])
def test_a_session_timeout_outside_of_the_limits_is_refused(session_ms: int) -> None:
    run = Coordinator(min_session_timeout_ms=6_000, max_session_timeout_ms=30_000)
    asked = run.join(session_ms=session_ms)
    if session_ms in (6_000, 30_000):
        assert asked.result.generation == 1
        return
    assert isinstance(asked.error, InvalidSessionTimeoutError)
    assert (asked.error.minimum, asked.error.maximum) == (6_000, 30_000)
    assert run.group.is_empty


# --- Member ids -------------------------------------------------------------------------------------------------------


def test_a_new_dynamic_member_is_given_an_id_and_joins_with_it(run: Coordinator) -> None:
    asked = run.join(needs_known_member_id=True)
    assert isinstance(asked.error, MemberIdRequiredError)
    assert asked.error.member_id == asked.results[0].member_id == "app-1"
    assert run.group.is_empty
    assert not run.records
    assert run.join("app-1", needs_known_member_id=True).result.generation == 1


def test_an_id_that_was_given_is_for_a_dynamic_member_and_expires_with_the_session_timeout(run: Coordinator) -> None:
    run.join(needs_known_member_id=True)
    assert isinstance(run.join("app-1", instance_id="blue").error, UnknownMemberError)
    run.pass_time(SESSION_MS)
    assert run.group.deadline_ms is None
    assert isinstance(run.join("app-1").error, UnknownMemberError)
    assert run.join(instance_id="blue", needs_known_member_id=True).result.member_id == "blue-2", "static: needs none"


def test_a_rebalance_waits_for_members_that_were_given_their_id_until_that_expires(single: Coordinator) -> None:
    single.join(needs_known_member_id=True)
    first = single.join("app-1")  # the leader wants a rebalance
    assert first.is_waiting
    single.pass_time(SESSION_MS)
    assert first.result.generation == 2


def test_an_id_that_was_given_counts_against_the_memory_until_it_is_used_left_or_over(run: Coordinator) -> None:
    sizes = [run.group.size]
    for _ in range(3):
        run.join(needs_known_member_id=True)
        sizes.append(run.group.size)
    assert sizes[3] - sizes[2] == sizes[2] - sizes[1] == sizes[1] - sizes[0] > 1_000
    run.leave(LeavingMember("app-1"))
    assert run.group.size == sizes[2]
    run.pass_time(SESSION_MS - 1)
    run.join("app-2")
    run.pass_time(1)
    run.leave(LeavingMember("app-2"))
    assert run.group.size == sizes[0]


# --- The first generation ---------------------------------------------------------------------------------------------


def test_the_first_generation_waits_for_the_initial_delay() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    asked = run.join()
    run.pass_time(2_999)
    assert asked.is_waiting
    assert run.group.state == "PreparingRebalance"
    run.pass_time(1)
    assert asked.result.generation == 1


def test_new_members_prolong_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    first = run.join()
    run.pass_time(2_000)
    second = run.join()
    run.pass_time(1_000)  # at 3,000: somebody came, so it waits until 6,000
    run.pass_time(2_999)
    assert first.is_waiting
    run.pass_time(1)
    assert first.result.generation == second.result.generation == 1
    assert len(first.result.members) == 2
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    first = run.join(rebalance_ms=7_000)
    for _ in range(6):
        run.pass_time(1_000)
        run.join(rebalance_ms=7_000)
    run.pass_time(999)
    assert first.is_waiting
    run.pass_time(1)
    assert len(first.result.members) == 7


def test_a_rebalance_timeout_shorter_than_the_initial_delay_cuts_it() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    asked = run.join(rebalance_ms=500)
    run.pass_time(500)
    assert asked.result.generation == 1


def test_members_that_leave_during_the_initial_delay_do_not_end_it() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    first, second = run.join(), run.join()
    run.leave(LeavingMember("app-1"))
    assert isinstance(first.error, UnknownMemberError)
    assert second.is_waiting
    run.pass_time(6_000)
    assert second.result.leader == "app-2"


def test_a_new_member_waits_five_minutes_at_most(run: Coordinator) -> None:
    run.stable(None, rebalance_ms=3_600_000)
    second = run.join()
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 1_000 - 1):
        run.pass_time(1_000)
        with pytest.raises(RebalanceInProgressError):
            run.heartbeat("app-1")
    assert second.is_waiting
    run.pass_time(1_000)
    assert isinstance(second.error, UnknownMemberError)


# --- How many ---------------------------------------------------------------------------------------------------------


def test_a_group_has_no_more_members_than_allowed() -> None:
    run = Coordinator(max_size=2)
    run.stable(None, None)
    assert isinstance(run.join().error, GroupMaxSizeError)
    assert run.group.state == "Stable"
    run.heartbeat("app-1")


def test_while_members_join_the_last_is_turned_away_even_if_it_was_a_member() -> None:
    run = Coordinator(max_size=3)
    run.stable(None, None, None)
    run.limits = run.limits._replace(max_size=2)
    first, second = run.join("app-1"), run.join("app-2")
    third = run.join("app-3")
    assert isinstance(third.error, GroupMaxSizeError)
    assert first.result.generation == second.result.generation  # they did not have to wait for the third any longer
    assert list(run.group.members) == ["app-1", "app-2"]


def test_a_static_member_that_was_started_again_finds_its_place_in_a_full_group() -> None:
    run = Coordinator(max_size=1)
    run.stable("blue")
    assert run.join(instance_id="blue").result.member_id == "blue-2"


# --- Protocols --------------------------------------------------------------------------------------------------------


def protocols(*names: str) -> Protocols:
    return [(name, subscription("orders")) for name in names]


def test_a_member_names_a_protocol_type_and_protocols(run: Coordinator) -> None:
    assert isinstance(run.join(protocols=()).error, InconsistentGroupProtocolError)
    assert isinstance(run.join(protocol_type="").error, InconsistentGroupProtocolError)
    assert run.group.is_empty


def test_a_member_names_a_hundred_protocols_and_not_one_more(run: Coordinator) -> None:
    names = [f"p{number}" for number in range(PROTOCOLS_MAX + 1)]
    error = run.join(protocols=protocols(*names)).error
    assert isinstance(error, InconsistentGroupProtocolError)
    assert "101 assignors, of at most 100" in error.message
    assert run.group.is_empty
    assert run.join(protocols=protocols(*names[1:])).result.protocol == "p1"


def test_members_have_one_protocol_type_and_a_protocol_in_common(run: Coordinator) -> None:
    run.stable(None, protocols=protocols("range", "sticky"))
    error = run.join(protocols=protocols("uniform")).error
    assert isinstance(error, InconsistentGroupProtocolError)
    assert "app-1 (10.0.0.1)" in error.message
    assert isinstance(run.join(protocol_type="connect").error, InconsistentGroupProtocolError)
    assert run.join(protocols=protocols("uniform", "sticky")).is_waiting


@each_case(
    ("votes", "chosen"),
    [
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("range", "sticky"), ("sticky", "range"), ("range",)], "range"),
        ([("uniform", "range"), ("range", "uniform", "sticky"), ("sticky", "range", "uniform")], "range"),
        ([("range", "range"), ("sticky", "range"), ("sticky", "range")], "range"),
    ],
)
def test_the_protocol_with_most_votes_is_chosen(votes: list[tuple[str, ...]], chosen: str) -> None:
    """Of the protocols that all members have the one with the most votes is chosen."""
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    asked = [run.join(protocols=protocols(*names)) for names in votes]
    run.pass_time(6_000)
    assert [each.result.protocol for each in asked] == [chosen] * 3


def test_the_leader_gets_the_metadata_for_the_chosen_protocol() -> None:
    run = Coordinator(initial_rebalance_delay_ms=3_000)
    first = run.join(protocols=[("range", b"r1"), ("sticky", b"s1")])
    run.join(protocols=[("sticky", b"s2")])
    run.pass_time(6_000)
    assert [member.metadata for member in first.result.members] == [b"s1", b"s2"]


# --- Joining again ----------------------------------------------------------------------------------------------------


def test_a_follower_rejoins_unchanged(pair: Coordinator) -> None:
    """A follower that joins a stable group again unchanged gets the same generation."""
    again = pair.join("app-2").result
    assert (again.generation, again.leader, again.members) == (2, "app-1", ())
    assert pair.group.state == "Stable"
    assert pair.sync("app-2").result.assignment == b"app-2 has it"


def test_the_leader_or_a_follower_with_other_metadata_starts_a_rebalance(pair: Coordinator) -> None:
    assert pair.join("app-1").is_waiting
    assert pair.group.state == "PreparingRebalance"
    pair.join("app-2")
    pair.sync("app-1", assignments={})
    assert pair.group.state == "Stable"
    assert pair.join("app-2", protocols=[("range", subscription("fruit"))]).is_waiting
    assert pair.join("app-1").result.members[1].metadata == subscription("fruit")


def test_of_two_joins_or_syncs_of_a_member_the_last_waits(single: Coordinator) -> None:
    older = single.join()
    newer = single.join("app-2")
    assert isinstance(older.error, RebalanceInProgressError)
    assert newer.is_waiting
    single.join("app-1")
    assert newer.result.generation == 2
    older, newer = single.sync("app-2"), single.sync("app-2")
    assert isinstance(older.error, RebalanceInProgressError)
    single.sync("app-1", assignments={"app-2": b"mine"})
    assert newer.result.assignment == b"mine"


def test_a_leader_that_does_not_join_again_is_replaced_by_a_member_that_did(run: Coordinator) -> None:
    run.stable("blue", "green", rebalance_ms=5_000)
    run.join("green-2", instance_id="green", protocols=[("range", b"other")], rebalance_ms=5_000)
    run.pass_time(5_000)
    assert run.group.leader == "green-2"
    assert list(run.group.members) == ["blue-1", "green-2"]


def test_a_generation_stays_until_a_static_member_rejoins(run: Coordinator) -> None:
    """Where no static member joins again the generation stays until one does or all sessions end."""
    run.stable("blue", "green", rebalance_ms=0)
    run.leave(LeavingMember("blue-1"))
    assert (run.group.state, run.group.generation) == ("PreparingRebalance", 2)
    run.pass_time(SESSION_MS - 1)
    assert (run.group.state, run.group.generation) == ("PreparingRebalance", 2)
    run.pass_time(1)
    assert (run.group.state, run.group.generation) == ("Empty", 3)
    assert run.group.deadline_ms is None


def test_the_wait_of_a_rebalance_is_the_longest_rebalance_timeout(run: Coordinator) -> None:
    run.stable(None, rebalance_ms=90_000)
    run.join(rebalance_ms=1_000)
    asked = run.join(rebalance_ms=1_000)
    for _ in range(89):
        run.pass_time(1_000)
        with pytest.raises(RebalanceInProgressError):
            run.heartbeat("app-1")
    assert asked.is_waiting
    run.pass_time(1_000)
    assert asked.result.leader == "app-2"
