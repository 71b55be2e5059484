"""A group of the consumer protocol: each rule, in virtual time."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, check_heartbeat
from seglog_broker.coordinators.groups.membership import Limits
from seglog_protocol import errors
from seglog_protocol.kafka.messages import ConsumerGroupMemberMetadataValue
from seglog_protocol.steps import finished
from tests.support import each_case
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


def test_heartbeats_without_news_and_full_ones(run: ConsumerCoordinator) -> None:
    """A heartbeat without news says nothing of the assignment and a full one hears all."""
    run.beat("a")
    assert run.beat("a", 1).assignment is None
    full = run.beat("a", 1, rebalance_timeout_ms=REBALANCE_MS, topics=["orders"], owned={})
    assert_told(run, full.assignment, ALL)


def test_what_one_gives_up_another_gets_and_not_sooner(run: ConsumerCoordinator) -> None:
    run.beat("a")
    joined = run.beat("b")
    assert joined.member_epoch == 2
    assert_told(run, joined.assignment, {})
    assert run.group.state == "Reconciling"
    told = run.beat("a", 1)
    assert told.member_epoch == 1, "the epoch is the assignment that it has reached"
    assert_told(run, told.assignment, {"orders": [0, 1]})
    assert run.beat("b", 2).assignment is None, "nobody said that 2 and 3 are free"
    still = run.beat("a", 1, owned={ORDERS: frozenset({0, 1, 2})})
    assert (still.member_epoch, still.assignment) == (1, None)
    assert run.beat("b", 2).assignment is None
    done = run.beat("a", 1, owned={ORDERS: frozenset({0, 1})})
    assert done.member_epoch == 2
    assert_told(run, run.beat("b", 2).assignment, {"orders": [2, 3]})
    assert run.group.state == "Stable"


def test_a_member_that_leaves_makes_room(run: ConsumerCoordinator) -> None:
    epochs = run.joined("a", "b")
    left = run.beat("b", -1)
    assert (left.member_id, left.member_epoch, left.heartbeat_interval_ms, left.assignment) == ("b", -1, 0, None)
    told = run.beat("a", epochs["a"])
    assert_told(run, told.assignment, ALL)
    assert told.member_epoch == epochs["a"] + 1
    with pytest.raises(errors.UnknownMemberError):
        run.beat("b", epochs["b"])


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


# --- Answers that were lost, and members of the past ------------------------------------------------------------------


def test_a_member_that_did_not_hear_its_epoch_may_come_with_the_one_before(run: ConsumerCoordinator) -> None:
    run.beat("a")
    assert run.beat("a", 0).member_epoch == 1, "it joins again, since it heard nothing"
    run.beat("b")
    assert run.settled("a", "b") == {"a": 2, "b": 2}
    kept = {ORDERS: frozenset({0, 1})}
    assert run.beat("a", 1, owned=kept).member_epoch == 2
    with pytest.raises(errors.FencedMemberEpochError, match="epoch 2 and came with 1: revoke all partitions"):
        run.beat("a", 1)  # it may have all that it ever had
    with pytest.raises(errors.FencedMemberEpochError):
        run.beat("a", 1, owned={ORDERS: frozenset({0, 1, 2})})


@pytest.mark.parametrize("epoch", [2, 77])
def test_a_member_from_the_future_is_fenced_and_nothing_changes(epoch: int, run: ConsumerCoordinator) -> None:
    run.beat("a")
    written = len(run.log)
    with pytest.raises(errors.FencedMemberEpochError):
        run.beat("a", epoch, topics=["other"])
    assert (len(run.log), run.has("a")) == (written, ALL)
    assert run.group.subscribed_topics == {"orders"}


def test_who_is_no_member_is_told_to_join(run: ConsumerCoordinator) -> None:
    run.beat("a")
    for epoch in (5, -1):
        with pytest.raises(errors.UnknownMemberError, match="has no member 'b': rejoin with epoch 0"):
            run.beat("b", epoch)


def test_a_full_group_takes_no_member_more() -> None:
    run = ConsumerCoordinator(consumer_max_size=1)
    run.beat("a")
    with pytest.raises(errors.GroupMaxSizeError, match=r"1 member, as many as group.consumer.max.size allows"):
        run.beat("b")
    assert run.beat("a", 1).member_epoch == 1


# --- Static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_that_will_be_back_keeps_its_place_under_another_id(run: ConsumerCoordinator) -> None:
    run.beat("a", instance_id="left")
    run.beat("b", instance_id="right")
    epochs = {"a": 1, "b": 2}
    for _ in range(3):
        for member, name in (("a", "left"), ("b", "right")):
            has = next(m for m in run.group.members if m.member_id == member).progress.assigned
            epochs[member] = run.beat(member, epochs[member], instance_id=name, owned=has).member_epoch
    before, had = run.group.generation, run.has("b")
    away = run.beat("b", -2, instance_id="right")
    assert (away.member_id, away.member_epoch) == ("b", -2)
    run.pass_time(SESSION_MS - 1)
    run.beat("a", epochs["a"], instance_id="left")
    assert run.group.generation == before
    back = run.beat("c", instance_id="right")
    assert_told(run, back.assignment, had)
    assert (back.member_epoch, run.group.generation, run.group.state) == (before, before, "Stable")
    with pytest.raises(errors.FencedInstanceError, match=r"was replaced by c \(10.0.0.1\)"):
        run.beat("b", before, instance_id="right")


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
    assert run.beat("a", 1, instance_id="left").member_epoch == 1


def test_a_static_member_that_leaves_for_good_leaves_no_place(run: ConsumerCoordinator) -> None:
    run.beat("a", instance_id="left")
    run.beat("a", -1, instance_id="left")
    assert run.group.is_empty
    assert_told(run, run.beat("b", instance_id="left").assignment, ALL)


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


@each_case("regex", ["fruit-[", "(?=a)", "a{1001}", r"(a)\1", "a" * 30_000])
def test_an_expression_that_is_refused_changes_nothing(regex: str) -> None:
    run = ConsumerCoordinator()
    run.beat("a")
    written = len(run.log)
    with pytest.raises(errors.InvalidRegularExpressionError, match="invalid regular expression"):
        run.beat("a", 1, regex=regex)
    with pytest.raises(errors.InvalidRegularExpressionError):
        run.beat("b", regex=regex)
    assert len(run.log) == written
    assert len(run.group.members) == 1
    assert run.beat("a", 1).member_epoch == 1


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


# --- Requests that no member makes ------------------------------------------------------------------------------------

JOINS = ConsumerHeartbeat("a", 0, rebalance_timeout_ms=1, topics=["t"], owned={})


@each_case(
    ("request_", "field"),
    [
        (JOINS._replace(member_epoch=-3), "member_epoch"),
        (JOINS._replace(member_id="", member_epoch=1), "member_id"),
        (JOINS._replace(member_id="", member_epoch=-1), "member_id"),
        (JOINS._replace(instance_id=""), "instance_id"),
        (JOINS._replace(instance_id=" "), "instance_id"),
        (JOINS._replace(rack_id=""), "rack_id"),
        (JOINS._replace(member_epoch=-2), "instance_id"),
        (JOINS._replace(rebalance_timeout_ms=-1), "rebalance_timeout_ms"),
        (JOINS._replace(owned=None), "owned"),
        (JOINS._replace(owned={bytes(16): frozenset({0})}), "owned"),
        (JOINS._replace(topics=None), "topics"),
    ],
)
def test_a_request_that_no_member_makes_names_its_field(request_: ConsumerHeartbeat, field: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as refused:
        check_heartbeat(GROUP, request_, Limits())
    assert refused.value.facts["field"] == field
    run = ConsumerCoordinator()
    with pytest.raises(errors.InvalidRequestError):
        finished(run.group.heartbeat(request_, run.now))
    assert run.group.is_unused
    assert not run.log


def test_an_assignor_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    run = ConsumerCoordinator(consumer_assignors=("range",))
    with pytest.raises(
        errors.UnsupportedAssignorError, match=r"no assignor 'uniform': group.consumer.assignors has ran"
    ):
        run.beat("a", assignor="uniform")
    assert run.group.is_unused


# --- Commits and look-ups ---------------------------------------------------------------------------------------------


def test_offsets_are_committed_and_looked_up_with_the_member_epoch_alone(run: ConsumerCoordinator) -> None:
    run.commit("", -1)  # nobody is a member: tools may
    run.group.check_fetch("", -1, None)
    run.beat("a")
    run.commit("a", 1)
    run.group.check_fetch("a", 1, None)
    run.group.check_fetch("", -1, None)
    with pytest.raises(errors.StaleMemberEpochError, match="has epoch 1 and came with 2"):
        run.commit("a", 2)
    for epoch in (0, 2):
        with pytest.raises(errors.StaleMemberEpochError):
            run.group.check_fetch("a", epoch, None)
    for member_id, epoch in (("b", 1), ("", -1)):
        with pytest.raises(errors.UnknownMemberError):
            run.commit(member_id, epoch)
    with pytest.raises(errors.UnknownMemberError):
        run.group.check_fetch("b", 1, None)


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


def test_names_of_topics_are_sorted_once_for_all_members_that_read_them(run: ConsumerCoordinator) -> None:
    written = []
    for member_id in ("a", "b", "c"):
        finished(
            run.group.heartbeat(
                ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=REBALANCE_MS, topics=["orders", "a"], owned={}),
                run.now,
            )
        )
        written += [
            record.value.subscribed_topic_names
            for record in run.outbox.records
            if isinstance(record.value, ConsumerGroupMemberMetadataValue)
        ]
        run.deliver()
    assert written == [["a", "orders"]] * 3
    assert len({id(names) for names in written}) == 1
    for member_id in ("a", "b", "c"):
        run.beat(member_id, -1)
    run.beat("a", topics=["b"])
    assert run.group.subscribed_topics == {"b"}
