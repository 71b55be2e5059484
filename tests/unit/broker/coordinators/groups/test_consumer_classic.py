"""Classic members of a group of the consumer protocol: each rule, in virtual time."""

from typing import Any

import pytest

from seglog_broker.coordinators.groups.consumer_protocol import assigned_partitions, encode_subscription
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.membership import (
    PROTOCOLS_MAX,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from seglog_protocol import errors
from seglog_protocol.steps import finished
from tests.support import each_case
from tests.unit.broker.coordinators.groups.classic_coordinator import Asked, subscription
from tests.unit.broker.coordinators.groups.consumer_coordinator import REBALANCE_MS, ConsumerCoordinator, Topics

ORDERS = (1).to_bytes(16, "big")
"""The id of the topic."""
RANGE = (("range", subscription("orders")),)
SESSION_MS = 10_000


class Run(ConsumerCoordinator):
    """A group with one member of the consumer protocol, ``new``, unless it is to begin empty."""

    def __init__(self, *, is_empty: bool = False, partitions: int = 4, **limits: Any) -> None:
        self.partitions = partitions
        super().__init__(Topics(orders=partitions), **limits)
        if not is_empty:
            self.beat()

    def ask_join(self, member_id: str = "", **changes: Any) -> JoinResult:
        request = JoinRequest(member_id, None, "app", "/1.2.3.4", SESSION_MS, REBALANCE_MS, "consumer", RANGE)
        result = self._asked(
            lambda answer: finished(self.group.classic.join(request._replace(**changes), answer, self.now))
        )
        assert isinstance(result, JoinResult)
        return result

    def join(self, member_id: str = "", **changes: Any) -> JoinResult:
        result = self.ask_join(member_id, **changes)
        assert result.error is None, result.error
        return result

    def new_member(self, **changes: Any) -> JoinResult:
        """A dynamic member, which is told its id first."""
        asked = self.ask_join(**changes)
        assert isinstance(asked.error, errors.MemberIdRequiredError)
        return self.join(asked.member_id, **changes)

    def ask_sync(self, joined: JoinResult, **changes: Any) -> SyncResult:
        request = SyncRequest(joined.member_id, joined.generation)._replace(**changes)
        result = self._asked(lambda answer: finished(self.group.classic.sync(request, answer, self.now)))
        assert isinstance(result, SyncResult)
        return result

    def sync(self, joined: JoinResult) -> list[int]:
        """The partitions that it is to have."""
        result = self.ask_sync(joined)
        assert result.error is None, result.error
        assigned = assigned_partitions(result.assignment)
        assert assigned is not None
        return assigned.get("orders", [])

    def heartbeat(self, joined: JoinResult, instance_id: str | None = None) -> None:
        self.group.classic.heartbeat(joined.member_id, joined.generation, instance_id, self.now)

    def _asked(self, ask: Any) -> Any:
        answer = Asked()
        ask(answer)
        self.deliver()
        return answer.results[0]

    def stable(self) -> tuple[JoinResult, HeartbeatResult]:
        """One classic member beside ``new``, each with half of the partitions."""
        joined = self.new_member()
        assert self.sync(joined) == []
        told = self.beat("new", 1)
        assert told.assignment is not None
        told = self.beat("new", told.member_epoch, owned=told.assignment)
        with pytest.raises(errors.RebalanceInProgressError):
            self.heartbeat(joined)
        joined = self.join(joined.member_id)
        assert len(self.sync(joined)) == self.partitions // 2
        self.heartbeat(joined)
        return joined, told


@pytest.fixture
def run() -> Run:
    return Run()


def test_it_is_told_to_join_again_when_topics_change(run: Run) -> None:
    joined, _ = run.stable()
    run.topics.enlarge("orders", 8)
    with pytest.raises(errors.RebalanceInProgressError):
        run.heartbeat(joined)
    again = run.join(joined.member_id)
    assert (again.generation, len(run.sync(again))) == (3, 4)


# --- Who is refused ---------------------------------------------------------------------------------------------------


def test_classic_members_have_an_assignor_in_common(run: Run) -> None:
    run.new_member(protocols=[("range", subscription("orders")), ("roundrobin", subscription("orders"))])
    refused = run.ask_join(protocols=[("sticky", subscription("orders"))])
    assert isinstance(refused.error, errors.InconsistentGroupProtocolError)
    assert "range, roundrobin" in str(refused.error)
    many = [("range", subscription("orders")), *((f"p{number}", b"") for number in range(PROTOCOLS_MAX))]
    assert "at most 100" in str(run.ask_join(protocols=many).error)
    run.new_member(protocols=[("roundrobin", subscription("orders"))])


def test_a_session_timeout_has_to_be_legal_and_the_group_has_a_largest_size() -> None:
    run = Run(consumer_max_size=2)
    assert isinstance(run.ask_join(session_timeout_ms=5_999).error, errors.InvalidSessionTimeoutError)
    joined = run.new_member()
    assert isinstance(run.ask_join().error, errors.GroupMaxSizeError)
    assert isinstance(run.ask_join("one", needs_known_member_id=False).error, errors.GroupMaxSizeError)
    assert run.join(joined.member_id).member_id == joined.member_id


def test_a_sync_is_of_the_generation_and_the_assignor_that_the_member_was_told(run: Run) -> None:
    joined = run.new_member()
    assert isinstance(run.ask_sync(joined, generation=7).error, errors.IllegalGenerationError)
    assert isinstance(run.ask_sync(joined, member_id="other").error, errors.UnknownMemberError)
    for changes in ({"protocol": "sticky"}, {"protocol_type": "connect"}):
        assert isinstance(run.ask_sync(joined, **changes).error, errors.InconsistentGroupProtocolError)
    assert run.ask_sync(joined, protocol="range", protocol_type="consumer").error is None
    run.new_member()
    assert isinstance(run.ask_sync(joined).error, errors.RebalanceInProgressError)
    with pytest.raises(errors.IllegalGenerationError):
        run.group.classic.heartbeat(joined.member_id, 7, None, run.now)


def test_commits_are_of_the_generation(run: Run) -> None:
    joined = run.new_member()
    run.group.check_commit(joined.member_id, joined.generation, None, run.now)
    with pytest.raises(errors.IllegalGenerationError):
        run.group.check_commit(joined.member_id, joined.generation + 1, None, run.now)
    check = run.group.check_commit(joined.member_id, joined.generation - 1, None, run.now)
    assert check is not None
    with pytest.raises(errors.IllegalGenerationError):
        check(ORDERS, 0)


# --- Time -------------------------------------------------------------------------------------------------------------


def members(run: Run) -> set[str]:
    return {member.member_id for member in run.group.members}


def test_a_session_ends_after_the_timeout_that_the_member_asked_for(run: Run) -> None:
    joined = run.new_member()
    run.sync(joined)
    run.pass_time(SESSION_MS - 1)
    assert joined.member_id in members(run)
    run.pass_time(1)
    assert members(run) == {"new"}


def test_members_that_do_not_sync_or_rejoin_are_removed(run: Run) -> None:
    """A member that does not sync in time is dropped and so is one that does not join again."""
    joined = run.new_member(session_timeout_ms=100_000)
    run.pass_time(REBALANCE_MS - 1)
    assert joined.member_id in members(run)
    run.pass_time(1)
    assert joined.member_id not in members(run)

    joined = run.new_member(session_timeout_ms=100_000)
    run.sync(joined)
    run.new_member(session_timeout_ms=100_000)
    with pytest.raises(errors.RebalanceInProgressError):
        run.heartbeat(joined)
    run.pass_time(REBALANCE_MS - 1)
    with pytest.raises(errors.RebalanceInProgressError):
        run.heartbeat(joined)
    assert joined.member_id in members(run)
    run.pass_time(1)
    assert joined.member_id not in members(run)


# --- Static members, and the end --------------------------------------------------------------------------------------


def test_a_static_member_may_change_its_protocol_when_it_is_started_again() -> None:
    run = Run(is_empty=True)
    first = run.join(instance_id="one")
    assert run.sync(first) == [0, 1, 2, 3]
    again = run.join(instance_id="one")
    assert (again.generation, again.member_id != first.member_id) == (1, True)
    with pytest.raises(errors.FencedInstanceError):
        run.heartbeat(first, "one")
    told = run.beat("new", instance_id="one")
    assert told.assignment == {ORDERS: frozenset(range(4))}
    assert members(run) == {"new"}
    refused = run.ask_join(instance_id="one")
    assert isinstance(refused.error, errors.UnreleasedInstanceError)
    run.beat("new", -2, instance_id="one")
    assert run.sync(run.join(instance_id="one")) == [0, 1, 2, 3]
    assert run.group.may_be_classic


def test_members_leave_by_their_ids_or_their_instances(run: Run) -> None:
    joined, static = run.new_member(), run.join(instance_id="one")
    results = run.group.classic.leave(
        [
            LeavingMember(joined.member_id),
            LeavingMember(joined.member_id),
            LeavingMember("", "one"),
            LeavingMember("", "two"),
            LeavingMember("other"),
        ],
        run.now,
    )
    assert [type(result.error) for result in results] == [
        type(None),
        errors.UnknownMemberError,
        type(None),
        errors.UnknownMemberError,
        errors.UnknownMemberError,
    ]
    assert members(run) == {"new"}
    assert static.member_id not in members(run)


@each_case(
    ("limits", "may"),
    [
        ({}, True),
        ({"consumer_migration_policy": "downgrade"}, True),
        ({"consumer_migration_policy": "upgrade"}, False),
        ({"consumer_migration_policy": "disabled"}, False),
        ({"max_size": 1}, False),
    ],
)
def test_a_group_with_none_but_classic_members_may_be_a_classic_one(limits: dict[str, Any], may: bool) -> None:
    run = Run(**limits)
    run.new_member()
    run.new_member()
    assert not run.group.may_be_classic
    run.beat("new", -1)
    assert run.group.may_be_classic is may


def test_what_an_old_consumer_says_is_read(run: Run) -> None:
    joined = run.new_member(protocols=[("range", encode_subscription(["orders"]))], rebalance_timeout_ms=-1)
    (described,) = (member for member in run.group.describe(run.now).members if member.is_classic)
    assert (described.member_id, described.topics) == (joined.member_id, ["orders"])
