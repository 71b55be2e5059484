"""Groups that change from the classic to the consumer protocol, and back, while their members live."""

import errno
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from random import Random
from struct import Struct as Layout
from typing import cast

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.classic_members import tombstone
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    read_subscription,
)
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.membership import JoinRequest, JoinResult, LeavingMember, SyncRequest
from seglog_broker.coordinators.groups.service.machines import GroupMachines
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.coordinators.state_machine import encode_record
from seglog_broker.coordinators.topic import Encoded
from seglog_broker.partitions.scheduler import Common
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC
from seglog_protocol.kafka import messages, write_message
from seglog_protocol.steps import finished
from tests.logs import ManualClock
from tests.support import some_seeds
from tests.unit.broker.coordinators.groups.consumer_coordinator import Topics
from tests.unit.broker.coordinators.groups.service.running import join_request, running, with_topic
from tests.unit.broker.coordinators.held_topic import FAILED, HeldTopic

# --- Consumers of every kind, as tasks: they join a group, live, and say what they have -------------------------------

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
        """Forget the member id and the partitions."""
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
        """The partitions of its assignment; None if it has to join again."""
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


# --- Groups that change -----------------------------------------------------------------------------------------------


JOINS = ConsumerHeartbeat("new", 0, rebalance_timeout_ms=20_000, topics=[TOPIC], owned={})


def kind(broker: Broker) -> str:
    return broker.groups.describe(GROUP)[0].kind


def state(broker: Broker) -> str:
    return broker.groups.describe(GROUP)[0].state


async def test_a_group_changes_over_with_its_first_new_consumer_and_back_with_the_last(
    fs: ForgetfulFileSystem,
) -> None:
    ownership, kinds = Ownership(6), []
    async with running(fs) as broker, trio.open_nursery() as nursery:
        await with_topic(broker, TOPIC, 6)
        old, new, older = (
            made(name, broker, ownership)
            for name, made in (("old", ClassicConsumer), ("new", Kip848Consumer), ("older", ClassicConsumer))
        )
        for consumer in (old, new, older):
            nursery.start_soon(consumer.run)
            await trio.sleep(30)
            kinds.append(kind(broker))
            assert (state(broker), ownership.is_complete) == ("Stable", True)
        await new.leave()
        await trio.sleep(30)
        assert [*kinds, kind(broker)] == ["classic", "consumer", "consumer", "classic"]
        assert (state(broker), ownership.is_complete) == ("Stable", True)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", some_seeds(12, quick=3))
async def test_no_partition_has_two_owners_whatever_joins_leaves_and_dies(seed: int) -> None:
    random = Random(seed)
    classic = random.choice([ClassicConsumer, CooperativeConsumer])
    fs = ForgetfulFileSystem()
    ownership = Ownership(7)
    async with running(fs) as broker, trio.open_nursery() as nursery:
        await with_topic(broker, TOPIC, 7)
        living: list[Consumer] = []
        for number in range(40):
            await trio.sleep(random.choice([0, 0.5, 3, 12]))
            if len(living) < 2 or (len(living) < 5 and random.random() < 0.5):
                consumer = random.choice([classic, Kip848Consumer])(f"c-{number}", broker, ownership)
                living.append(consumer)
                nursery.start_soon(consumer.run)
            else:
                consumer = living.pop(random.randrange(len(living)))
                if consumer.member_id and random.random() < 0.6:
                    await consumer.leave()
                else:
                    consumer.die()
        await trio.sleep(120)
        assert ownership.is_complete, ownership.of
        assert state(broker) == "Stable"
        nursery.cancel_scope.cancel()


async def test_classic_members_of_a_consumer_group_go_on_after_a_power_cut(fs: ForgetfulFileSystem) -> None:
    ownership = Ownership(4)
    async with running(fs, closes=False) as broker, trio.open_nursery() as nursery:
        await with_topic(broker, TOPIC, 4)
        consumers: list[Consumer] = [
            CooperativeConsumer("old", broker, ownership),
            Kip848Consumer("new", broker, ownership),
        ]
        for consumer in consumers:
            nursery.start_soon(consumer.run)
            await trio.sleep(30)
        assert (kind(broker), ownership.is_complete) == ("consumer", True)
        nursery.cancel_scope.cancel()
    fs = fs.crash(POWER_LOSS)
    async with running(fs) as broker:
        before = broker.groups.describe_consumer(GROUP)
        assert (before.state, sorted(member.is_classic for member in before.members)) == ("Stable", [False, True])
        for member in before.members:
            if member.is_classic:
                broker.groups.heartbeat(GROUP, member.member_id, member.epoch)
            else:
                again = await broker.groups.consumer_heartbeat(GROUP, ConsumerHeartbeat(member.member_id, member.epoch))
                assert (again.member_epoch, again.assignment) == (member.epoch, None)


