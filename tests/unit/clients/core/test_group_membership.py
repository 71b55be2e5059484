"""The core of a consumer in a group, in virtual time: what it asks, tells the program and commits, answer by answer."""

import logging
import re
from collections.abc import Callable, Generator
from typing import Any

import pytest

from seglog.core.assignors import Subscription, read_assignment, read_subscription, write_assignment, write_subscription
from seglog.core.committed_offsets import look_up_committed
from seglog.core.connection import Reply
from seglog.core.consumer_options import GroupOptions
from seglog.core.conversations import Ask
from seglog.core.fetcher import PartitionPosition
from seglog.core.group_membership import METADATA_SECONDS
from seglog.core.group_session import GroupSession, Notify, Pause
from seglog.core.transactions import TransactionCore
from seglog_protocol import messages
from seglog_protocol.errors import (
    ConnectionLostError,
    CoordinatorLoadingError,
    FencedInstanceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    SeglogError,
    UnknownMemberError,
)
from seglog_protocol.frames import encode_value
from tests.support import each_case

Script = Callable[[messages.Request], messages.Message | SeglogError | None]


class Coordinator:
    """What stands for faces and broker: runs steps at once, answers as a group with one member, or as scripted."""

    def __init__(self, **options: Any) -> None:
        self.now = 1000.0
        self.states: dict[int, PartitionPosition] = {}
        self.asked: list[messages.Request] = []
        self.told: list[tuple[str, list[int]]] = []
        self.paused = 0.0
        self.script: Script = lambda _: None
        self.assignment = {0, 1}
        self.committed: dict[int, int] = {}
        self.generation = 0
        self.counts = {"t": 2}
        self.members: list[messages.JoinGroupMember] | None = None
        chosen: dict[str, Any] = {"group": "app", "follow": True} | options
        self.session = GroupSession("t", GroupOptions(**chosen), lambda: self.now, lambda: self.states, self.assign)

    @property
    def membership(self) -> Any:
        return self.session.membership

    def assign(self, states: list[PartitionPosition]) -> None:
        self.states = {state.partition: state for state in states}

    def run(self, steps: Generator[Any, Any, Any]) -> Any:
        try:
            step = next(steps)
            while True:
                match step:
                    case Notify():
                        self.told.append((step.event, step.partitions))
                        step = next(steps)
                        continue
                    case Pause():
                        self.paused += step.seconds
                        self.now += step.seconds
                        step = next(steps)
                        continue
                assert isinstance(step, Ask)
                self.now += step.after_seconds
                answer = self.answer(step.request)
                step = steps.throw(answer) if isinstance(answer, ConnectionLostError) else steps.send(answer)
        except StopIteration as end:
            return end.value

    def turn(self) -> None:
        self.run(self.session.turn())

    def answer(self, request: messages.Request) -> "Reply | ConnectionLostError":
        self.asked.append(request)
        found: messages.Message | SeglogError | None = self.script(request)
        payload = b""
        if isinstance(found, ConnectionLostError):
            return found
        if found is None:
            if isinstance(request, messages.TopicsRequest):
                described = [messages.TopicDescription(n, "i", self.counts[n], 1, 1) for n in request.names or []]
                payload = encode_value([description.to_wire() for description in described])
            found = self.usual(request)
        return Reply(1, messages.reply_header(1, found), memoryview(payload))

    def usual(self, request: messages.Request) -> messages.Message:
        match request:
            case messages.JoinGroupRequest():
                self.generation += 1
                return messages.JoinGroupReply(
                    "me", self.generation, "range", "me" if self.members else "you", self.members
                )
            case messages.SyncGroupRequest():
                return messages.SyncGroupReply(
                    write_assignment({("t", number) for number in self.assignment} | {("u", 9)})
                )
            case messages.TopicsRequest():
                return messages.TopicsReply()
            case messages.OffsetsRequest():
                return messages.OffsetsReply(
                    [messages.OffsetsResult(of.topic, of.partition, 0, 100, 100, 0) for of in request.partitions]
                )
            case messages.CommittedOffsetsRequest():
                return messages.CommittedOffsetsReply(
                    [
                        messages.CommittedOffset("t", of.partition, self.committed.get(of.partition))
                        for of in request.partitions or []
                    ],
                    0,
                )
            case messages.CommitOffsetsRequest():
                self.committed |= {offset.partition: offset.offset for offset in request.offsets}
                return messages.CommitOffsetsReply(
                    [messages.CommitOffsetResult(of.topic, of.partition) for of in request.offsets]
                )
            case messages.LeaveGroupRequest():
                return messages.LeaveGroupReply([])
            case _:
                raise AssertionError(request)

    def fails(self, api: str, error: SeglogError, *, times: int = 1) -> None:
        """The next requests of an api fail."""
        left = [error] * times
        self.script = lambda request: left.pop() if request.api == api and left else None

    def apis(self) -> list[str]:
        """What has been asked since the last call."""
        apis, self.asked = [request.api for request in self.asked], []
        return apis

    def heartbeat(self, error: SeglogError | None = None) -> None:
        """The next heartbeat, and what it is answered with."""
        self.now += 3.0
        request = self.session.watch(self.now).request
        assert isinstance(request, messages.GroupHeartbeatRequest)
        assert (request.member_id, request.generation) == self.membership.member
        self.membership.answered(request, self.now, error)

    def joined(self) -> "Coordinator":
        self.turn()
        self.session.watch(self.now)
        self.asked.clear()
        return self

    def read(self, partition: int, offset: int) -> None:
        """The program was given all records below an offset, and came back."""
        self.states[partition].position = offset
        self.session.enter()
        self.session.is_inside = False


