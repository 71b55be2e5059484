"""Requests of a share group that go on beside each other, step by step in any order, while topics come and go."""

from typing import Any

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.share import RETRY_MS, ShareGroup, ShareHeartbeat
from seglog_broker.coordinators.state_machine import Outbox
from seglog_protocol.kafka import messages
from seglog_protocol.steps import Steps, finished
from tests.support import each_case, some_seeds
from tests.unit.broker.coordinators.groups.beside import SEEDS, Beside, Peer
from tests.unit.broker.coordinators.groups.share_coordinator import ShareCoordinator


class Run(Beside[ShareGroup], ShareCoordinator):
    """Members of a share group, and the broker's tasks that have states made and topics forgotten."""

    rounds = 4

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tasks: dict[str, Steps[None]] = {}
        self.targets: dict[str, Assignment] = {}
        """As the records say."""
        self.failures = 0.2

    def request(self, peer: Peer) -> ShareHeartbeat:
        return ShareHeartbeat(peer.member_id, peer.epoch, topics=peer.topics if peer.says_all else None)

    def keep(self, taken: Outbox) -> None:
        super().keep(taken)
        for record in self.records:
            value: Any = record.value
            if isinstance(record.key, messages.ShareGroupTargetAssignmentMemberKey):
                topics = [] if value is None else value.topic_partitions
                self.targets[record.key.member_id] = {bytes(one.topic_id): frozenset(one.partitions) for one in topics}

    def aside(self, peer: Peer) -> None:
        self.step_of(self.chosen.choice(["make", "forget"]))

    def step_of(self, task: str) -> None:
        """Begin what a task of the broker does next, or do a step of it."""
        if task not in self.tasks:
            if task == "forget":
                self.tasks[task] = self.group.forget_gone_topics()
            elif self.effects:
                wanted = self.effects.pop(0).start_offsets
                self.tasks[task] = self.group.end_initializing(wanted, is_done=self.chosen.random() >= self.failures)
            else:
                return
        if next(self.tasks[task], self) is self:
            del self.tasks[task]
        self.deliver()

    def end_aside(self) -> None:
        self.failures = 0.0
        self.pass_time(RETRY_MS)
        while self.effects or self.tasks:
            for task in ("make", *self.tasks):
                self.step_of(task)

    def check(self) -> None:
        """Members that are in the epoch of the assignment have what it gives them, of topics that they read."""
        described = self.describe()
        for member in described.members:
            if member.epoch == described.assignment_epoch == described.group_epoch:
                target = self.topics.by_name(self.targets.get(member.member_id, {}))
                assigned = {each.topic: each.partitions for each in member.assigned if each.topic in member.topics}
                assert assigned == {topic: target[topic] for topic in target if topic in member.topics}


@each_case("seed", some_seeds(SEEDS, quick=30))
def test_requests_that_go_on_beside_each_other(small_steps: None, seed: int) -> None:
    """Each partition of a topic that is read has a member that knows of it, and nobody has one of another topic."""
    run = Run(seed)
    run.run()
    assert not run.group.shared.initializing
    assert {peer.epoch for peer in run.peers} == {run.group.generation}
    has = [(run.topics.by_name(peer.has), set(peer.topics)) for peer in run.peers]
    assert all(set(partitions) <= topics for partitions, topics in has)
    for name in set().union(*(topics for _, topics in has)):
        size = run.topics.find(name)
        held = {number for partitions, _ in has for number in partitions.get(name, ())}
        assert held == set(range(0 if size is None else size.partitions)), name


@each_case("before", range(7))
def test_another_member_comes_at_any_step_of_a_heartbeat(small_steps: None, before: int) -> None:
    run = Run(0)
    epoch = run.ready("a", "a", "c")
    run.beat("b", 0, "a", "c")
    asks = run.group.heartbeat(ShareHeartbeat("a", epoch), run.now)
    for _ in range(before):
        next(asks)
    run.beat("c", 0, "a", "c")
    result = finished(asks)
    run.deliver()
    run.check()
    assert result.assignment == run.targets["a"] or result.member_epoch < run.group.generation
