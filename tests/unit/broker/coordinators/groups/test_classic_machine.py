"""A classic group under random schedules: consumers that lose answers, a log that loses writes, a broker that restarts.

The model knows what consumers were told, and holds the group to it: a generation never goes back and has one leader,
all assignments of it come from one plan, every request is answered once, who is alive is in, who is dead goes in time.
"""

from collections import defaultdict, deque
from itertools import count
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seglog_broker.coordinators.groups.classic import NEW_MEMBER_JOIN_TIMEOUT_MS, ClassicGroup
from seglog_broker.coordinators.groups.membership import (
    JoinRequest,
    JoinResult,
    LeavingMember,
    Limits,
    SyncRequest,
    SyncResult,
)
from seglog_broker.coordinators.state_machine import Answer, Now, Outbox
from seglog_protocol.errors import CoordinatorNotAvailableError, GroupError, MemberIdRequiredError, UnknownMemberError
from seglog_protocol.kafka.messages import GroupMetadataValue
from tests.support import examples
from tests.unit.broker.coordinators.groups.classic_coordinator import restore, subscription

_REBALANCE_MAX_MS = 40_000
_SESSION_MAX_MS = 20_000
_INSTANCES = (None, None, None, "blue", "blue", "green")
"""Of consumer 0, 1, ...: two of them claim the same instance."""

_PROTOCOLS = (
    (("range", subscription("orders")), ("sticky", b"")),
    (("sticky", b""), ("range", subscription("orders", "fruit"))),
    (("range", subscription("orders")),),
)

Plan = dict[str, bytes]
"""Assignments by the instance id, or else the member id, of who gets them."""


class Batch(NamedTuple):
    """What is written together, and the replies that wait for it."""

    values: list[GroupMetadataValue]
    replies: list[tuple[Answer, Any]]