JOIN, SYNC, LOOK, COMMIT = "join_group", "sync_group", "committed_offsets", "commit_offsets"


# --- Joining ----------------------------------------------------------------------------------------------------------


def test_a_new_member_is_given_an_id_and_begins_at_the_committed_offsets() -> None:
    """The second request has the id, and both have what the consumer is."""
    group = Coordinator(instance_id="one", client_id="prog", session_timeout=7, max_poll_interval=60)
    group.committed = {1: 42}
    group.fails(JOIN, MemberIdRequiredError("again", member_id="me"))
    group.turn()
    assert group.told == [("assigned", [0, 1])]
    assert {partition: state.position for partition, state in group.states.items()} == {0: 0, 1: 42}
    assert not group.session.is_turn_due()
    joins = [request for request in group.asked if isinstance(request, messages.JoinGroupRequest)]
    assert [join.member_id for join in joins] == [None, "me"]
    for join in joins:
        assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (7_000, 60_000)
        assert (join.instance_id, join.client_id, join.protocol_type) == ("one", "prog", "consumer")
        assert [protocol.name for protocol in join.protocols] == ["range", "roundrobin"]
        assert {read_subscription(protocol.metadata) for protocol in join.protocols} == {Subscription(frozenset("t"))}
    assert group.apis() == [JOIN, JOIN, SYNC, LOOK, "offsets", "offsets"]


def test_the_leader_assigns_for_all_also_what_it_does_not_read_itself() -> None:
    group = Coordinator()
    group.counts = {"t": 2, "u": 3}
    group.members = [
        messages.JoinGroupMember("me", write_subscription(["t"])),
        messages.JoinGroupMember("kafka", write_subscription(["t", "u"])),
        messages.JoinGroupMember("odd", b"?"),
    ]
    group.turn()
    (sync,) = [request for request in group.asked if isinstance(request, messages.SyncGroupRequest)]
    assert {given.member_id: read_assignment(given.assignment) for given in sync.assignments or []} == {
        "kafka": {("t", 0), ("u", 0), ("u", 1), ("u", 2)},
        "me": {("t", 1)},
        "odd": set(),
    }


def test_a_leader_that_came_back_sends_no_assignments() -> None:
    group = Coordinator(instance_id="one")
    group.script = lambda request: (
        messages.JoinGroupReply("me", 4, "range", "me", [], True)
        if isinstance(request, messages.JoinGroupRequest)
        else None
    )
    group.turn()
    (sync,) = [request for request in group.asked if isinstance(request, messages.SyncGroupRequest)]
    assert sync.assignments is None
    assert group.states.keys() == {0, 1}


