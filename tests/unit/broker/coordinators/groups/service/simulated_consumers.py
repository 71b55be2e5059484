"""Consumers of every kind, as tasks in virtual time: they join a group, live, and say what they have."""

from collections.abc import Iterable, Mapping
from struct import Struct as Layout

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    read_subscription,
)
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.membership import JoinRequest, JoinResult, LeavingMember, SyncRequest
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_protocol import errors
from seglog_protocol.kafka import messages, write_message
from seglog_protocol.steps import finished

GROUP = "g"
TOPIC = "t"
HEARTBEAT_S = 1
_VERSION = Layout(">h")


class Ownership:
    """Who has which partitions of the topic. No two may have the same."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.of: dict[str, frozenset[int]] = {}
        self.changes = 0

    def set(self, consumer: str, partitions: Iterable[int]) -> None:
        has = frozenset(partitions)
        for other, theirs in self.of.items():
            assert other == consumer or not has & theirs, f"{consumer} got {sorted(has & theirs)}, which {other} has"
        self.changes += self.of.get(consumer) != has
        self.of[consumer] = has

    @property
    def is_complete(self) -> bool:
        return sorted(number for has in self.of.values() for number in has) == list(range(self.partitions))


class Consumer:
    """A consumer that lives until it is ended, by leaving or without a word."""

    def __init__(self, name: str, broker: Broker, ownership: Ownership) -> None:
        self.name = name
        self.broker = broker
        self.ownership = ownership
        self.member_id = ""
        self.generations: list[int] = []
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            while True:
                try:
                    await self.live()
                except (errors.UnknownMemberError, errors.FencedMemberEpochError, errors.IllegalGenerationError):
                    self.reset()
                except errors.CoordinatorNotAvailableError:
                    await trio.sleep(HEARTBEAT_S)

    async def live(self) -> None:
        """Be a member, until an error says that it is not any more."""
        raise NotImplementedError

    def reset(self) -> None:
        """Begin anew, with nothing."""
        self.member_id = ""
        self.has(())

    def has(self, partitions: Iterable[int]) -> None:
        self.ownership.set(self.name, partitions)

    @property
    def owned(self) -> frozenset[int]:
        return self.ownership.of.get(self.name, frozenset())

    def note_generation(self, generation: int) -> None:
        assert not self.generations or generation >= self.generations[-1], (self.name, self.generations, generation)
        self.generations.append(generation)

    def die(self) -> None:
        """End without a word."""
        self._scope.cancel()
        self.has(())

    async def leave(self) -> None:
        """End, and say so."""
        self._scope.cancel()
        self.has(())
        await self.broker.groups.leave(GROUP, [LeavingMember(self.member_id)])


class ClassicConsumer(Consumer):
    """One of the classic protocol; ``is_cooperative`` if it keeps its partitions while it joins."""

    is_cooperative = False

    def metadata(self) -> bytes:
        said = messages.ConsumerProtocolSubscription(topics=[TOPIC], user_data=None)
        if self.is_cooperative and self.owned:
            said.owned_partitions = [
                messages.ConsumerProtocolSubscription.TopicPartition(topic=TOPIC, partitions=sorted(self.owned))
            ]
        return _VERSION.pack(1) + write_message(said, 1)

    async def live(self) -> None:
        while True:
            if not self.is_cooperative:
                self.has(())
            joined = await self.join()
            assigned = await self._sync(joined)
            if assigned is None:
                continue
            gives_up = self.owned - assigned
            self.has(assigned)
            if self.is_cooperative and gives_up:
                continue
            await self._stay(joined.generation)

    async def join(self) -> JoinResult:
        """Its generation."""
        protocol = "cooperative" if self.is_cooperative else "range"
        while True:
            request = JoinRequest(
                self.member_id, None, self.name, "/1.2.3.4", 10_000, 20_000, "consumer", [(protocol, self.metadata())]
            )
            result = await self.broker.groups.join(GROUP, request)
            if result.error is None:
                self.member_id = result.member_id
                self.note_generation(result.generation)
                return result
            if not isinstance(result.error, errors.MemberIdRequiredError | errors.RebalanceInProgressError):
                raise result.error
            self.member_id = result.member_id

    async def _sync(self, joined: JoinResult) -> frozenset[int] | None:
        """What it is to have now; None: it has to join again."""
        assignments = self._assign(joined) if joined.leader == self.member_id else {}
        result = await self.broker.groups.sync(
            GROUP, SyncRequest(self.member_id, joined.generation, assignments=assignments)
        )
        if isinstance(result.error, errors.RebalanceInProgressError):
            return None
        if result.error is not None:
            raise result.error
        assigned = assigned_partitions(result.assignment)
        assert assigned is not None
        return frozenset(assigned.get(TOPIC, ()))

    def _assign(self, joined: JoinResult) -> Mapping[str, bytes]:
        """As the leader: every partition to the next member in turn, but none that another one still has."""
        has: dict[str, frozenset[int]] = {}
        for member in joined.members:
            said = finished(read_subscription(member.metadata))
            assert said is not None
            has[member.member_id] = frozenset(said.owned.get(TOPIC, ()))
        members = sorted(has)
        wanted: dict[str, list[int]] = {member: [] for member in members}
        for number in range(self.ownership.partitions):
            chosen = members[number % len(members)]
            if all(number not in has[other] for other in members if other != chosen):
                wanted[chosen].append(number)
        return {member: encode_assignment([(TOPIC, numbers)]) for member, numbers in wanted.items()}

    async def _stay(self, generation: int) -> None:
        """Send heartbeats until there is a rebalance."""
        while True:
            await trio.sleep(HEARTBEAT_S)
            try:
                self.broker.groups.heartbeat(GROUP, self.member_id, generation)
            except errors.RebalanceInProgressError:
                return


class CooperativeConsumer(ClassicConsumer):
    """One that keeps its partitions while it joins, and joins again when it has given some up."""

    is_cooperative = True


class Kip848Consumer(Consumer):
    """One of the consumer protocol."""

    async def live(self) -> None:
        topic_id = id_bytes(self.broker.directory.registry.topics[TOPIC].id)
        self.member_id = self.member_id or f"{self.name}-{len(self.generations)}"
        epoch = 0
        while True:
            owned = {topic_id: self.owned} if self.owned else {}
            request = ConsumerHeartbeat(self.member_id, epoch, owned=owned)
            if epoch == 0:
                self.has(())
                request = request._replace(rebalance_timeout_ms=20_000, topics=[TOPIC], owned={})
            result = await self.broker.groups.consumer_heartbeat(GROUP, request)
            self.note_generation(result.member_epoch)
            epoch = result.member_epoch
            if result.assignment is not None:
                self.has(result.assignment.get(topic_id, ()))
            await trio.sleep(HEARTBEAT_S)

    async def leave(self) -> None:
        self._scope.cancel()
        self.has(())
        await self.broker.groups.consumer_heartbeat(GROUP, ConsumerHeartbeat(self.member_id, -1))
