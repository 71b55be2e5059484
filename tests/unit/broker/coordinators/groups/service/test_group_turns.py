"""Events of large groups: how long one step of the loop takes for them, in processor time."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators import state_machine
from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_protocol import encode_assignment, encode_subscription
from seglog_broker.coordinators.groups.consumer_records import topics_in
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult
from seglog_broker.coordinators.groups.membership import JoinResult, SyncRequest
from seglog_broker.coordinators.groups.share import ShareHeartbeat
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.loader import BYTES_OF_RECORD, RECORDS_A_TURN
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.errors import MessageTooLargeError, RebalanceInProgressError
from seglog_protocol.kafka import messages, write_message
from seglog_protocol.steps import ITEMS_A_STEP
from tests.logs import ManualClock
from tests.turns import judge_turn, judges_turns, measured
from tests.unit.broker.coordinators.groups.service.running import (
    NOW,
    States,
    join_request,
    open_broker,
    running,
    with_tasks,
    with_topic,
)


async def joined_together(broker: Broker, group: str, count: int, metadata: bytes) -> list[JoinResult]:
    """Members of one generation; the leader is among them."""
    found: list[JoinResult] = []

    async def one() -> None:
        request = join_request(protocols=[("range", metadata)], needs_known_member_id=False)
        found.append(await broker.groups.join(group, request))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return found


async def sync_all(
    broker: Broker, group: str, joined: Iterable[JoinResult], assigned: bytes | dict[str, bytes]
) -> None:
    """All sync; the leader brings one assignment for all, or one for each."""

    async def one(member: JoinResult) -> None:
        ids = [other.member_id for other in member.members]
        assignments = {one: assigned[one] if isinstance(assigned, dict) else assigned for one in ids}
        await broker.groups.sync(group, SyncRequest(member.member_id, member.generation, assignments=assignments))

    async with trio.open_nursery() as nursery:
        for member in joined:
            nursery.start_soon(one, member)


def joins(member: str, topics: list[str]) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member, 0, rebalance_timeout_ms=300_000, owned={}, topics=topics)


@judges_turns
async def test_members_that_die_at_once() -> None:
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        with measured() as turns:
            joined = await joined_together(broker, "g", 1_500, encode_subscription(["t"]))
            await sync_all(broker, "g", joined, b"some")
            await trio.sleep(60)
        assert not broker.groups.describe("g")[0].members
        judge_turn(turns.longest, turns.task)


@judges_turns
async def test_members_with_a_megabyte_each() -> None:
    """What they say is too large for one batch, which is known before it is encoded."""
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        with measured() as turns:
            joined = await joined_together(broker, "g", 120, encode_subscription(["t"]) + bytes(900_000))
            [leader] = [member for member in joined if member.members]
            with pytest.raises(MessageTooLargeError):
                await broker.groups.sync("g", SyncRequest(leader.member_id, 1, assignments={leader.member_id: b"some"}))
        judge_turn(turns.longest, turns.task)


def register_topics(broker: Broker, count: int) -> list[str]:
    """Topics that groups may read, without logs."""
    names = [f"topic-{number:05}" for number in range(count)]
    topics = broker.directory.registry.topics
    for name in names:
        topics[name] = Topic(name, id_text(secrets.token_bytes(16)), 1)
    return names


VERY_MANY = 20_000
"""Topics: as many as one request can name."""

FLAGS = ("message.max.bytes=100000000", "group.consumer.max.size=200")


async def settle(broker: Broker, members: dict[str, HeartbeatResult]) -> None:
    """Have members of the group ``g`` go on until nothing changes, giving up at once what they are to give up."""
    has: dict[str, Assignment] = {name: result.assignment or {} for name, result in members.items()}
    changed = True
    while changed:
        changed = False
        for name, before in members.items():
            beat = ConsumerHeartbeat(name, before.member_epoch, owned=has[name])
            members[name] = result = await broker.groups.consumer_heartbeat("g", beat)
            if result.assignment is not None:
                has[name] = result.assignment
            changed |= result.assignment is not None or result.member_epoch != before.member_epoch


@pytest.mark.parametrize("count", [VERY_MANY // 5, pytest.param(VERY_MANY, marks=pytest.mark.soak)])
@judges_turns
async def test_members_that_read_very_many_topics(count: int) -> None:
    """They join, give up what others are to get, meet a new topic, leave and die; and all is loaded after a start."""
    fs = ForgetfulFileSystem()
    async with running(fs, None, *FLAGS) as broker:
        await with_topic(broker)
        await broker.groups.consumer_heartbeat("other", joins("m", ["t"]))
        names = register_topics(broker, count - 1)
        members: dict[str, HeartbeatResult] = {}
        with measured() as turns:
            for number in range(3):
                member = f"m{number}"
                members[member] = await broker.groups.consumer_heartbeat("g", joins(member, [*names, "new"]))
                await settle(broker, members)
            broker.directory.registry.topics["new"] = Topic("new", id_text(secrets.token_bytes(16)), 1)
            broker.groups.note_topic("new", is_deleted=False)
            await settle(broker, members)
            assert sum(len(member.assigned) for member in broker.groups.describe_consumer("g").members) == count
        judge_turn(turns.longest, turns.task)
        with measured() as turns:
            await broker.groups.consumer_heartbeat("g", ConsumerHeartbeat("m0", -1))
            del members["m0"]
            await settle(broker, members)
        judge_turn(turns.longest, turns.task)
    broker = open_broker(fs, ManualClock(NOW), *FLAGS)
    with measured() as turns:
        async with with_tasks(broker):
            assert len(broker.groups.describe("g")[0].members) == 2
            await trio.sleep(60)
            assert not broker.groups.describe("g")[0].members
        judge_turn(turns.longest, turns.task)
    broker.close()


async def settle_shares(broker: Broker, members: dict[str, int]) -> None:
    """Have members of the share group ``g``, with their epochs, go on until nothing changes."""
    changed = True
    while changed:
        changed = False
        for name, epoch in members.items():
            await trio.testing.wait_all_tasks_blocked()
            result = await broker.groups.shares.heartbeat("g", ShareHeartbeat(name, epoch))
            members[name] = result.member_epoch
            changed |= result.member_epoch != epoch


@pytest.mark.parametrize("count", [VERY_MANY // 5, pytest.param(VERY_MANY, marks=pytest.mark.soak)])
@judges_turns
async def test_members_that_share_very_many_topics(count: int) -> None:
    """They join, read other topics than others, meet a new topic, leave and die; topics are deleted, and the group."""
    fs = ForgetfulFileSystem()
    flags = (*FLAGS, "group.share.assignment.interval.ms=0")
    broker = open_broker(fs, ManualClock(NOW), *flags)
    broker.groups.shares.states = states = States()
    async with with_tasks(broker):
        await with_topic(broker)
        await broker.groups.shares.heartbeat("other", ShareHeartbeat("m", 0, topics=["t"]))
        names = register_topics(broker, count - 1)
        members: dict[str, int] = {}
        with measured() as turns:
            for number in range(4):
                read = [*names[number // 2 :], "new"]
                result = await broker.groups.shares.heartbeat("g", ShareHeartbeat(f"m{number}", 0, topics=read))
                members[f"m{number}"] = result.member_epoch
                await settle_shares(broker, members)
            broker.directory.registry.topics["new"] = Topic("new", id_text(secrets.token_bytes(16)), 1)
            broker.groups.note_topic("new", is_deleted=False)
            await settle_shares(broker, members)
            assert sum(len(member.assigned) for member in broker.groups.describe_share("g").members) == 4 * count - 2
        judge_turn(turns.longest, turns.task)
        with measured() as turns:
            await broker.groups.shares.heartbeat("g", ShareHeartbeat("m0", -1))
            del members["m0"]
            await settle_shares(broker, members)
        judge_turn(turns.longest, turns.task)
    broker.close()
    topics = broker.directory.registry.topics
    broker = open_broker(fs, ManualClock(NOW), *flags)
    broker.groups.shares.states = states
    for name, topic in topics.items():
        broker.directory.registry.topics[name] = topic
    with measured() as turns:
        async with with_tasks(broker):
            assert len(broker.groups.describe("g")[0].members) == 3
            await trio.sleep(60)
            assert not broker.groups.describe("g")[0].members
            for name in names[: count // 2]:
                del broker.directory.registry.topics[name]
                broker.groups.note_topic(name, is_deleted=True)
            await trio.testing.wait_all_tasks_blocked()
            assert len(broker.groups.shares.find("g").shared.initialized) == count - count // 2
            assert await broker.groups.delete(["g"]) == [None]
        judge_turn(turns.longest, turns.task)
    broker.close()


@pytest.mark.soak
@pytest.mark.parametrize("members", [1, 8])
@judges_turns
async def test_members_that_read_very_many_topics_whose_group_changes_its_protocol(members: int) -> None:
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        await with_topic(broker)
        await broker.groups.consumer_heartbeat("other", joins("m", ["t"]))
        names = register_topics(broker, VERY_MANY)
        metadata = write_subscription(names, names if members == 1 else [])
        joined = await joined_together(broker, "g", members, metadata)
        shares = {
            member.member_id: encode_assignment((name, [0]) for name in names[number::members])
            for number, member in enumerate(joined)
        }
        await sync_all(broker, "g", joined, shares)
        with measured() as turns:
            await broker.groups.consumer_heartbeat("g", joins("m", names))
            assert broker.groups.describe("g")[0].kind == "consumer"
            one = joined[0].member_id
            with pytest.raises(RebalanceInProgressError):
                broker.groups.heartbeat("g", one, joined[0].generation)
            again = await broker.groups.join("g", join_request(one, protocols=[("range", metadata)]))
            await broker.groups.sync("g", SyncRequest(one, again.generation))
        judge_turn(turns.longest, turns.task)


def write_subscription(topics: list[str], owned: list[str]) -> bytes:
    """What a cooperative consumer says of itself."""
    subscription = messages.ConsumerProtocolSubscription(
        topics=topics,
        owned_partitions=[
            messages.ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=[0]) for topic in owned
        ],
    )
    return b"\0\1" + write_message(subscription, 1)


class PerStep(trio.abc.Instrument):
    """The most work of one kind that one step of a task does, and the largest piece of it, in units of its own."""

    def __init__(self) -> None:
        self.most = self.largest = self._of_step = 0

    def note(self, work: int) -> None:
        self._of_step += work
        self.most = max(self.most, self._of_step)
        self.largest = max(self.largest, work)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._of_step = 0

    def assert_at_most(self, units: int) -> None:
        assert self.largest < self.most <= units + self.largest


@contextmanager
def counted(owner: object, name: str, work: Callable[..., int]) -> Iterator[PerStep]:
    """Count ``work`` of each call of a function: its arguments, then its result."""
    steps, function = PerStep(), getattr(owner, name)

    def call(*args: Any) -> Any:
        result = function(*args)
        steps.note(work(*args, result))
        return result

    trio.lowlevel.add_instrument(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield steps
    trio.lowlevel.remove_instrument(steps)


async def test_a_large_group_is_loaded_in_turns() -> None:
    fs = ForgetfulFileSystem()
    async with running(fs, None, "message.max.bytes=100000000") as broker:
        await with_topic(broker)
        names = register_topics(broker, 700)
        for number in range(30):
            await broker.groups.consumer_heartbeat("g", joins(f"m{number}", names))
    with (
        counted(state_machine, "read_message", lambda *call: len(call[2])) as decoded,
        counted(ConsumerGroup, "replay", lambda _group, record, _steps: topics_in(record)) as replayed,
    ):
        async with running(fs, None, "message.max.bytes=100000000") as broker:
            assert len(broker.groups.describe("g")[0].members) == 30
    decoded.assert_at_most(RECORDS_A_TURN * BYTES_OF_RECORD)
    replayed.assert_at_most(ITEMS_A_STEP)
