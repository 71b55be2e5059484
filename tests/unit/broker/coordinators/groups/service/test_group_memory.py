"""What clients make the broker keep for groups: each kind fills its budget, what is there stays, and ends in time."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.membership import LeavingMember, SyncRequest
from seglog_broker.coordinators.groups.share import ShareHeartbeat
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.messages import CreateTopicRequest
from tests.unit.broker.coordinators.groups.service.running import (
    commit,
    committed,
    join_request,
    joined,
    running,
    with_topic,
)

LIMIT = 2 * 1024 * 1024
FLAGS = (f"seglog.groups.memory.bytes={LIMIT}", f"seglog.offsets.memory.bytes={LIMIT}")
BIG = 100_000


async def join_big(broker: Broker, number: int) -> None:
    """A member that waits for its first generation."""
    request = join_request(protocols=[("range", bytes(BIG))], needs_known_member_id=False, session_timeout_ms=1_800_000)
    result = await broker.groups.join(f"g{number}", request)
    if result.error is not None:
        raise result.error


async def ask_for_ids(broker: Broker, number: int) -> None:
    result = await broker.groups.join("g", join_request(client_id="c" * 30_000))
    assert result.error is not None
    if not isinstance(result.error, errors.MemberIdRequiredError):
        raise result.error


async def subscribe(broker: Broker, number: int) -> None:
    topics = [f"topic-{number}-{each}" for each in range(1_000)]
    await beat(broker, f"g{number % 3}", f"m{number}", topics=topics)


async def share(broker: Broker, number: int) -> None:
    topics = [f"topic-{number}-{each}" for each in range(1_000)]
    await broker.groups.shares.heartbeat(f"g{number % 3}", ShareHeartbeat(f"m{number}", 0, topics=topics))


async def subscribe_by_expression(broker: Broker, number: int) -> None:
    await beat(broker, f"g{number % 3}", f"m{number}", regex="a" * 5_000 + str(number))


async def match_many(broker: Broker, number: int) -> None:
    if not number:
        for each in range(30):
            await broker.create_topic(CreateTopicRequest(f"matched-{each}", 1))
    await beat(broker, "g", f"m{number}", regex=f"matched-.*|{number}")


async def assign_much(broker: Broker, number: int) -> None:
    request = join_request(needs_known_member_id=False, session_timeout_ms=1_800_000)
    first = await broker.groups.join(f"g{number}", request)
    assert first.error is None or isinstance(first.error, errors.CoordinatorNotAvailableError)
    if first.error is not None:
        raise first.error
    assignments = {first.member_id: bytes(BIG)}
    synced = await broker.groups.sync(f"g{number}", SyncRequest(first.member_id, 1, assignments=assignments))
    if synced.error is not None:
        raise synced.error


async def beat(broker: Broker, group: str, member: str, **said: Any) -> None:
    request = ConsumerHeartbeat(member, 0, rebalance_timeout_ms=300_000, owned={}, topics=[])
    await broker.groups.consumer_heartbeat(group, request._replace(**said))


KINDS = [join_big, ask_for_ids, subscribe, share, subscribe_by_expression, match_many, assign_much]


@pytest.mark.parametrize("ask", KINDS)
async def test_what_members_bring_is_refused_beyond_the_budget(ask: Callable[[Broker, int], Awaitable[None]]) -> None:
    """Each by itself would take many times as much."""
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        refused = 0

        async def one(number: int) -> None:
            nonlocal refused
            try:
                await ask(broker, number)
            except errors.CoordinatorNotAvailableError as error:
                refused += "seglog.groups.memory.bytes" in error.message

        async with trio.open_nursery() as nursery:
            for number in range(400):
                nursery.start_soon(one, number)
                if number % 10 == 0:
                    await trio.testing.wait_all_tasks_blocked()
                    await trio.sleep(4 if ask is assign_much else 0)  # the first generation is handed out after 3 s
            await trio.testing.wait_all_tasks_blocked()
            assert refused > 100
            assert LIMIT / 2 < broker.groups.memory.used <= LIMIT
            nursery.cancel_scope.cancel()


async def test_a_group_that_never_had_a_generation_ends_with_its_connections() -> None:
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(join_big, broker, number)
            await trio.testing.wait_all_tasks_blocked()
            assert broker.groups.memory.used > 10 * BIG
            nursery.cancel_scope.cancel()
        assert broker.groups.memory.used == 0
        assert await broker.groups.list_groups() == []


async def test_a_member_of_a_generation_outlives_the_connection_of_its_next_join() -> None:
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        member = await joined(broker, "g")
        other = await broker.groups.join("g", join_request())
        with trio.move_on_after(1):
            await broker.groups.join("g", join_request(other.member_id))
        assert {item.member_id for item in broker.groups.describe("g")[0].members} == {
            member.member_id,
            other.member_id,
        }


async def test_those_that_are_there_go_on_while_new_ones_are_refused() -> None:
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        there = await joined(broker, "there")
        async with trio.open_nursery() as nursery:
            for number in range(18):
                nursery.start_soon(join_big, broker, number)
            await trio.testing.wait_all_tasks_blocked()
            new = await broker.groups.join("new", join_request(protocols=[("range", bytes(BIG))]))
            assert isinstance(new.error, errors.CoordinatorNotAvailableError)
            more = join_request(there.member_id, protocols=[("range", bytes(BIG))])
            again = await broker.groups.join("there", more)
            assert again.error is None
            nursery.cancel_scope.cancel()


async def test_what_ends_takes_nothing_of_the_budget() -> None:
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        await with_topic(broker)
        member = await joined(broker, "classic")
        await beat(broker, "consumer", "a", topics=["t"], regex="t|u")
        await beat(broker, "consumer", "b", topics=["t"])
        await broker.groups.leave("classic", [LeavingMember(member.member_id)])
        for name in "ab":
            await broker.groups.consumer_heartbeat("consumer", ConsumerHeartbeat(name, -1))
        assert await broker.groups.delete(["classic", "consumer"]) == [None, None]
        assert broker.groups.memory.used == 0


async def test_after_a_restart_every_group_is_there_whatever_the_budget(fs: ForgetfulFileSystem) -> None:
    async with running(fs) as broker:
        await with_topic(broker)
        for number in range(40):
            await beat(broker, f"g{number}", "m", topics=[f"{number}-{each}" for each in range(1_000)])
            await commit(broker, f"c{number}", 5)
        before = broker.groups.memory.used
    async with running(fs, None, *FLAGS) as broker:
        assert broker.groups.memory.used == before > LIMIT
        assert len(await broker.groups.list_groups()) == 80
        assert committed(broker, "c39") == 5
        result = await broker.groups.consumer_heartbeat("g39", ConsumerHeartbeat("m", 1))
        assert result.member_epoch == 1
        with pytest.raises(errors.CoordinatorNotAvailableError):
            await beat(broker, "new", "m", topics=["t"])


async def test_committed_offsets_are_refused_beyond_their_budget() -> None:
    async with running(ForgetfulFileSystem(), None, *FLAGS) as broker:
        await with_topic(broker, partitions=1)
        found = []
        for number in range(400):
            offset = OffsetToCommit("t", 0, 1, metadata="m" * 4_096)
            found += await broker.groups.commit(f"g{number}", Committer(), [offset])
        refused = [error for error in found if error is not None]
        assert len(refused) > 50
        assert all(isinstance(error, errors.CoordinatorNotAvailableError) for error in refused)
        assert found[-1] is not None
        assert "seglog.offsets.memory.bytes" in found[-1].message
        await commit(broker, "g0", 2)
        assert committed(broker, "g0") == 2
        await broker.groups.delete([f"g{number}" for number in range(300)])
        await commit(broker, "g399", 2)