def test_a_loading_coordinator_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A coordinator that loads is waited for however long that takes and the log says so."""
    group = Coordinator(reconnect_timeout=1.0)
    group.fails(JOIN, CoordinatorLoadingError("soon"), times=50)
    group.turn()
    assert group.apis()[:51] == [JOIN] * 51
    assert group.now > 1020
    assert 2 <= len([line for line in caplog.messages if re.fullmatch(r"waiting for .* s: soon", line)]) <= 6


@each_case(
    ("api", "error", "member_id"),
    [
        (SYNC, RebalanceInProgressError("again"), "me"),
        (SYNC, IllegalGenerationError("again"), "me"),
        (SYNC, UnknownMemberError("gone"), None),
        (JOIN, UnknownMemberError("gone"), None),
    ],
)
def test_a_generation_that_ends_before_it_is_complete_is_joined_anew(
    api: str, error: SeglogError, member_id: str | None
) -> None:
    group = Coordinator().joined()
    group.heartbeat(RebalanceInProgressError("again"))
    group.fails(api, error)
    group.turn()
    joins = [request for request in group.asked if isinstance(request, messages.JoinGroupRequest)]
    assert [join.member_id for join in joins] == ["me", member_id]
    assert group.told == [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", [0, 1])]


def test_a_lost_connection_is_tried_again_within_the_time_there_is() -> None:
    group = Coordinator(reconnect_timeout=5.0)
    group.fails(JOIN, ConnectionLostError("broken"), times=4)
    group.turn()
    assert group.states.keys() == {0, 1}
    assert 0 < group.paused < 5
    for api in (JOIN, SYNC, LOOK, "offsets"):
        never = Coordinator(reconnect_timeout=5.0)
        never.fails(api, ConnectionLostError("broken"), times=10**6)
        with pytest.raises(ConnectionLostError):
            never.turn()
        assert 4.9 < never.paused <= 5.01
        never.script = lambda _: None
        never.turn()  # and a later attempt works
        assert never.states.keys() == {0, 1}


def test_an_assignment_that_cannot_be_read_is_an_error() -> None:
    group = Coordinator()
    group.script = lambda request: (
        messages.SyncGroupReply(b"?") if isinstance(request, messages.SyncGroupRequest) else None
    )
    with pytest.raises(InconsistentGroupProtocolError, match="cannot be read"):
        group.turn()


def test_a_generation_that_ends_while_offsets_are_looked_up_is_not_begun() -> None:
    group = Coordinator()

    def ends_meanwhile(request: messages.Request) -> None:
        if isinstance(request, messages.OffsetsRequest) and group.generation == 1:
            group.script = lambda _: None
            group.membership.refused(UnknownMemberError("gone"), group.membership.member)

    group.script = ends_meanwhile
    group.turn()
    assert group.generation == 2
    assert group.told == [("assigned", [0, 1])]


# --- Heartbeats -------------------------------------------------------------------------------------------------------


def test_heartbeats_are_due_every_three_seconds_or_a_third_of_the_session() -> None:
    for options, seconds in (({}, 3.0), ({"session_timeout": 6}, 2.0)):
        group = Coordinator(**options, auto_commit=False)
        assert group.session.watch(group.now).request is None, "it is no member yet"
        group.turn()
        assert group.session.watch(group.now) == (None, seconds)
        assert group.session.watch(group.now + seconds - 0.5) == (None, 0.5)
        assert isinstance(group.session.watch(group.now + seconds).request, messages.GroupHeartbeatRequest)
        assert group.session.watch(group.now + seconds) == (None, seconds)


def test_an_eager_member_commits_and_gives_up_everything_before_it_joins() -> None:
    group = Coordinator().joined()
    group.read(0, 10)
    group.heartbeat(RebalanceInProgressError("again"))
    assert group.session.is_turn_due()
    group.assignment = {1}
    group.turn()
    assert group.apis()[:3] == [COMMIT, JOIN, SYNC]
    assert group.committed == {0: 10, 1: 0}
    assert group.told == [("assigned", [0, 1]), ("revoked", [0, 1]), ("assigned", [1])]


def test_a_cooperative_member_keeps_what_it_has_and_gives_up_only_what_it_must() -> None:
    group = Coordinator(assignors=["cooperative-sticky"]).joined()
    kept = group.states[1]
    group.read(0, 10)
    group.heartbeat(RebalanceInProgressError("again"))
    group.assignment = {1, 2}
    group.turn()
    joins = [request for request in group.asked if isinstance(request, messages.JoinGroupRequest)]
    owned = [read_subscription(join.protocols[0].metadata) for join in joins]
    assert [(of.owned, of.generation) for of in owned] == [
        (frozenset({("t", 0), ("t", 1)}), 1),
        (frozenset({("t", 1)}), 2),  # once more, so that another member gets what it gave up
    ]
    assert group.told == [("assigned", [0, 1]), ("revoked", [0]), ("assigned", [2])]
    assert group.states[1] is kept
    assert group.committed[0] == 10


@pytest.mark.parametrize(("error", "member_id"), [(UnknownMemberError, None), (IllegalGenerationError, "me")])
def test_who_was_no_member_for_a_time_is_told_that_its_partitions_are_lost(
    error: type[SeglogError], member_id: str | None
) -> None:
    for options in ({}, {"assignors": ["cooperative-sticky"]}):
        group = Coordinator(**options).joined()
        group.read(0, 10)
        group.heartbeat(error("gone"))
        group.turn()
        assert COMMIT not in (request.api for request in group.asked), "others may have committed more by now"
        (join,) = [request for request in group.asked if isinstance(request, messages.JoinGroupRequest)]
        assert join.member_id == member_id
        assert read_subscription(join.protocols[0].metadata).owned == set()
        assert group.told == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
        assert group.states[0].position == 0


def test_a_cooperative_member_that_is_unknown_when_it_joins_has_lost_what_it_kept() -> None:
    group = Coordinator(assignors=["cooperative-sticky"]).joined()
    group.heartbeat(RebalanceInProgressError("again"))
    group.fails(JOIN, UnknownMemberError("gone"))
    group.turn()
    assert group.told == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]


def test_who_is_fenced_does_not_come_back() -> None:
    group = Coordinator(instance_id="one").joined()
    group.heartbeat(FencedInstanceError("another one", instance_id="one"))
    for _ in range(2):
        with pytest.raises(FencedInstanceError, match="another one"):
            group.turn()
    with pytest.raises(FencedInstanceError):
        group.run(group.session.committing(None))
    assert group.asked == []
    assert group.told == [("assigned", [0, 1]), ("lost", [0, 1])]
    at_once = Coordinator(instance_id="one")
    at_once.fails(JOIN, FencedInstanceError("another one"))
    with pytest.raises(FencedInstanceError):
        at_once.turn()
    assert at_once.apis() == [JOIN]


def test_a_late_answer_about_an_earlier_generation_says_nothing() -> None:
    group = Coordinator().joined()
    group.now += 3
    late = group.session.watch(group.now).request
    assert late is not None
    group.membership.refused(RebalanceInProgressError("again"), group.membership.member)
    group.turn()
    for error in (UnknownMemberError("gone"), RebalanceInProgressError("again"), FencedInstanceError("other")):
        group.membership.answered(late, group.now, error)
    assert not group.session.is_turn_due()


def test_a_heartbeat_without_an_answer_is_sent_again_soon() -> None:
    group = Coordinator(auto_commit=False).joined()
    group.heartbeat(ConnectionLostError("broken"))
    assert group.session.watch(group.now) == (None, 0.5)
    assert not group.session.is_turn_due(), "the session lasts longer than that"


def test_a_pause_that_is_longer_than_the_session_is_told_once_and_a_shorter_one_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where nothing of the client could run, on whatever face."""
    group = Coordinator(session_timeout=6).joined()
    for pause in (1, 6, 1):
        group.session.watch(group.now)
        group.now += pause
    assert [record.message for record in caplog.records] == []
    group.now += 6
    group.heartbeat(UnknownMemberError("gone"))
    group.session.watch(group.now)
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "app: nothing could send heartbeats for 10.0 s, longer than session_timeout (6 s)" in told
    assert "asyncio.to_thread" in told