class Consumer:
    """What a consumer knows of its membership."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.joined: JoinResult | None = None


class Waiting:
    """A request that is not answered yet."""

    def __init__(self, model: "ClassicGroupModel", consumer: Consumer, member_id: str, generation: int) -> None:
        self.model = model
        self.consumer = consumer
        self.member_id = member_id
        self.generation = generation
        self.since_ms = model.now_ms
        model.waiting.append(self)

    def __call__(self, result: Any, /) -> None:
        assert self in self.model.waiting, f"answered twice: {result}"
        self.model.waiting.remove(self)
        if isinstance(result, JoinResult):
            self.model.hear_of_join(self, result)
        else:
            self.model.hear_of_sync(self, result)


class ClassicGroupModel(RuleBasedStateMachine):
    """``in_flight``: what the log has not made durable; nobody hears of it, nor of what came after it."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), max_size=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, max_size: int) -> None:
        self.limits = Limits(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.now_ms = 0
        self.wall_ms = 1_700_000_000_000
        self.ids = count(1)
        self.plans_made = count(1)
        self.consumers = [Consumer(instance_id) for instance_id in _INSTANCES]
        self.in_flight: deque[Batch] = deque()
        self.durable: GroupMetadataValue | None = None
        self.waiting: list[Waiting] = []
        self.loses_next_answer: set[Consumer] = set()
        self.generation_told = 0
        self.leaders: defaultdict[int, set[str]] = defaultdict(set)  # generation -> who was told to lead it
        self.plans: defaultdict[int, list[Plan]] = defaultdict(list)  # generation -> what was brought by leaders
        self.assignments: defaultdict[int, list[tuple[str, bytes]]] = defaultdict(list)  # generation -> what was told
        self.members_told: set[str] = set()  # member ids that came with a generation
        self.fenced: set[str] = set()  # member ids
        self.owners: dict[str, str] = {}  # instance id -> member id that was told last
        self.contacts: dict[str, int] = {}  # member id -> when it last sent something, or was to be answered
        self.make_group()

    def make_group(self) -> None:
        self.outbox = Outbox()
        arguments = (self.outbox, lambda: self.limits, lambda: str(next(self.ids)))
        self.group = ClassicGroup("workers", *arguments)
        if self.durable is not None:
            restore(self.group, self.durable, self.now)
            self.contacts = dict.fromkeys(self.group.members, self.now_ms)
        self.collect()

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.wall_ms)

    # --- What consumers do --------------------------------------------------------------------------------------------

    consumers_of = st.integers(0, len(_INSTANCES) - 1)

    @rule(
        number=consumers_of,
        forgets=st.booleans(),
        protocols=st.sampled_from(_PROTOCOLS),
        session_ms=st.sampled_from([6_000, _SESSION_MAX_MS]),
        rebalance_ms=st.sampled_from([5_000, _REBALANCE_MAX_MS]),
        needs_known_member_id=st.booleans(),
        may_skip=st.booleans(),
    )
    def join(
        self,
        number: int,
        forgets: bool,
        protocols: Any,
        session_ms: int,
        rebalance_ms: int,
        needs_known_member_id: bool,
        may_skip: bool,
    ) -> None:
        """``forgets``: the consumer was started anew, and does not know its member id."""
        consumer = self.consumers[number]
        if forgets:
            consumer.member_id = ""
        self.send_join(consumer, protocols, session_ms, rebalance_ms, needs_known_member_id, may_skip)

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True))
    def join_together(self, numbers: list[int]) -> None:
        for number in numbers:
            self.send_join(self.consumers[number])

    @rule(numbers=st.sets(consumers_of, min_size=2), assigns=st.booleans())
    def form_a_group(self, numbers: set[int], assigns: bool) -> None:
        """These consumers do what it takes to get a generation, and its assignments."""
        for _ in range(3):  # the first answer may be a member id, the second one a rebalance of somebody else
            for number in sorted(numbers):
                if not any(waiting.consumer is self.consumers[number] for waiting in self.waiting):
                    self.send_join(self.consumers[number])
            self.write(len(self.in_flight))
        self.step_to(self.now_ms + self.limits.initial_rebalance_delay_ms)
        self.write(len(self.in_flight))
        if assigns:
            self.sync(sorted(numbers), leaves_out=False)
            self.write(len(self.in_flight))

    def send_join(
        self,
        consumer: Consumer,
        protocols: Any = _PROTOCOLS[0],
        session_ms: int = _SESSION_MAX_MS,
        rebalance_ms: int = _REBALANCE_MAX_MS,
        needs_known_member_id: bool = True,
        may_skip: bool = True,
    ) -> None:
        request = JoinRequest(
            consumer.member_id,
            consumer.instance_id,
            "app",
            "/10.0.0.1",
            session_ms,
            rebalance_ms,
            "consumer",
            protocols,
            needs_known_member_id,
            may_skip,
        )
        self.contacts[consumer.member_id] = self.now_ms
        self.group.join(request, Waiting(self, consumer, consumer.member_id, -1), self.now)
        self.collect()

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True), leaves_out=st.booleans())
    def sync(self, numbers: list[int], leaves_out: bool) -> None:
        for number in numbers:
            consumer = self.consumers[number]
            joined = consumer.joined
            plan: Plan = {}
            by_member: dict[str, bytes] = {}
            if joined is not None and joined.member_id == joined.leader and not joined.skip_assignment:
                name = next(self.plans_made)
                for member in list(joined.members)[leaves_out:]:
                    assigned = f"plan {name}: {member.instance_id or member.member_id}".encode()
                    plan[member.instance_id or member.member_id] = by_member[member.member_id] = assigned
                self.plans[joined.generation].append(plan)
            request = SyncRequest(
                consumer.member_id, consumer.generation, consumer.instance_id, "consumer", None, by_member
            )
            self.contacts[consumer.member_id] = self.now_ms
            self.group.sync(request, Waiting(self, consumer, consumer.member_id, consumer.generation), self.now)
            self.collect()

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True))
    def heartbeat(self, numbers: list[int]) -> None:
        for number in numbers:
            consumer = self.consumers[number]
            try:
                self.group.heartbeat(consumer.member_id, consumer.generation, consumer.instance_id, self.now)
            except GroupError as error:
                if error.code == "REBALANCE_IN_PROGRESS":
                    self.contacts[consumer.member_id] = self.now_ms
                continue
            self.is_member(consumer)
            assert self.group.state in ("CompletingRebalance", "Stable")

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True), seconds=st.sampled_from([10, 50]))
    def live_on(self, numbers: list[int], seconds: int) -> None:
        """Some heartbeat and do nothing else: they do not join and do not sync."""
        for _ in range(seconds // 5):
            self.heartbeat(numbers)
            self.pass_time(5_000, wall_jump_ms=0)
            self.nobody_waits_for_long()

    @rule(number=consumers_of)
    def commit(self, number: int) -> None:
        consumer = self.consumers[number]
        try:
            self.group.check_commit(consumer.member_id, consumer.generation, consumer.instance_id, self.now)
        except GroupError as error:
            if error.code == "REBALANCE_IN_PROGRESS":
                self.contacts[consumer.member_id] = self.now_ms
            return
        if self.group.is_empty:
            assert consumer.generation < 0
        else:
            self.is_member(consumer)
            assert self.group.state != "CompletingRebalance"

    def is_member(self, consumer: Consumer) -> None:
        """The group took it for a member of this generation."""
        assert consumer.member_id in self.group.members
        assert consumer.member_id not in self.fenced
        assert consumer.generation == self.group.generation
        self.contacts[consumer.member_id] = self.now_ms

    @rule(number=consumers_of, by_instance=st.booleans())
    def leave(self, number: int, by_instance: bool) -> None:
        consumer = self.consumers[number]
        leaving = LeavingMember("" if by_instance else consumer.member_id, consumer.instance_id)
        (result,) = self.group.leave([leaving], self.now)
        self.collect()
        if result.error is None and not by_instance:
            assert consumer.member_id not in self.group.members

    @rule(number=consumers_of)
    def lose_the_next_answer(self, number: int) -> None:
        self.loses_next_answer.add(self.consumers[number])

    # --- What the broker does -----------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take what is in the outbox: replies wait for the records in flight, those of earlier requests, too."""
        values = [record.value for record in self.outbox.records]
        replies = self.outbox.replies[:]
        self.outbox.records.clear()
        self.outbox.replies.clear()
        if not (values or replies):
            return
        handed_out = [result for _, result in replies if values and isinstance(result, JoinResult) and not result.error]
        if handed_out and not values[-1].members:  # type: ignore[union-attr]
            assert [result.member_id for result in handed_out if result.members] == [self.group.leader]
            joined = {result.member_id for result in handed_out}
            assert all(member.instance_id or member.member_id in joined for member in self.group.members.values())
        for answer, result in replies:
            assert isinstance(answer, Waiting)
            member_id = result.member_id if isinstance(result, JoinResult) else answer.member_id
            self.contacts[member_id] = self.now_ms
        self.in_flight.append(Batch(values, replies))  # type: ignore[arg-type]
        while self.in_flight and not self.in_flight[0].values:
            self.send(self.in_flight.popleft())

    def send(self, batch: Batch) -> None:
        if batch.values:
            self.durable = batch.values[-1]
        for answer, result in batch.replies:
            answer(result)

    @rule(batches=st.integers(1, 3))
    def write(self, batches: int) -> None:
        for _ in range(min(batches, len(self.in_flight))):
            self.send(self.in_flight.popleft())
        while self.in_flight and not self.in_flight[0].values:
            self.send(self.in_flight.popleft())

    @rule()
    def write_all(self) -> None:
        self.write(len(self.in_flight))

    @rule()
    def fail_to_write(self) -> None:
        if self.in_flight:
            error = CoordinatorNotAvailableError("the disk is full", group="workers")
            failed = [reply for batch in self.in_flight for reply in batch.replies]
            self.in_flight.clear()
            for answer, result in failed:
                is_join = isinstance(result, JoinResult)
                answer(JoinResult("", error=error) if is_join else SyncResult(error=error))
            self.group.write_failed(self.now)
            self.collect()

    @rule(written=st.integers(0, 3))
    def restart(self, written: int) -> None:
        """The first batches in flight reach the disk; nobody hears of them, connections end."""
        for batch in list(self.in_flight)[:written]:
            if batch.values:
                self.durable = batch.values[-1]
        self.in_flight.clear()
        self.waiting.clear()
        self.loses_next_answer.clear()
        self.make_group()

    @rule(ms=st.sampled_from([1, 900, 3_000, 6_000, 25_000, 400_000]), wall_jump_ms=st.sampled_from([0, -3_600_000]))
    def pass_time(self, ms: int, wall_jump_ms: int) -> None:
        self.wall_ms += ms + wall_jump_ms
        self.step_to(self.now_ms + ms)
        self.the_dead_are_out()

    def step_to(self, end_ms: int) -> None:
        """The broker is called at each deadline of the group."""
        while (deadline := self.group.deadline_ms) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.group.advance(self.now)
            self.collect()
        self.now_ms = end_ms

    @rule(ms=st.sampled_from([3_000, 25_000]))
    def be_late(self, ms: int) -> None:
        """The broker gets around to its deadlines late."""
        self.now_ms += ms
        self.wall_ms += ms
        self.group.advance(self.now)
        self.collect()
        self.the_dead_are_out()

    # --- What must be so ----------------------------------------------------------------------------------------------

    def hear_of_join(self, request: Waiting, result: JoinResult) -> None:
        consumer = request.consumer
        if consumer in self.loses_next_answer:
            self.loses_next_answer.discard(consumer)
        elif result.error is None:
            consumer.member_id, consumer.generation, consumer.joined = result.member_id, result.generation, result
        elif isinstance(result.error, MemberIdRequiredError):
            consumer.member_id = result.error.member_id
        elif isinstance(result.error, UnknownMemberError):
            consumer.member_id = ""
        if result.error is not None:
            return
        assert request.member_id in ("", result.member_id)
        if not request.member_id:
            assert result.member_id not in self.members_told
        self.members_told.add(result.member_id)
        assert result.generation >= self.generation_told
        self.generation_told = result.generation
        assert self.durable is not None
        assert self.durable.generation >= result.generation
        if consumer.instance_id is not None:
            before = self.owners.get(consumer.instance_id)
            if before is not None and before != result.member_id:
                self.fenced.add(before)
            self.owners[consumer.instance_id] = result.member_id
        assert result.member_id not in self.fenced
        if result.members:
            assert result.leader == result.member_id
            assert result.member_id in [member.member_id for member in result.members]
            if not result.skip_assignment:
                self.leaders[result.generation].add(result.member_id)
                assert len(self.leaders[result.generation]) == 1

    def hear_of_sync(self, request: Waiting, result: SyncResult) -> None:
        self.loses_next_answer.discard(request.consumer)
        if result.error is not None:
            return
        assert self.durable is not None
        assert self.durable.generation >= request.generation
        owner = request.consumer.instance_id or request.member_id
        told = self.assignments[request.generation]
        told.append((owner, result.assignment))
        assert any(all(plan.get(who, b"") == what for who, what in told) for plan in self.plans[request.generation])

    def the_dead_are_out(self) -> None:
        for member in self.group.members.values():
            quiet_ms = self.now_ms - self.contacts.get(member.member_id, -(10**9))
            if member.is_new:
                assert self.now_ms - member.last_seen_ms < NEW_MEMBER_JOIN_TIMEOUT_MS
            elif not member.is_waiting:
                assert quiet_ms < member.session_timeout_ms

    @invariant()
    def generations_do_not_go_back(self) -> None:
        assert self.group.generation >= self.generation_told

    @invariant()
    def nobody_waits_for_long(self) -> None:
        """Neither for the others to join nor for the leader to assign; for a slow disk, as long as that takes."""
        in_flight = {id(answer) for batch in self.in_flight for answer, _ in batch.replies}
        waiting = [waiting for waiting in self.waiting if id(waiting) not in in_flight]
        if waiting:
            assert self.group.deadline_ms is not None
            assert self.now_ms - min(each.since_ms for each in waiting) < _REBALANCE_MAX_MS

    @invariant()
    def what_is_seen_of_the_group_is_consistent(self) -> None:
        group = self.group
        assert not self.outbox
        described = group.described_as_classic(self.now)
        assert [member.member_id for member in described.members] == list(group.members)
        instances = [member.instance_id for member in group.members.values() if member.instance_id is not None]
        assert len(instances) == len(set(instances))
        if group.state in ("CompletingRebalance", "Stable"):
            assert group.members
            assert group.leader in group.members
            assert not any(member.is_new for member in group.members.values())
            assert all(member.join_answer is None for member in group.members.values())
            assert all(group.protocol in member.protocols for member in group.members.values())
        if group.state == "Stable":
            assert all(member.sync_answer is None for member in group.members.values())
        if group.is_empty:
            assert not group.members
            assert group.subscribed_topics == frozenset()

    def teardown(self) -> None:
        """Whatever happened, a group that is left alone answers everybody, loses its members, and rests."""
        if not hasattr(self, "group"):
            return
        begin_ms = self.now_ms
        self.write_all()
        while (deadline := self.group.deadline_ms) is not None:
            self.now_ms = max(self.now_ms, deadline)
            assert self.now_ms - begin_ms <= NEW_MEMBER_JOIN_TIMEOUT_MS + 2 * _REBALANCE_MAX_MS + _SESSION_MAX_MS
            self.group.advance(self.now)
            self.collect()
            self.write_all()
        assert not self.waiting
        assert self.group.is_empty


TestClassicGroup = ClassicGroupModel.TestCase
TestClassicGroup.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
