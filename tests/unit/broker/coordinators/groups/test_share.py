"""A share group: each rule, in virtual time."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.share import RETRY_MS, Initialize, ShareHeartbeat
from seglog_broker.coordinators.groups.shared_topics import NamedPartitions, SharedTopics
from seglog_broker.coordinators.share.in_flight import NO_OFFSET
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.steps import finished
from tests.support import each_case
from tests.unit.broker.coordinators.groups.consumer_coordinator import GROUP, WALL_MS, Topics, replayed
from tests.unit.broker.coordinators.groups.share_coordinator import ShareCoordinator

SESSION_MS = 45_000
ALL = {"orders": [0, 1, 2, 3]}
ORDERS, BILLS = ((number).to_bytes(16, "big") for number in (1, 2))
"""Ids of topics."""


def named(name: str, *numbers: int) -> NamedPartitions:
    return NamedPartitions(name, frozenset(numbers))


@pytest.fixture
def run() -> ShareCoordinator:
    return ShareCoordinator()


# --- Joining ----------------------------------------------------------------------------------------------------------


def test_a_member_gets_partitions_once_their_state_is_made(run: ShareCoordinator) -> None:
    assert run.group.is_unused
    told = run.beat("a")
    assert (told.member_id, told.member_epoch, told.heartbeat_interval_ms, told.assignment) == ("a", 2, 5_000, {})
    assert run.effects == [Initialize(GROUP, 2, {ORDERS: dict.fromkeys(range(4), NO_OFFSET)})]
    assert run.group.shared == SharedTopics({ORDERS: named("orders", 0, 1, 2, 3)}, {}, {})
    run.initialize()
    assert run.group.shared == SharedTopics({}, {ORDERS: named("orders", 0, 1, 2, 3)}, {})
    told = run.beat("a", 2)
    assert (told.member_epoch, told.assignment) == (3, {ORDERS: frozenset(range(4))})
    assert (run.group.state, run.group.generation, run.has("a")) == ("Stable", 3, ALL)
    assert (run.beat("a", 3).assignment, run.group.generation, run.effects) == (None, 3, [])


def test_records_are_those_of_kafka_in_its_order(run: ShareCoordinator) -> None:
    """Which Kafka 4.4.0 has written, with other ids, times and hashes, after the same requests."""

    def written() -> list[tuple[int, Any]]:
        return [(record.key_version, record.value) for record in run.records]

    run.beat("a")
    [epoch] = [value for version, value in written() if version == 11]
    assert epoch.epoch == 2
    of_state = messages.ShareGroupStatePartitionMetadataValue
    info = of_state.TopicPartitionsInfo(topic_id=ORDERS, topic_name="orders", partitions=[0, 1, 2, 3])
    of_assignment = messages.ShareGroupTargetAssignmentMetadataValue
    assert written() == [
        (
            10,
            messages.ShareGroupMemberMetadataValue(
                rack_id=None, client_id="app", client_host="/10.0.0.1", subscribed_topic_names=["orders"]
            ),
        ),
        (11, epoch),
        (13, messages.ShareGroupTargetAssignmentMemberValue()),
        (12, of_assignment(assignment_epoch=2, assignment_timestamp=WALL_MS)),
        (14, messages.ShareGroupCurrentMemberAssignmentValue(member_epoch=2)),
        (15, of_state(initializing_topics=[info])),
    ]
    run.initialize()
    assert written() == [(15, of_state(initialized_topics=[info]))]
    run.beat("a", 2)
    assert [version for version, _ in written()] == [11, 13, 12, 14]
    run.beat("a", -1)
    assert [(version, value is None) for version, value in written()] == [
        *((version, True) for version in (14, 13, 10)),
        *((version, False) for version in (11, 12)),
    ]
    assert written()[-1][1] == of_assignment(assignment_epoch=4)
    assert [value.metadata_hash for version, value in written() if version == 11] == [0], "of no topics"


def test_a_member_that_joins_again_keeps_its_partitions(run: ShareCoordinator) -> None:
    run.ready("a")
    told = run.beat("a", 0)
    assert (told.member_epoch, told.assignment) == (3, {ORDERS: frozenset(range(4))})
    assert run.records == []


def test_who_says_what_it_reads_is_told_what_it_has(run: ShareCoordinator) -> None:
    run.ready("a")
    assert run.beat("a", 3, "orders").assignment == {ORDERS: frozenset(range(4))}
    assert run.group.generation == 3


def test_another_subscription_takes_partitions_away_at_once() -> None:
    run = ShareCoordinator(Topics(orders=1, bills=1), interval_ms=1_000)
    run.beat("a", 0, "orders", "bills")
    run.initialize()
    run.now_ms = 1_000
    assert run.beat("a", 2).assignment == {ORDERS: frozenset([0]), BILLS: frozenset([0])}
    told = run.beat("a", 3, "bills")
    assert (told.member_epoch, told.assignment) == (3, {BILLS: frozenset([0])}), "before the next assignment"
    run.now_ms = 2_000
    assert run.beat("a", 3).member_epoch == 4


@each_case(("interval_ms", "wait_ms", "epoch"), [(0, 0, 3), (1_000, 999, 2), (1_000, 1_000, 3)])
def test_time_passes_between_two_assignments(interval_ms: int, wait_ms: int, epoch: int) -> None:
    run = ShareCoordinator(interval_ms=interval_ms)
    run.beat("a")
    run.initialize()
    run.now_ms = wait_ms
    assert (run.beat("a", 2).member_epoch, run.group.generation) == (epoch, 3)


def test_an_assignment_does_not_wait_for_a_clock_that_was_set_back() -> None:
    run = ShareCoordinator(interval_ms=1_000)
    run.now_ms = 3_600_000
    run.beat("a")
    run.initialize()
    run.now_ms = 0
    assert run.beat("a", 2).member_epoch == 3


@each_case(("epoch", "taken"), [(0, True), (1, False), (2, True), (3, True), (4, False)])
def test_the_epoch_before_is_taken_for_an_answer_may_be_lost(epoch: int, taken: bool) -> None:
    run = ShareCoordinator()
    run.ready("a")
    if taken:
        assert run.beat("a", epoch).member_epoch == 3
    else:
        with pytest.raises(errors.FencedMemberEpochError, match="rejoin with epoch 0"):
            run.beat("a", epoch)


def test_a_member_that_is_not_there_is_unknown(run: ShareCoordinator) -> None:
    run.ready("a")
    for epoch in (1, -1):
        with pytest.raises(errors.UnknownMemberError, match="Member b is not a member of group workers"):
            run.beat("b", epoch)


def test_a_group_has_so_many_members() -> None:
    run = ShareCoordinator(members_max=1)
    epoch = run.ready("a")
    for asked in (0, 1):
        with pytest.raises(errors.GroupMaxSizeError, match=r"1 member, as many as group\.share\.max\.size"):
            run.beat("b", asked)
    run.beat("a", epoch)
    run.beat("a", -1)
    run.beat("b")


@each_case(
    ("changes", "group", "why"),
    [
        ({"member_id": ""}, "g", "Invalid member id"),
        ({"member_id": "x" * 37}, "g", "Invalid member id"),
        ({"member_id": " "}, "g", "MemberId can't be empty"),
        ({}, " ", "GroupId can't be empty"),
        ({"rack_id": ""}, "g", "RackId can't be empty"),
        ({"topics": None}, "g", "must be set in first request"),
        ({"topics": []}, "g", "must be set in first request"),
        ({"member_epoch": -2}, "g", "MemberEpoch is invalid"),
    ],
)
def test_what_no_member_asks_is_refused(changes: dict[str, Any], group: str, why: str) -> None:
    request = ShareHeartbeat("x" * 36, 0, "r", ["orders"])
    request.check("g")
    with pytest.raises(errors.InvalidRequestError, match=why):
        request._replace(**changes).check(group)


# --- Leaving ----------------------------------------------------------------------------------------------------------


def test_the_last_one_leaves_an_empty_group(run: ShareCoordinator) -> None:
    run.ready("a")
    run.beat("b")
    run.now_ms = 700
    assert run.beat("a", -1).member_epoch == -1
    run.beat("b", -1)
    described = run.describe()
    assert (described.state, described.group_epoch, described.assignment_epoch) == ("Empty", 6, 6)
    assert (run.group.empty_since_ms, run.group.deadline_ms) == (WALL_MS + 700, None)
    assert run.beat("c").assignment == {ORDERS: frozenset(range(4))}, "at once: its partitions have a state"


def test_sessions_end_without_heartbeats(run: ShareCoordinator) -> None:
    run.ready("a")
    run.beat("b")
    run.pass_time(SESSION_MS - 1)
    run.beat("b", 4)
    with capture_logs() as logs:
        run.pass_time(1)
    assert [(line["event"], line["member"]) for line in logs] == [("group_member_timed_out", "a")]
    assert run.beat("b", 4).assignment == {ORDERS: frozenset(range(4))}
    described = run.group.described_as_classic(run.now)
    assert (described.kind, described.state, described.protocol_type) == ("share", "Stable", "share")
    assert [(member.member_id, member.session_timeout_ms) for member in described.members] == [("b", SESSION_MS)]
    run.group.end_session("b", run.now)
    run.deliver()
    assert run.group.state == "Empty"


# --- Topics -----------------------------------------------------------------------------------------------------------


def test_partitions_that_come_later_are_read_from_their_beginning(run: ShareCoordinator) -> None:
    run.ready("a")
    run.topics.enlarge("orders", 6)
    assert (run.beat("a", 3).member_epoch, run.has("a")) == (4, ALL)
    assert run.effects == [Initialize(GROUP, 4, {ORDERS: {4: 0, 5: 0}})]
    run.initialize()
    run.beat("a", 4)
    assert run.has("a") == {"orders": [0, 1, 2, 3, 4, 5]}


def test_a_state_of_which_nothing_is_heard_is_asked_for_again_later(run: ShareCoordinator) -> None:
    run.beat("a")
    [wanted] = run.effects
    for now_ms, count in ((RETRY_MS - 1, 1), (RETRY_MS, 2), (2 * RETRY_MS - 1, 2)):
        run.now_ms = now_ms
        run.beat("a", 2)
        assert run.effects == [wanted] * count


def test_a_state_that_a_stop_has_left_half_made_is_asked_for_at_once(run: ShareCoordinator) -> None:
    run.beat("a")
    [wanted] = run.effects
    run.restart()
    run.beat("a", 2)
    assert run.effects == [wanted, wanted]


def test_a_topic_that_is_deleted_while_its_state_is_made_is_not_noted(run: ShareCoordinator) -> None:
    run.beat("a")
    run.topics.delete("orders")
    run.initialize()
    assert run.group.shared == SharedTopics()


def test_heartbeats_that_change_nothing_look_at_no_topics(
    run: ShareCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.ready("a")
    run.beat("a", 3)
    monkeypatch.setattr(run.topics, "find", None)
    assert run.beat("a", 3).assignment is None


# --- Deleting ---------------------------------------------------------------------------------------------------------


def test_a_group_is_deleted_with_all_its_records_once_it_is_empty(run: ShareCoordinator) -> None:
    run.ready("a")
    with pytest.raises(errors.NonEmptyGroupError, match="a"):
        run.group.check_delete()
    run.beat("a", -1)
    run.group.check_delete()
    assert finished(run.group.begin_deleting()) == {ORDERS: named("orders", 0, 1, 2, 3)}
    run.deliver()
    assert run.group.shared == SharedTopics({}, {}, {ORDERS: "orders"})
    again = finished(run.group.begin_deleting())
    assert again == {ORDERS: named("orders", 0, 1, 2, 3)}, "where the deletion has failed"
    run.deliver()
    run.group.delete()
    run.deliver()
    assert [(record.key_version, record.value) for record in run.records] == [(12, None), (15, None), (11, None)]
    assert replayed(run.log).share == {}


def test_a_state_that_is_being_deleted_is_made_anew_for_a_member(run: ShareCoordinator) -> None:
    run.ready("a")
    run.beat("a", -1)
    finished(run.group.begin_deleting())
    run.effects.clear()
    run.beat("b")
    assert run.effects == [Initialize(GROUP, 5, {ORDERS: dict.fromkeys(range(4), NO_OFFSET)})]
    assert run.group.shared.deleting == {}


def test_single_topics_are_deleted_and_initialized_for_administrators() -> None:
    run = ShareCoordinator(Topics(orders=2, bills=1))
    run.ready("a", "orders", "bills")
    run.beat("a", -1)
    assert finished(run.group.begin_deleting({BILLS})) == {BILLS: named("bills", 0)}
    finished(run.group.forget_topics({BILLS}))
    assert run.group.shared == SharedTopics({}, {ORDERS: named("orders", 0, 1)}, {})
    assert finished(run.group.begin_deleting({BILLS})) == {}
    finished(run.group.begin_initializing({BILLS: [0], ORDERS: [1]}, run.now))
    assert run.group.shared.initializing == {BILLS: named("bills", 0), ORDERS: named("orders", 1)}
    finished(run.group.end_initializing({BILLS: [0], ORDERS: [1]}, is_done=True))
    assert run.group.shared == SharedTopics({}, {ORDERS: named("orders", 0, 1), BILLS: named("bills", 0)}, {})


def test_partitions_alone_keep_a_group_that_has_no_members(run: ShareCoordinator) -> None:
    finished(run.group.begin_initializing({ORDERS: [0]}, run.now))
    assert not run.group.is_unused


# --- The log ----------------------------------------------------------------------------------------------------------


def test_a_start_goes_on_where_the_log_ends() -> None:
    run = ShareCoordinator(Topics(orders=4, bills=2))
    run.ready("a", "orders", "bills")
    run.beat("b", 0, "orders", rack_id="r")
    before, shared, size = run.describe(), run.group.shared, run.group.size
    run.now_ms = 10_000
    run.restart()
    after = run.describe()
    assert (after._replace(members=()), run.group.shared) == (before._replace(members=()), shared)
    assert sorted(after.members) == sorted(before.members)
    assert run.group.size == size
    assert run.group.deadline_ms == 10_000 + SESSION_MS
    assert run.beat("b", run.epoch("b")).assignment is None
    run.beat("b", -1)
    run.beat("a", -1)
    run.restart()
    assert (run.group.state, run.group.empty_since_ms) == ("Empty", WALL_MS + 10_000)


def test_what_could_not_be_written_is_written_with_what_comes_next(run: ShareCoordinator) -> None:
    request = ShareHeartbeat("a", 0, None, ["orders"], "app", "/10.0.0.1")
    finished(run.group.heartbeat(request, run.now))
    run.outbox.take()  # the disk is full
    run.group.write_failed(run.now)
    run.beat("a", 2)
    before = run.describe()
    run.restart()
    assert run.describe() == before


# --- Of other kinds ---------------------------------------------------------------------------------------------------


def test_nobody_commits_for_it(run: ShareCoordinator) -> None:
    for ask in (lambda: run.group.check_commit("", -1, None, run.now), lambda: run.group.upgraded(None)):
        with pytest.raises(errors.UnknownGroupError, match="Group workers is not a consumer group"):
            ask()
    run.group.check_fetch("", -1, None)