def test_a_program_that_does_not_come_back_leaves_and_learns_of_it(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({}, {"instance_id": "one"}):
        group = Coordinator(max_poll_interval=10, auto_commit=False, **options).joined()
        group.session.hand_out(group.states[0], 0)
        sent: list[messages.Request] = []
        for _ in range(40):
            group.now += 0.5
            watch = group.session.watch(group.now)
            sent += [watch.request] if watch.request is not None else []
        leaves = [request for request in sent if isinstance(request, messages.LeaveGroupRequest)]
        assert [leave.members[0].member_id for leave in leaves] == ([] if options else ["me"])
        assert len(sent) - len(leaves) == 3, "no heartbeats any more"
        assert "max_poll_interval" in caplog.text
        with pytest.raises(UnknownMemberError, match="no member of app at the moment"):
            group.run(group.session.committing(None))
        group.turn()
        assert group.told == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
        caplog.clear()


@pytest.mark.parametrize("limit", [0.7, 1.0, 3.1])
def test_a_program_that_does_not_come_back_leaves_when_its_time_is_over(limit: float) -> None:
    """Not with the heartbeat after that: the watch looks whenever it has said that it will."""
    group = Coordinator(max_poll_interval=limit, auto_commit=False).joined()
    group.session.hand_out(group.states[0], 0)
    watch = group.session.watch(group.now)
    began = group.now
    while not isinstance(watch.request, messages.LeaveGroupRequest):
        assert watch.seconds > 0
        group.now += watch.seconds
        watch = group.session.watch(group.now)
    assert group.now - began == pytest.approx(limit)


def test_a_program_that_comes_back_or_waits_is_not_too_slow() -> None:
    group = Coordinator(max_poll_interval=10).joined()
    group.session.hand_out(group.states[0], 0)
    for offset in range(100):
        group.now += 5
        group.states[0].position = offset
        group.session.watch(group.now)
    group.session.enter()
    for _ in range(100):
        group.now += 5
        group.session.watch(group.now)
    assert group.membership.member is not None


def test_a_leader_looks_for_new_partitions_and_nobody_else() -> None:
    follower = Coordinator().joined()
    assert not follower.membership.counts_due(follower.now + 1000)
    leader = Coordinator()
    leader.members = [messages.JoinGroupMember("me", write_subscription(["t"]))]
    leader.joined()
    assert not leader.membership.counts_due(leader.now + METADATA_SECONDS - 1)
    assert leader.membership.counts_due(leader.now + METADATA_SECONDS)
    assert not leader.membership.counts_due(leader.now + METADATA_SECONDS)
    leader.membership.counted({"t": 2})
    assert not leader.session.is_turn_due()
    leader.membership.counted({"t": 3})
    assert leader.session.is_turn_due()


# --- Commits ----------------------------------------------------------------------------------------------------------


def test_what_is_in_hand_is_not_committed_and_positions_go_forwards_only() -> None:
    group = Coordinator().joined()
    state = group.states[0]
    group.session.hand_out(state, 5)
    assert group.session.done()[0] == 5
    state.position = 8
    assert group.session.done()[0] == 7
    group.session.hand_out(state, 8, is_whole=True)
    state.position = 20
    assert group.session.done()[0] == 8
    group.session.enter()
    assert group.session.done()[0] == 20
    group.now += 5
    group.turn()
    assert group.committed == {0: 20, 1: 0}
    state.go_to(3)
    group.now += 5
    group.turn()
    group.run(group.session.committing(None))
    assert group.committed == {0: 20, 1: 0}, "what is done stays done"
    group.run(group.session.committing({0: 3}))
    assert group.committed == {0: 3, 1: 0}, "unless the program says so"


def test_a_commit_that_fails_for_a_member_that_is_none_any_more_has_it_join() -> None:
    for error in (RebalanceInProgressError, IllegalGenerationError, UnknownMemberError):
        group = Coordinator().joined()
        group.read(0, 10)
        group.fails(COMMIT, error("too late"))
        with pytest.raises(error):
            group.run(group.session.committing(None))
        assert group.session.is_turn_due()


def test_commits_are_tried_again_and_those_of_the_clock_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="seglog")
    group = Coordinator().joined()
    group.read(0, 10)
    group.fails(COMMIT, ConnectionLostError("broken"), times=3)
    group.run(group.session.committing({0: 10}))
    assert group.committed == {0: 10}
    group.read(1, 5)
    group.fails(COMMIT, ConnectionLostError("broken"))
    group.now += 5
    group.turn()
    assert group.committed == {0: 10}
    assert "offsets were not committed" in caplog.text
    group.now += 1
    group.turn()
    assert group.committed == {0: 10, 1: 5}