async def test_a_group_changes_also_where_its_first_records_cannot_be_written(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    joined = await ClassicConsumer("old", broker, Ownership(3)).join()
    fs.inject(Fault("pwritev", f"{OFFSETS_TOPIC}-0/00000000000000000000.log", error=errno.ENOSPC, sticky=True))
    with pytest.raises(errors.CoordinatorNotAvailableError):
        await broker.groups.consumer_heartbeat(GROUP, JOINS)
    fs.heal()
    result = await broker.groups.consumer_heartbeat(GROUP, JOINS)
    assert result.member_epoch > joined.generation
    before = broker.groups.describe_consumer(GROUP)
    assert [member.is_classic for member in before.members] == [True, False]
    async with running(fs.found_after(POWER_LOSS)) as again:
        after = again.groups.describe_consumer(GROUP)
        assert after._replace(members=[]) == before._replace(members=[])
        assert {member.member_id for member in after.members} == {joined.member_id, "new"}


@pytest.mark.parametrize(
    ("policy", "upgrades"),
    [("disabled", False), ("upgrade", True), ("downgrade", False), ("bidirectional", True)],
)
async def test_the_policy_decides_what_a_group_with_members_may_become(policy: str, upgrades: bool) -> None:
    async with running(ForgetfulFileSystem(), None, f"group.consumer.migration.policy={policy}") as broker:
        await with_topic(broker)
        await ClassicConsumer("old", broker, Ownership(3)).join()
        if upgrades:
            assert (await broker.groups.consumer_heartbeat(GROUP, JOINS)).member_epoch == 2
        else:
            with pytest.raises(errors.UnknownGroupError, match=f"group.consumer.migration.policy is {policy}"):
                await broker.groups.consumer_heartbeat(GROUP, JOINS)
        assert kind(broker) == ("consumer" if upgrades else "classic")


async def test_a_group_of_unreadable_members_stays_classic(broker: Broker) -> None:
    """A group whose members say nothing that the broker can read stays a classic one."""
    first = await broker.groups.join("connect", join_request(protocol_type="connect"))
    await broker.groups.join("connect", join_request(first.member_id, protocol_type="connect"))
    with pytest.raises(errors.UnknownGroupError, match="of the type 'connect'"):
        await broker.groups.consumer_heartbeat("connect", JOINS)
    first = await broker.groups.join(GROUP, join_request(protocols=[("range", b"\xff")]))
    await broker.groups.join(GROUP, join_request(first.member_id, protocols=[("range", b"\xff")]))
    with pytest.raises(errors.UnknownGroupError, match="is not in Kafka's format"):
        await broker.groups.consumer_heartbeat(GROUP, JOINS)


# --- What groups were is deleted with what they are -------------------------------------------------------------------


def without_groups() -> tuple[GroupMachines, HeldTopic]:
    topic = HeldTopic()
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    common = cast("Common", (LiveConfig(config), None, ManualClock(0), *[None] * 7))
    machines = GroupMachines(*common, topic, Topics())
    return machines, topic


CLASSIC_KEY = finished(encode_record(tombstone("g")))[0]


def deletes(records: Sequence[Encoded]) -> bool:
    """Whether these delete what a classic group had, before they say anything else."""
    tombstones = list(takewhile(lambda record: record[1] is None, records))
    return (CLASSIC_KEY, None) in tombstones


async def test_what_a_group_was_is_deleted_with_what_it_is_until_that_is_durable() -> None:
    machines, topic = without_groups()
    runtime = machines.runtime
    runtime.machines["g"] = machines.classic("g")
    runtime.carry_out("g")
    known = runtime.machines["g"]
    assert isinstance(known, ClassicGroup)
    finished(machines.upgrade(known))
    assert deletes(topic.records[-1])
    topic.end(FAILED)
    group = runtime.machines["g"]
    assert isinstance(group, ConsumerGroup)
    joins = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=20_000, topics=["t"], owned={})
    finished(group.heartbeat(joins, runtime.now()))
    runtime.carry_out("g")
    assert deletes(topic.records[-1])
    topic.end(FAILED)
    finished(group.heartbeat(joins, runtime.now()))
    runtime.carry_out("g")
    assert deletes(topic.records[-1])
    topic.end()
    finished(group.heartbeat(ConsumerHeartbeat("m", -1), runtime.now()))
    runtime.carry_out("g")
    assert not deletes(topic.records[-1])
    topic.end()
    back = machines.downgrade(group)
    runtime.carry_out("g")
    written = dict(topic.records[-1])
    assert written[CLASSIC_KEY] is not None
    assert {value for key, value in written.items() if key != CLASSIC_KEY} == {None}
    topic.end(FAILED)
    runtime.remove("g")
    assert {key for key, value in topic.records[-1] if value is None} == set(written)
    assert back.generation == group.generation


def join_alone(machines: GroupMachines, host: str) -> None:
    """Have the member m join the group g, which is made where there is none, from ``host``."""
    runtime = machines.runtime
    group = runtime.machines.setdefault("g", machines.consumer("g"))
    assert isinstance(group, ConsumerGroup)
    joins = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=20_000, topics=["t"], owned={}, client_host=host)
    finished(group.heartbeat(joins, runtime.now()))
    runtime.carry_out("g")


async def test_what_a_group_has_written_is_not_deleted_with_its_predecessor() -> None:
    machines, topic = without_groups()
    join_alone(machines, "/1.1.1.1")
    topic.end()
    machines.runtime.remove("g")
    deleted = {key for key, value in topic.records[-1] if value is None}
    join_alone(machines, "/2.2.2.2")
    written = {key for key, value in topic.records[-1] if value is not None}
    assert written & deleted
    join_alone(machines, "/3.3.3.3")
    assert 0 < sum(value is not None for _, value in topic.records[-1]) < len(written)
    assert not written & {key for key, value in topic.records[-1] if value is None}
    topic.end(FAILED)
    while topic.writes:
        topic.end()
    assert not machines.runtime.owed
