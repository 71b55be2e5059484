"""A group of the consumer protocol under random schedules: lost answers, lost writes, restarts, topics that change.

The model knows what consumers were told and what they read. It holds the group to it: no partition is read by two
members, epochs never go back, and members that go on end with all partitions of what they subscribe to.
"""

from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_broker.coordinators.groups.membership import CommitCheck, Limits
from seglog_broker.coordinators.state_machine import Now, Outbox, encode_record
from seglog_protocol.errors import GroupError
from seglog_protocol.steps import finished
from tests.support import examples
from tests.unit.broker.coordinators.groups.consumer_coordinator import (
    GROUP,
    WALL_MS,
    Encoded,
    Topics,
    replayed,
    restore,
)

_REBALANCE_MS = 20_000
_HEARTBEAT_MS = 5_000
_ROUNDS = 40
"""Of heartbeats, until sessions of others have ended, expressions are matched again, and all is given up and got."""

_INSTANCES = (None, None, None, "blue", "blue")
"""Of consumer 0, 1, ...: two of them claim the same instance."""

_SUBSCRIPTIONS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"orders"}), ""),
    (frozenset({"orders", "fruit"}), ""),
    (frozenset({"fruit"}), ""),
    (frozenset(), "o.*"),
    (frozenset({"orders"}), "f.*"),
)
"""Names and a regular expression."""

Partition = tuple[bytes, int]


class Batch(NamedTuple):
    """What is written together, and the replies that wait for it."""

    records: list[Encoded]
    replies: list[Callable[[], None]]
    failed: list[Callable[[], None]]
    """What to call in place of ``replies`` if it is not written."""


