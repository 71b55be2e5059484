"""Events of large groups: how long one step of the loop takes for them, in processor time.

The limit is 30 ms, or five decodings of the largest ordinary request of the same run, if that is longer: no verdict
depends on how fast the machine is.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.api.groups.loading import BYTES_OF_RECORD, RECORDS_A_TURN
from seglog_broker.api.groups.offsets_topic import ENCODED_A_TURN
from seglog_broker.api.groups.runner import TOPICS_A_TURN
from seglog_broker.groups import records
from seglog_broker.groups.assignments import encode_assignment
from seglog_broker.groups.consumer import ConsumerGroup
from seglog_broker.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.groups.membership import JoinResult, LeavingMember, SyncRequest
from seglog_broker.groups.records import ReadRecord, topics_in
from seglog_broker.groups.subscriptions import encode_subscription
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.errors import MessageTooLargeError
from seglog_protocol.messages import CreateTopicRequest
from tests.broker.api.groups.running import join_request, running, with_topic
from tests.broker.api.groups.turns import Turns, measured
from tests.faults.besieged import reference_seconds

LIMIT_SECONDS = 0.03
REFERENCES = 5
REFERENCES_OF_MANY_TOPICS = 10
"""Assigning 2,000 topics is one step of the loop, of some 30 ms."""


def judge(turns: Turns, references: int = REFERENCES) -> None:
    reference = max(reference_seconds() for _ in range(5))
    assert turns.longest < max(LIMIT_SECONDS, references * reference), (turns.task, reference)


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


async def sync_all(broker: Broker, group: str, joined: Iterable[JoinResult], assignment: bytes) -> None:
    async def one(member: JoinResult) -> None:
        assignments = {other.member_id: assignment for other in member.members}
        await broker.groups.sync(group, SyncRequest(member.member_id, member.generation, assignments=assignments))

    async with trio.open_nursery() as nursery:
        for member in joined:
            nursery.start_soon(one, member)


def joins(member: str, topics: list[str]) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member, 0, rebalance_timeout_ms=300_000, owned={}, topics=topics)


async def test_members_that_die_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        with measured() as turns:
            joined = await joined_together(broker, "g", 1_500, encode_subscription(["t"]))
            await sync_all(broker, "g", joined, b"some")
            await trio.sleep(60)
        assert not broker.groups.describe("g")[0].members
        judge(turns)


async def test_members_that_leave_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        joined = await joined_together(broker, "g", 1_500, encode_subscription(["t"]))
        with measured() as turns:
            await broker.groups.leave("g", [LeavingMember(member.member_id) for member in joined])
        judge(turns)


async def test_members_with_a_megabyte_each(autojump_clock: trio.testing.MockClock) -> None:
    """What they say is too large for one batch, which is known before it is encoded."""
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        with measured() as turns:
            joined = await joined_together(broker, "g", 120, encode_subscription(["t"]) + bytes(900_000))
            [leader] = [member for member in joined if member.members]
            with pytest.raises(MessageTooLargeError):
                await broker.groups.sync("g", SyncRequest(leader.member_id, 1, assignments={leader.member_id: b"some"}))
        judge(turns)


async def test_very_many_groups(autojump_clock: trio.testing.MockClock) -> None:
    async with running(ForgetfulFileSystem()) as broker:
        await with_topic(broker)
        with measured() as turns:
            async with trio.open_nursery() as nursery:
                for number in range(3_000):
                    nursery.start_soon(broker.groups.consumer_heartbeat, f"g{number}", joins("m", ["t"]))
            await broker.create_topic(CreateTopicRequest("new", 1))
            assert len(await broker.groups.list_groups()) == 3_000
            await trio.sleep(60)
        judge(turns)


async def make_topics(broker: Broker, count: int) -> list[str]:
    names = [f"topic-{number:04}" for number in range(count)]
    for name in names:
        await broker.create_topic(CreateTopicRequest(name, 1))
    return names


async def test_many_members_that_read_many_topics(autojump_clock: trio.testing.MockClock) -> None:
    async with running(ForgetfulFileSystem(), None, "message.max.bytes=100000000") as broker:
        names = await make_topics(broker, 2_000)
        with measured() as turns:
            for number in range(60):
                await broker.groups.consumer_heartbeat("g", joins(f"m{number}", names))
        judge(turns, REFERENCES_OF_MANY_TOPICS)


async def test_members_with_many_topics_whose_group_changes_its_protocol(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(ForgetfulFileSystem(), None, "message.max.bytes=100000000") as broker:
        names = await make_topics(broker, 2_000)
        joined = await joined_together(broker, "g", 1, encode_subscription(names))
        await sync_all(broker, "g", joined, encode_assignment((name, [0]) for name in names))
        with measured() as turns:
            await broker.groups.consumer_heartbeat("g", joins("m", names))
        assert broker.groups.describe("g")[0].kind == "consumer"
        judge(turns, REFERENCES_OF_MANY_TOPICS)


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


async def test_records_of_a_large_group_are_encoded_in_turns(autojump_clock: trio.testing.MockClock) -> None:
    async with running(ForgetfulFileSystem(), None, "message.max.bytes=100000000") as broker:
        names = await make_topics(broker, 1_000)
        joined = await joined_together(broker, "g", 30, encode_subscription(names))
        await sync_all(broker, "g", joined, encode_assignment([("topic-0000", [0])]))
        with counted(records, "write_message", lambda *call: len(call[-1])) as encoded:
            await broker.groups.consumer_heartbeat("g", joins("m", names))
        assert len(broker.groups.describe("g")[0].members) == 31
        encoded.assert_at_most(ENCODED_A_TURN)


async def test_a_large_group_is_loaded_in_turns(autojump_clock: trio.testing.MockClock) -> None:
    fs = ForgetfulFileSystem()
    async with running(fs, None, "message.max.bytes=100000000") as broker:
        names = await make_topics(broker, 1_000)
        for number in range(30):
            await broker.groups.consumer_heartbeat("g", joins(f"m{number}", names))
    with (
        counted(records, "read_message", lambda *call: len(call[2])) as decoded,
        counted(
            ConsumerGroup, "replay", lambda group, key, kind, value, _: topics_in(ReadRecord(kind, key, value))
        ) as replayed,
    ):
        async with running(fs, None, "message.max.bytes=100000000") as broker:
            assert len(broker.groups.describe("g")[0].members) == 30
    decoded.assert_at_most(RECORDS_A_TURN * BYTES_OF_RECORD)
    replayed.assert_at_most(TOPICS_A_TURN)
