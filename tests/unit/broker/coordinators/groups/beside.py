"""Requests of a group that go on beside each other, step by step in any order, while topics come and go."""

import random
from typing import Any, Final

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_protocol.errors import CoordinatorNotAvailableError, GroupError
from seglog_protocol.steps import Steps
from tests.unit.broker.coordinators.groups.consumer_coordinator import AssignedCoordinator, GroupT, Topics, replayed

SEEDS: Final = 150
EVENTS: Final = 200
TOPICS: Final = ("a", "b", "c", "d")


class Peer:
    """A member, which says where it reads until that is answered, with the request of it that goes on."""

    def __init__(self, member_id: str, topics: list[str]) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.topics = topics
        self.says_all = True
        self.has: Assignment = {}
        self.asks: Steps[Any] | None = None

    def ended(self) -> None:
        """The request is over, without an answer."""
        self.asks, self.says_all = None, True


class Beside(AssignedCoordinator[GroupT]):
    """Members of one group, each with one request at most that goes on."""

    rounds: int
    """After which all have what they are to have."""

    def __init__(self, seed: int) -> None:
        super().__init__(Topics(a=3, b=1, c=4))
        self.chosen = random.Random(seed)
        self.peers: list[Peer] = []
        self.count = 0

    def request(self, peer: Peer) -> Any:
        """The next heartbeat of a peer."""
        raise NotImplementedError

    def aside(self, peer: Peer) -> None:
        """Do something else that such a group meets."""
        raise NotImplementedError

    def end_aside(self) -> None:
        """Do the rest of what ``aside`` began, without faults."""
        raise NotImplementedError

    def check(self) -> None:
        """Check what holds at any time."""
        raise NotImplementedError

    def some_topics(self) -> list[str]:
        return self.chosen.sample(TOPICS, self.chosen.randint(1, 3))

    def come(self) -> None:
        if len(self.peers) < 5:
            self.count += 1
            self.peers.append(Peer(f"m{self.count}", self.some_topics()))

    def step(self, peer: Peer) -> None:
        """Begin the peer's next request, or do a step of the one that goes on."""
        try:
            if peer.asks is None:
                peer.asks = self.group.heartbeat(self.request(peer), self.now)
            next(peer.asks)
        except StopIteration as done:
            peer.asks, peer.says_all, peer.epoch = None, False, done.value.member_epoch
            peer.has = peer.has if done.value.assignment is None else done.value.assignment
            if peer.epoch == -1:
                self.peers.remove(peer)
        except CoordinatorNotAvailableError:
            peer.ended()
        except GroupError:
            peer.ended()
            peer.has, peer.epoch = {}, 0
        self.deliver()
        self.check()

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
        if event < 0.06 or not self.peers:
            self.come()
            return
        peer = self.chosen.choice(self.peers)
        if event < 0.1:
            self.change_topics()
        elif event < 0.13:
            self.pass_time(self.chosen.randint(1, 20_000))
        elif event < 0.35:
            self.aside(peer)
        elif event < 0.4 and peer.asks is None and peer.epoch > 0:
            peer.epoch = self.chosen.choice([-1, peer.epoch])
            peer.topics, peer.says_all = self.some_topics(), True
        else:
            for _ in range(self.chosen.choice([1, 2, 8, 60])):
                if peer in self.peers:
                    self.step(peer)

    def run(self) -> None:
        """All of it; then all have what they are to have, and the log says so, and nothing of one who is gone."""
        for _ in range(EVENTS):
            self.event()
        self.come()
        for _ in range(self.rounds):
            self.end_aside()
            for peer in list(self.peers):
                self.step(peer)
                while peer.asks is not None:
                    self.step(peer)
        members = {member.member_id for member in self.group.members}
        replay = replayed(self.log)
        [records] = (replay.consumer or replay.share).values()
        assert {name for _, name in records if name} == members == {peer.member_id for peer in self.peers}
        before = self.known()
        self.restart()
        assert self.known() == before

    def known(self) -> tuple[ConsumerGroupDescription, object]:
        """The group, without what is not in its records."""
        described = self.describe()
        members = sorted(member._replace(quiet_ms=0) for member in described.members)
        return described._replace(members=members), getattr(self.group, "shared", None)