def test_without_a_clock_of_its_own_nothing_is_committed() -> None:
    group = Coordinator(auto_commit=False).joined()
    group.read(0, 10)
    group.now += 100
    assert not group.session.is_turn_due()
    group.heartbeat(RebalanceInProgressError("again"))
    group.turn()
    group.run(group.session.closing())
    assert group.committed == {}


def test_records_that_a_rebalance_takes_away_are_not_committed_in_their_transaction() -> None:
    group = Coordinator(auto_commit=False).joined()
    group.script = lambda request: (
        messages.InitProducerReply(7, 0) if isinstance(request, messages.InitProducerRequest) else None
    )
    core = TransactionCore("copier", 60)
    transaction = group.run(core.beginning())
    group.read(0, 10)
    group.states[0].read_to = 10
    group.heartbeat(RebalanceInProgressError("again"))
    group.turn()
    with pytest.raises(IllegalGenerationError, match=r"partitions 0\).* call rewind\(\)"):
        group.run(group.session.in_transaction(core, transaction, None))
    group.session.rewind()
    group.turn()
    group.read(1, 5)
    assert isinstance(next(group.session.in_transaction(core, transaction, None)), Ask)
    by_itself = Coordinator().joined()
    with pytest.raises(ValueError, match="auto_commit=False"):
        by_itself.run(by_itself.session.in_transaction(core, transaction, None))


