"""Requests of a group that go on beside each other, step by step, in any order; some are lost on the way."""

from collections.abc import Iterable

from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_protocol.errors import GroupError
from seglog_protocol.steps import Steps
from tests.support import each_case, some_seeds
from tests.unit.broker.coordinators.groups.beside import SEEDS, Beside, Peer
from tests.unit.broker.coordinators.groups.consumer_coordinator import REBALANCE_MS, ConsumerCoordinator


class Run(Beside[ConsumerGroup], ConsumerCoordinator):
    """Consumers that have what they were told to have, and give up at once what they are not to have any more."""

    rounds = 12

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lost: list[Steps[HeartbeatResult]] = []

    def request(self, peer: Peer) -> ConsumerHeartbeat:
        beat = ConsumerHeartbeat(peer.member_id, peer.epoch, owned=peer.has)
        if peer.says_all:
            assignor = self.chosen.choice(["uniform", "range"])
            beat = beat._replace(rebalance_timeout_ms=REBALANCE_MS, topics=peer.topics, assignor=assignor)
        return beat

    def aside(self, peer: Peer) -> None:
        if self.lost and self.chosen.random() < 0.8:
            self.step_of_lost()
        elif peer.asks is not None:
            # The connection breaks; the next request may come before the group has noticed.
            if self.chosen.random() < 0.5:
                self.lost.append(peer.asks)
            else:
                peer.asks.close()
            peer.ended()

    def step_of_lost(self) -> None:
        """A request goes on whose answer does not arrive."""
        asks = self.chosen.choice(self.lost)
        try:
            next(asks)
        except (StopIteration, GroupError):
            self.lost.remove(asks)
            self.deliver()

    def end_aside(self) -> None:
        while self.lost:
            self.step_of_lost()

    def read(self) -> Iterable[tuple[bytes, int]]:
        """The partitions of all who are members."""
        alive = {member.member_id for member in self.group.members}
        has = [peer.has for peer in self.peers if peer.member_id in alive]
        return [(topic, number) for each in has for topic, numbers in each.items() for number in numbers]

    def check(self) -> None:
        """No partition is read by two who are members."""
        read = list(self.read())
        assert len(read) == len(set(read))


@each_case("seed", some_seeds(SEEDS, quick=30))
def test_requests_that_go_on_beside_each_other(small_steps: None, seed: int) -> None:
    run = Run(seed)
    run.run()
    assert run.group.state == "Stable"
    wanted = {name for peer in run.peers for name in peer.topics}
    found = [topic for name in wanted if (topic := run.topics.find(name)) is not None]
    assert sorted(run.read()) == sorted(
        (topic.topic_id, number) for topic in found for number in range(topic.partitions)
    )
