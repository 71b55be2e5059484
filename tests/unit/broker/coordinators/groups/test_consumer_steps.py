"""Requests of a group that go on beside each other, step by step, in any order; some are lost on the way."""

import contextlib
import random
from collections.abc import Iterable

import pytest

from seglog_broker.coordinators.groups import consumer_core
from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_protocol import steps
from seglog_protocol.errors import CoordinatorNotAvailableError, GroupError
from seglog_protocol.steps import Steps, finished
from tests.support import each_case, some_seeds
from tests.unit.broker.coordinators.groups.consumer_coordinator import GROUP, ConsumerCoordinator, Topics, replayed

SEEDS = 150
EVENTS = 120
REBALANCE_MS = 30_000
TOPICS = ("a", "b", "c", "d")


class Consumer:
    """A member that has what it was told to have, and gives up at once what it is not to have any more."""

    def __init__(self, member_id: str, chosen: random.Random) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.has: Assignment = {}
        self.topics = chosen.sample(TOPICS, chosen.randint(1, 3))
        self.assignor = chosen.choice(["uniform", "range"])
        self.asks: Steps[HeartbeatResult] | None = None
        self.says_all = True

    def request(self) -> ConsumerHeartbeat:
        beat = ConsumerHeartbeat(self.member_id, self.epoch, owned=self.has)
        if self.says_all or self.epoch == 0:
            beat = beat._replace(rebalance_timeout_ms=REBALANCE_MS, topics=self.topics, assignor=self.assignor)
        return beat

    def partitions(self) -> Iterable[tuple[bytes, int]]:
        return [(topic, number) for topic, numbers in self.has.items() for number in numbers]


class Run(ConsumerCoordinator):
    """Consumers of one group, each with one request at most that goes on."""

    def __init__(self, chosen: random.Random) -> None:
        super().__init__(Topics(a=3, b=1, c=4))
        self.chosen = chosen
        self.consumers: list[Consumer] = []
        self.lost: list[Steps[HeartbeatResult]] = []
        self.count = 0
        self.refused = 0

    def come(self) -> None:
        if len(self.consumers) < 5:
            self.count += 1
            self.consumers.append(Consumer(f"m{self.count}", self.chosen))

    def step(self, consumer: Consumer) -> None:
        """Begin the consumer's next request, or do a step of the one that goes on."""
        try:
            if consumer.asks is None:
                consumer.asks = self.group.heartbeat(consumer.request(), self.now)
            next(consumer.asks)
        except StopIteration as done:
            result: HeartbeatResult = done.value
            consumer.asks, consumer.says_all, consumer.epoch = None, False, result.member_epoch
            if result.assignment is not None:
                consumer.has = result.assignment
            self.deliver()
        except CoordinatorNotAvailableError:
            consumer.asks, consumer.says_all = None, True
            self.refused += 1
        except GroupError:
            consumer.asks, consumer.has, consumer.epoch, consumer.says_all = None, {}, 0, True
        self.check()

    def lose(self, consumer: Consumer) -> None:
        """The connection breaks while a request goes on; the next one may come before the group has noticed."""
        if consumer.asks is not None:
            if self.chosen.random() < 0.5:
                self.lost.append(consumer.asks)
            else:
                consumer.asks.close()
        consumer.asks, consumer.says_all = None, True

    def step_of_lost(self) -> None:
        """A request goes on whose answer does not arrive."""
        asks = self.chosen.choice(self.lost)
        try:
            next(asks)
        except (StopIteration, GroupError):
            self.lost.remove(asks)
            self.deliver()

    def leave(self, consumer: Consumer) -> None:
        if consumer.asks is None:
            self.consumers.remove(consumer)
            with contextlib.suppress(GroupError):
                finished(self.group.heartbeat(ConsumerHeartbeat(consumer.member_id, -1), self.now))
            self.deliver()

    def change_topics(self) -> None:
        name = self.chosen.choice(TOPICS)
        size = self.topics.find(name)
        if size is None:
            self.topics.make(name, self.chosen.randint(1, 4))
        elif self.chosen.random() < 0.5:
            self.topics.enlarge(name, size.partitions + 1)
        else:
            self.topics.delete(name)

    def event(self) -> None:
        event = self.chosen.random()
        if event < 0.06 or not self.consumers:
            self.come()
            return
        consumer = self.chosen.choice(self.consumers)
        if event < 0.08:
            self.leave(consumer)
        elif event < 0.12:
            self.lose(consumer)
        elif event < 0.16:
            self.change_topics()
        elif event < 0.18 and consumer.asks is None:
            consumer.topics, consumer.says_all = self.chosen.sample(TOPICS, self.chosen.randint(1, 3)), True
        elif event < 0.2:
            self.pass_time(self.chosen.randint(1, 15_000))
        elif event < 0.4 and self.lost:
            self.step_of_lost()
        else:
            for _ in range(self.chosen.randint(1, 8)):
                self.step(consumer)

    def check(self) -> None:
        """No partition is read by two who are members."""
        alive = {member.member_id for member in self.group.members}
        read = [key for consumer in self.consumers if consumer.member_id in alive for key in consumer.partitions()]
        assert len(read) == len(set(read))

    def known(self) -> ConsumerGroupDescription:
        """The group, without what is not in its records."""
        described = self.describe()
        members = [member._replace(quiet_ms=0) for member in described.members]
        return described._replace(members=sorted(members))

    def settle(self) -> None:
        while self.lost:
            self.step_of_lost()
        for _ in range(12):
            for consumer in self.consumers:
                self.step(consumer)
                while consumer.asks is not None:
                    self.step(consumer)
        assert self.group.state == "Stable"
        has = sorted(key for consumer in self.consumers for key in consumer.partitions())
        read = {name for consumer in self.consumers for name in consumer.topics}
        found = [topic for name in read if (topic := self.topics.find(name)) is not None]
        assert has == sorted((topic.topic_id, number) for topic in found for number in range(topic.partitions))


@each_case("seed", some_seeds(SEEDS, quick=30))
def test_requests_that_go_on_beside_each_other(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(steps, "ITEMS_A_STEP", 1)
    monkeypatch.setattr(consumer_core, "ITEMS_A_STEP", 1)
    run = Run(random.Random(seed))
    for _ in range(EVENTS):
        run.event()
    run.come()
    run.settle()
    members = {member.member_id for member in run.group.members}
    about = {name for _, name in replayed(run.log).consumer[GROUP] if name}
    assert about == members, "nothing is written of one who is gone"
    before = run.known()
    run.restart()
    assert run.known() == before
