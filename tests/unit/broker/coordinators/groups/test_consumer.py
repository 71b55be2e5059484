"""A group of the consumer protocol: each rule, in virtual time."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_protocol import errors
from seglog_protocol.steps import finished
from tests.unit.broker.coordinators.groups.consumer_coordinator import (
    GROUP,
    REBALANCE_MS,
    WALL_MS,
    ConsumerCoordinator,
    Topics,
    replayed,
)

SESSION_MS = 45_000
ALL = {"orders": [0, 1, 2, 3]}
ORDERS = (1).to_bytes(16, "big")
"""The id of the topic."""


@pytest.fixture
def run() -> ConsumerCoordinator:
    return ConsumerCoordinator()


def assert_told(run: ConsumerCoordinator, told: Mapping[bytes, frozenset[int]] | None, wanted: Any) -> None:
    """A heartbeat came with this assignment."""
    assert told is not None, "nothing was told"
    assert run.topics.by_name(told) == wanted


# --- Sharing ----------------------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_with_its_first_heartbeat(run: ConsumerCoordinator) -> None:
    assert run.group.is_unused
    told = run.beat("a")
    assert (told.member_id, told.member_epoch, told.heartbeat_interval_ms) == ("a", 1, 5_000)
    assert_told(run, told.assignment, ALL)
    assert (run.group.state, run.group.generation) == ("Stable", 1)
    assert not run.group.is_unused
    assert run.group.subscribed_topics == {"orders"}


def test_a_member_without_an_id_is_given_one(run: ConsumerCoordinator) -> None:
    assert run.beat("").member_id == "1"
    assert run.beat("1", 1).member_epoch == 1


def test_the_last_one_that_leaves_leaves_an_empty_group_with_its_epoch(run: ConsumerCoordinator) -> None:
    run.beat("a")
    assert run.group.empty_since_ms is None
    run.now_ms = 700
    run.beat("a", -1)
    assert (run.group.state, run.group.generation, run.group.is_empty) == ("Empty", 2, True)
    assert run.group.empty_since_ms == WALL_MS + 700
    assert run.group.deadline_ms is None
    assert run.beat("b").member_epoch == 3, "epochs never go back"


# --- Time -------------------------------------------------------------------------------------------------------------


def test_a_session_ends_without_heartbeats_and_not_with_them(run: ConsumerCoordinator) -> None:
    epochs = run.joined("a", "b")
    for _ in range(3):
        run.pass_time(SESSION_MS - 1)
        epochs["a"] = run.beat("a", epochs["a"]).member_epoch
    assert [member.member_id for member in run.group.members] == ["a"]
    assert run.has("a") == ALL
    with capture_logs() as logged:
        run.pass_time(SESSION_MS)
    assert run.group.is_empty
    ((event, level, member, ms),) = [(e["event"], e["log_level"], e["member"], e["session_timeout_ms"]) for e in logged]
    assert (event, level, member, ms) == ("group_member_timed_out", "warning", "a", SESSION_MS)


def test_a_rebalance_that_is_asked_for_is_another_epoch_and_a_session_ends_when_it_is_told_to(
    run: ConsumerCoordinator,
) -> None:
    epoch = run.joined("a")["a"]
    run.group.rebalance(run.now)
    run.deliver()
    assert run.beat("a", epoch).member_epoch == epoch + 1
    run.group.end_session("a", run.now)
    run.deliver()
    assert run.group.is_empty


def test_a_heartbeat_before_the_timer_is_in_time_however_late_it_is(run: ConsumerCoordinator) -> None:
    run.beat("a")
    run.now_ms += 10 * SESSION_MS
    assert run.beat("a", 1).member_epoch == 1
    run.pass_time(SESSION_MS - 1)
    assert not run.group.is_empty


def test_who_does_not_give_up_in_its_rebalance_timeout_is_a_member_no_more(run: ConsumerCoordinator) -> None:
    run.beat("a", rebalance_timeout_ms=10_000)
    run.beat("b")
    run.beat("a", 1)
    for _ in range(3):
        run.pass_time(3_000)
        run.beat("a", 1)
        run.beat("b", 2)
    run.pass_time(1_000)
    assert [member.member_id for member in run.group.members] == ["b"]
    assert_told(run, run.beat("b", 2).assignment, ALL)
    with pytest.raises(errors.UnknownMemberError):
        run.beat("a", 1)


def test_the_rebalance_timeout_is_over_when_it_has_given_up(run: ConsumerCoordinator) -> None:
    epochs = run.joined("a", "b")
    run.pass_time(REBALANCE_MS + 1_000)
    assert {member.member_id for member in run.group.members} == epochs.keys()


def test_a_full_group_takes_no_member_more() -> None:
    run = ConsumerCoordinator(consumer_max_size=1)
    run.beat("a")
    with pytest.raises(errors.GroupMaxSizeError, match=r"1 member, as many as group.consumer.max.size allows"):
        run.beat("b")
    assert run.beat("a", 1).member_epoch == 1


# --- Static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_that_stays_away_is_gone_with_its_session(run: ConsumerCoordinator) -> None:
    run.beat("a", instance_id="left")
    run.beat("a", -2, instance_id="left")
    run.pass_time(SESSION_MS)
    assert run.group.is_empty
    with pytest.raises(errors.UnknownMemberError, match=r"no member with group.instance.id 'left'"):
        run.beat("a", 1, instance_id="left")


def test_a_place_that_is_in_use_is_not_given_away(run: ConsumerCoordinator) -> None:
    run.beat("a", instance_id="left")
    with pytest.raises(
        errors.UnreleasedInstanceError, match=r"member a .* has not left: wait for the end of its session"
    ):
        run.beat("b", instance_id="left")


# --- Subscriptions ----------------------------------------------------------------------------------------------------


def test_other_topics_change_nothing(run: ConsumerCoordinator) -> None:
    run.beat("a")
    run.topics.make("other", 3)
    written = len(run.log)
    assert run.beat("a", 1).member_epoch == 1
    assert (run.group.generation, len(run.log)) == (1, written)


# --- Regular expressions ----------------------------------------------------------------------------------------------


def test_a_regular_expression_beside_names() -> None:
    """A regular expression reads the topics that it matches beside those that are named."""
    run = ConsumerCoordinator(Topics(orders=1, **{"fruit-1": 1, "fruit-2": 1, "other": 1}))
    told = run.beat("a", topics=["orders"], regex="fruit-.*")
    assert_told(run, told.assignment, {"orders": [0], "fruit-1": [0], "fruit-2": [0]})
    run.beat("a", 1, regex="")
    run.settled("a")
    assert run.has("a") == {"orders": [0]}
    assert not replayed(run.log).consumer[GROUP].keys() & {(16, "fruit-.*")}


def test_topics_that_are_made_later_are_found_at_most_every_ten_seconds() -> None:
    run = ConsumerCoordinator(Topics(**{"fruit-1": 1}))
    run.beat("a", topics=None, regex="fruit-.*")
    run.topics.make("fruit-2", 1)
    run.topics.tell(run.group)
    assert run.beat("a", 1).member_epoch == 1
    run.pass_time(10_000)
    told = run.beat("a", 1)
    assert_told(run, told.assignment, {"fruit-1": [0], "fruit-2": [0]})


def test_two_members_with_one_expression_match_it_once_and_share() -> None:
    run = ConsumerCoordinator(Topics(**{"fruit-1": 2}))
    run.joined("a", "b", topics=None, regex="fruit-.*")
    assert sorted(run.has("a")["fruit-1"] + run.has("b")["fruit-1"]) == [0, 1]
    run.beat("a", -1)
    assert (16, "fruit-.*") in replayed(run.log).consumer[GROUP]
    run.beat("b", -1)
    assert (16, "fruit-.*") not in replayed(run.log).consumer[GROUP]


# --- Assignors --------------------------------------------------------------------------------------------------------


def test_the_assignor_is_the_one_that_most_members_ask_for(run: ConsumerCoordinator) -> None:
    assert run.describe().assignor == "uniform"
    run.beat("a", assignor="range")
    assert run.describe().assignor == "range"
    run.beat("b", assignor="uniform")
    run.beat("c", assignor="uniform")
    assert run.describe().assignor == "uniform"
    run.beat("d")
    run.beat("b", -1)
    assert run.describe().assignor == "range", "a tie goes to the first name, who asks for none does not count"


# --- Commits and look-ups ---------------------------------------------------------------------------------------------


def test_a_member_with_an_older_epoch_may_commit() -> None:
    """A member that has not heard of its epoch may commit for what it has had all the time."""
    run = ConsumerCoordinator(Topics(orders=3))
    epochs = run.joined("a", "b")
    run.beat("b", -1)
    run.settled("a")
    run.restart()
    check = run.commit("a", epochs["a"])
    assert check is not None
    for number in (0, 1):
        check(ORDERS, number)
    for topic_id, number in ((ORDERS, 2), (bytes(16), 0)):
        with pytest.raises(errors.StaleMemberEpochError, match="has epoch 3 and came with 2"):
            check(topic_id, number)
    check = run.commit("a", 1)
    assert check is not None
    check(ORDERS, 0)
    assert run.commit("a", 3) is None


# --- Deleting ---------------------------------------------------------------------------------------------------------


def test_a_group_with_members_is_not_deleted_and_says_who_they_are(run: ConsumerCoordinator) -> None:
    for number in range(7):
        run.beat(f"m{number}")
    with pytest.raises(errors.NonEmptyGroupError, match=r"live members: .*; members: m0 \(10\.0\.0\.1\), .*, 2 more$"):
        run.group.check_delete()


def test_nothing_of_a_deleted_group_is_left_in_the_log(run: ConsumerCoordinator) -> None:
    run.joined("a", "b", regex="o.*")
    for member in ("a", "b"):
        run.beat(member, -1)
    run.group.check_delete()
    assert replayed(run.log).consumer
    run.group.delete()
    run.deliver()
    assert not replayed(run.log).consumer


def test_records_that_may_have_been_written_are_deleted_too(run: ConsumerCoordinator) -> None:
    request = ConsumerHeartbeat("a", 0, rebalance_timeout_ms=1, topics=["orders"], owned={})
    finished(run.group.heartbeat(request, run.now))
    finished(run.group.heartbeat(ConsumerHeartbeat("a", -1), run.now))
    may_be_there = run.fail_to_write()
    run.group.delete()
    deleted = {repr(record.key) for record in run.outbox.records if record.value is None}
    assert {repr(record.key) for record in may_be_there} <= deleted


# --- The log ----------------------------------------------------------------------------------------------------------


def test_a_group_is_after_a_restart_what_it_was() -> None:
    run = ConsumerCoordinator(Topics(orders=5, fruit=2))
    run.joined("a", "b", "c")
    run.beat("d", topics=["fruit"], assignor="range", rack_id="r", instance_id="four")
    before = run.describe()
    assert before.state == "Reconciling"
    run.restart()
    assert run.describe() == before
    epochs = {member.member_id: member.epoch for member in before.members}
    run.pass_time(SESSION_MS - 1)
    assert not run.group.is_empty, "sessions begin with the restart"
    assert run.beat("a", epochs["a"]).assignment is None


def test_members_that_were_to_give_up_have_their_timeout_again_after_a_restart(run: ConsumerCoordinator) -> None:
    run.beat("a", rebalance_timeout_ms=10_000)
    run.beat("b")
    run.beat("a", 1)
    run.pass_time(9_000)
    run.restart()
    run.pass_time(9_000)
    assert len(run.group.members) == 2
    run.pass_time(1_000)
    assert [member.member_id for member in run.group.members] == ["b"]


def test_members_are_described_with_what_they_have_and_are_to_have(run: ConsumerCoordinator) -> None:
    run.beat("a")
    run.pass_time(2_000)
    run.beat("b", rack_id="r1", instance_id="two", regex="or.*")
    a, b = run.describe().members
    assert (a.member_id, a.quiet_ms, b.quiet_ms, a.session_timeout_ms) == ("a", 2_000, 0, SESSION_MS)
    assert (b.instance_id, b.rack_id, b.client_id, b.client_host) == ("two", "r1", "app", "/10.0.0.1")
    assert (list(b.topics), b.regex, b.is_classic, b.epoch) == (["orders"], "or.*", False, 2)
    assert [list(one.partitions) for one in a.assigned] == [[0, 1, 2, 3]]
    assert [list(one.partitions) for one in a.target] == [[0, 1]]
    assert (list(b.assigned), [list(one.partitions) for one in b.target]) == ([], [[2, 3]])
    run.topics.delete("orders")
    assert [list(member.assigned) for member in run.describe().members] == [[], []]