# --- Ending -----------------------------------------------------------------------------------------------------------


def test_at_the_end_it_commits_tells_the_program_and_leaves() -> None:
    group = Coordinator().joined()
    group.read(0, 10)
    group.run(group.session.closing())
    assert group.apis() == [COMMIT, "leave_group"]
    assert group.committed == {0: 10, 1: 0}
    assert group.told[-1] == ("revoked", [0, 1])
    group = Coordinator(instance_id="one").joined()
    group.run(group.session.closing())
    assert group.apis() == [COMMIT], "a static member may come back"
    group = Coordinator().joined()
    group.script = lambda _: ConnectionLostError("broken")
    group.run(group.session.closing())
    group = Coordinator()
    group.run(group.session.closing())
    assert group.asked == []
    assert group.told == []


def test_a_member_that_was_interrupted_while_it_joined_leaves_as_well() -> None:
    group = Coordinator()
    turn = group.session.turn()
    first = next(turn)
    assert isinstance(first, Ask)
    second = turn.throw(MemberIdRequiredError("again", member_id="me"))
    assert isinstance(second, Ask)
    assert second.request.api == JOIN
    turn.close()  # as by an interrupt
    group.run(group.session.closing())
    (leaving,) = group.asked
    assert isinstance(leaving, messages.LeaveGroupRequest)
    assert [member.member_id for member in leaving.members] == ["me"]
    group.asked.clear()
    group.run(group.session.closing())
    assert group.asked == []


def test_iteration_ends_only_when_all_is_read_or_paused() -> None:
    following = Coordinator()
    assert not following.session.is_finished
    following.joined()
    assert not following.session.is_finished
    for state in following.states.values():
        state.is_paused = True
    assert following.session.is_finished
    ending = Coordinator(follow=False).joined()
    assert not ending.session.is_finished
    for state in ending.states.values():
        state.position = 100
    assert ending.session.is_finished
    spare = Coordinator(follow=False)
    spare.assignment = set()
    spare.joined()
    assert spare.session.is_finished, "others read it all"


@each_case(
    ("ask", "sentence"),
    [
        (lambda of: of.session.committing(5), r"offsets is {partition: offset} or None, not 5"),
        (lambda of: of.session.committing([1]), r"offsets is {partition: offset} or None, not \[1\]"),
        (lambda of: of.session.committing({0: "x"}), "an offset is a whole number, not 'x'"),
        (lambda of: of.session.committing(None, 5), "metadata is text or None, not 5"),
        (lambda _: look_up_committed("a", "t", 5), "partitions is a sequence of whole numbers or None, not 5"),  # type: ignore[arg-type]
        (lambda _: look_up_committed("a", "t", ["x"]), "a partition is a whole number, not 'x'"),  # type: ignore[list-item]
    ],
)
def test_what_cannot_be_committed_or_looked_up_is_named(ask: Callable[[Any], Any], sentence: str) -> None:
    group = Coordinator()
    with pytest.raises(TypeError, match=sentence):
        group.run(ask(group))