class Consumer:
    """What a consumer knows, and what it reads."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.starts = count(1)
        self.begin()
        self.is_running = False

    def begin(self) -> None:
        """Start as a new process."""
        self.member_id = f"{self.name}-{next(self.starts)}"
        self.names, self.regex = _SUBSCRIPTIONS[0]
        self.is_running = True
        self.lose()

    def lose(self) -> None:
        """Have nothing, and join as if for the first time."""
        self.epoch = 0
        self.told: frozenset[Partition] = frozenset()
        self.reads: frozenset[Partition] = frozenset()
        self.says_all = True
        self.waits = False
        self.generation = object()  # answers to requests from before are not heard

    @property
    def owned(self) -> dict[bytes, frozenset[int]]:
        found: dict[bytes, set[int]] = {}
        for topic, number in self.reads:
            found.setdefault(topic, set()).add(number)
        return {topic: frozenset(numbers) for topic, numbers in found.items()}

    def hear(self, result: HeartbeatResult, has_said: tuple[frozenset[str], str]) -> None:
        """``has_said``: what it subscribed to when it asked."""
        self.waits = False
        self.says_all = has_said != (self.names, self.regex)
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.told = frozenset((topic, n) for topic, numbers in result.assignment.items() for n in numbers)

    def hear_nothing(self) -> None:
        self.waits = False
        self.says_all = True

    def reads_topic(self, name: str) -> bool:
        return name in self.names or bool(self.regex and name.startswith(self.regex[0]))


class ConsumerGroupModel(RuleBasedStateMachine):
    """``in_flight``: what the log has not made durable; nobody hears of it, nor of what came after it."""

    @initialize(
        assignor=st.sampled_from(["uniform", "range"]),
        max_size=st.sampled_from([100, 100, 2]),
        starts=st.integers(0, 5),
    )
    def begin(self, assignor: str, max_size: int, starts: int) -> None:
        self.limits = Limits(consumer_assignors=(assignor,), consumer_max_size=max_size)
        self.topics = Topics(orders=4)
        self.now_ms = 0
        self.ids = count(1)
        self.log: list[Encoded] = []
        self.in_flight: deque[Batch] = deque()
        self.consumers = [Consumer(f"c{number}", instance) for number, instance in enumerate(_INSTANCES)]
        for consumer in self.consumers[:starts]:
            consumer.begin()
        self.epoch_told = 0
        self.make_group()

    def make_group(self) -> None:
        self.outbox = Outbox()
        self.group = self.new_group(self.outbox)
        restore(self.group, replayed(self.log), self.now)
        self.topics.tell(self.group)  # the service matches all topics for groups that come from the log

    def new_group(self, outbox: Outbox) -> ConsumerGroup:
        return ConsumerGroup(GROUP, outbox, lambda: self.limits, lambda: str(next(self.ids)), self.topics)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    # --- What consumers do --------------------------------------------------------------------------------------------

    consumers_of = st.integers(0, len(_INSTANCES) - 1)

    @rule(number=consumers_of)
    def start(self, number: int) -> None:
        """As a new process; if there is one, it is killed first."""
        self.consumers[number].begin()

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True), loses_answer=st.booleans())
    def heartbeat(self, numbers: list[int], loses_answer: bool) -> None:
        for number in numbers:
            consumer = self.consumers[number]
            if consumer.is_running and not consumer.waits:
                self.send_heartbeat(consumer, loses_answer)

    def send_heartbeat(self, consumer: Consumer, loses_answer: bool = False) -> None:
        request = ConsumerHeartbeat(consumer.member_id, consumer.epoch, consumer.instance_id, owned=consumer.owned)
        if consumer.says_all:
            request = request._replace(
                rebalance_timeout_ms=_REBALANCE_MS,
                topics=sorted(consumer.names),
                regex=consumer.regex,
                matching=self.topics.matching(consumer.regex),
            )
        before = self.group.generation
        consumer.waits = True
        try:
            result = finished(self.group.heartbeat(request, self.now))
        except GroupError as error:
            assert not self.outbox, "a request that is refused changes nothing"
            assert self.group.generation == before
            consumer.hear_nothing()
            if not loses_answer and error.code in {"UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "FENCED_INSTANCE_ID"}:
                consumer.lose()
            return
        assert result.member_id == consumer.member_id
        asked, said = consumer.generation, (consumer.names, consumer.regex)

        def hear() -> None:
            if consumer.generation is asked:
                consumer.hear_nothing() if loses_answer else self.hear(consumer, result, said)

        def hear_nothing() -> None:
            if consumer.generation is asked:
                consumer.hear_nothing()

        self.collect(hear, hear_nothing)

    def hear(self, consumer: Consumer, result: HeartbeatResult, said: tuple[frozenset[str], str]) -> None:
        assert result.member_epoch >= consumer.epoch, "a member's epoch does not go back"
        self.epoch_told = max(self.epoch_told, result.member_epoch)
        consumer.hear(result, said)

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True))
    def give_up(self, numbers: list[int]) -> None:
        """Stop reading what has been taken away."""
        for number in numbers:
            consumer = self.consumers[number]
            consumer.reads &= consumer.told

    @rule(numbers=st.lists(consumers_of, min_size=1, unique=True))
    def read(self, numbers: list[int]) -> None:
        """Give up first, then begin with what is new."""
        for number in numbers:
            self.consumers[number].reads = self.consumers[number].told

    @rule(number=consumers_of, subscription=st.sampled_from(_SUBSCRIPTIONS))
    def subscribe(self, number: int, subscription: tuple[frozenset[str], str]) -> None:
        consumer = self.consumers[number]
        consumer.names, consumer.regex = subscription
        consumer.says_all = True

    @rule(number=consumers_of, is_for_good=st.booleans())
    def leave(self, number: int, is_for_good: bool) -> None:
        consumer = self.consumers[number]
        if not consumer.is_running:
            return
        consumer.lose()
        consumer.is_running = False
        epoch = -1 if is_for_good or consumer.instance_id is None else -2
        try:
            finished(self.group.heartbeat(ConsumerHeartbeat(consumer.member_id, epoch, consumer.instance_id), self.now))
        except GroupError:
            assert not self.outbox
            return
        members = {member.member_id: member for member in self.group.members}
        assert (consumer.member_id in members) == (epoch == -2)
        self.collect()

    @rule(number=consumers_of, epoch_off=st.sampled_from([0, 0, 1, -1]))
    def commit(self, number: int, epoch_off: int) -> None:
        consumer = self.consumers[number]
        epoch = consumer.epoch + epoch_off
        try:
            check = self.group.check_commit(consumer.member_id, epoch, consumer.instance_id, self.now)
        except GroupError:
            return
        if epoch < 0 and self.group.is_empty:
            return
        (member,) = (member for member in self.group.members if member.member_id == consumer.member_id)
        if check is None:
            assert member.epoch == epoch
            return
        taken = {partition for partition in consumer.reads if _is_taken(check, partition)}
        assert taken <= set(member.progress.since), "others may have the rest by now"

    # --- What the broker does -----------------------------------------------------------------------------------------

    def collect(self, reply: Callable[[], None] = lambda: None, instead: Callable[[], None] = lambda: None) -> None:
        """Take what is in the outbox: replies wait for the records in flight, those of earlier requests, too."""
        records = [finished(encode_record(record)) for record in self.outbox.records]
        own = [_call(answer, result) for answer, result in self.outbox.replies]
        self.outbox.records.clear()
        self.outbox.replies.clear()
        if not records and not self.in_flight:
            for call in (*own, reply):
                call()
            return
        self.in_flight.append(Batch(records, [*own, reply], [instead]))

    @rule(batches=st.integers(1, 3))
    def write(self, batches: int) -> None:
        for _ in range(min(batches, len(self.in_flight))):
            batch = self.in_flight.popleft()
            self.log += batch.records
            for reply in batch.replies:
                reply()

    def write_all(self) -> None:
        self.write(len(self.in_flight))

    @rule(written=st.integers(0, 2))
    def fail_to_write(self, written: int) -> None:
        """The first batch in flight is not written; of those after it the first few are, but nobody is answered."""
        if not self.in_flight:
            return
        batches = list(self.in_flight)
        self.in_flight.clear()
        for number, batch in enumerate(batches):
            if 0 < number <= written:
                self.log += batch.records
            for call in batch.failed:
                call()
        self.group.write_failed(self.now)
        assert not self.outbox

    @rule(written=st.integers(0, 3))
    def restart(self, written: int) -> None:
        """The first batches in flight reach the disk; nobody hears of them, connections end."""
        for batch in list(self.in_flight)[:written]:
            self.log += batch.records
        self.in_flight.clear()
        for consumer in self.consumers:
            if consumer.waits:
                consumer.hear_nothing()
        self.make_group()

    @rule(ms=st.sampled_from([1_000, 6_000, 21_000, 46_000]))
    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (deadline := self.group.deadline_ms) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.group.advance(self.now)
            assert self.group.deadline_ms is None or self.group.deadline_ms > self.now_ms
            self.collect()
        self.now_ms = end_ms

    @rule(name=st.sampled_from(["orders", "fruit", "other"]), partitions=st.integers(0, 5))
    def change_topic(self, name: str, partitions: int) -> None:
        """Make it, enlarge it, or with 0 delete it."""
        topic = self.topics.find(name)
        if topic is None:
            if partitions:
                self.topics.make(name, partitions)
        elif partitions > topic.partitions:
            self.topics.enlarge(name, partitions)
        elif not partitions:
            self.topics.delete(name)
        self.topics.tell(self.group)

    # --- What holds ---------------------------------------------------------------------------------------------------

    @rule(starts=st.sets(consumers_of))
    def settle(self, starts: set[int]) -> None:
        """All that run go on without faults, and end with everything that they are to have."""
        for number in starts:
            if not self.consumers[number].is_running:
                self.consumers[number].begin()
        running = [consumer for consumer in self.consumers if consumer.is_running]
        for _ in range(_ROUNDS):
            for consumer in running:
                consumer.reads = consumer.told
                self.write_all()
                self.send_heartbeat(consumer)
                self.write_all()
            self.nobody_reads_what_another_member_reads()
            self.pass_time(_HEARTBEAT_MS)
        self.write_all()
        self.check_settled(running)

    def check_settled(self, running: list[Consumer]) -> None:
        members = {member.member_id: member for member in self.group.members}
        inside = [consumer for consumer in running if consumer.member_id in members]
        assert len(members) == len(inside), "nobody else is a member"
        taken = {consumer.instance_id for consumer in inside}
        if len(inside) < self.limits.consumer_max_size:
            assert all(c in inside or (c.instance_id is not None and c.instance_id in taken) for c in running)
        assert self.group.state == ("Stable" if inside else "Empty")
        for consumer in inside:
            assert consumer.reads == consumer.told
            assert consumer.epoch == members[consumer.member_id].epoch == self.group.generation
        self.check_shares(inside)
        if running:  # else nothing may have been written since a write failed: its records come with the next ones
            restored = self.new_group(Outbox())
            restore(restored, replayed(self.log), self.now)
            assert _at_rest(restored.describe(self.now)) == _at_rest(self.group.describe(self.now))

    def check_shares(self, inside: list[Consumer]) -> None:
        """Every partition of a topic with readers is read once, by one of them."""
        wanted: dict[Partition, set[str]] = {}
        for name in self.topics.names():
            topic = self.topics.find(name)
            assert topic is not None
            readers = {consumer.name for consumer in inside if consumer.reads_topic(name)}
            if readers:
                wanted.update({(topic.topic_id, number): readers for number in range(topic.partitions)})
        found = {partition: consumer.name for consumer in inside for partition in consumer.reads}
        assert found.keys() == wanted.keys()
        assert all(found[partition] in wanted[partition] for partition in found)
        if self.limits.consumer_assignors == ("uniform",) and len({(c.names, c.regex) for c in inside}) == 1:
            sizes = [len(consumer.reads) for consumer in inside]
            assert max(sizes) - min(sizes) <= 1

    @invariant()
    def nobody_reads_what_another_member_reads(self) -> None:
        members = {member.member_id for member in self.group.members}
        readers = Counter(
            partition for consumer in self.consumers if consumer.member_id in members for partition in consumer.reads
        )
        assert all(number == 1 for number in readers.values()), readers

    @invariant()
    def the_group_epoch_is_not_before_one_that_was_told(self) -> None:
        assert self.group.generation >= self.epoch_told


def _is_taken(check: CommitCheck, partition: Partition) -> bool:
    try:
        check(*partition)
    except GroupError:
        return False
    return True


def _call(answer: Callable[[Any], None], result: Any) -> Callable[[], None]:
    return lambda: answer(result)


def _at_rest(group: ConsumerGroupDescription) -> ConsumerGroupDescription:
    """Without what a restart begins anew."""
    members = sorted((member._replace(quiet_ms=0) for member in group.members), key=lambda member: member.member_id)
    return group._replace(members=members)


TestConsumerGroup = ConsumerGroupModel.TestCase
TestConsumerGroup.settings = settings(max_examples=examples(500), stateful_step_count=40, deadline=None)
