"""Expressions of members against topics that come and go, in a broker: what is read, and in how many turns."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from time import thread_time

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.client_patterns import ClientPattern
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.service.topic_matching import PATTERNS_MAX
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.messages import CreateTopicRequest, DeleteTopicRequest
from tests.unit.broker.coordinators.groups.service.running import running


def joins(regex: str, member_id: str = "a") -> ConsumerHeartbeat:
    return ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=30_000, topics=[], regex=regex, owned={})


async def make(broker: Broker, *names: str) -> None:
    for name in names:
        await broker.create_topic(CreateTopicRequest(name, 1))


def read_by(broker: Broker, group: str, member_id: str = "a") -> list[str]:
    members = broker.groups.describe_consumer(group).members
    [member] = [member for member in members if member.member_id == member_id]
    return sorted(item.topic for item in member.target)


async def refreshed(broker: Broker, group: str, epoch: int, member_id: str = "a") -> list[str]:
    """What a member reads with its heartbeat after the pause between two looks."""
    await trio.sleep(11)
    await broker.groups.consumer_heartbeat(group, ConsumerHeartbeat(member_id, epoch))
    return read_by(broker, group, member_id)


async def test_so_many_expressions_are_kept_as_they_were_read(broker: Broker) -> None:
    matching = broker.groups._matching
    for number in range(2 * PATTERNS_MAX):
        await matching.match_all(f"t{number}.*")
    assert matching._pattern.cache_info().currsize == PATTERNS_MAX


async def test_topics_that_are_made_and_deleted_are_found(broker: Broker) -> None:
    await make(broker, "fruit-1", "other")
    joined = await broker.groups.consumer_heartbeat("g", joins("fruit-.*|__consumer.*"))
    assert read_by(broker, "g") == ["fruit-1"]
    await make(broker, "fruit-2")
    assert await refreshed(broker, "g", joined.member_epoch) == ["__consumer_offsets", "fruit-1", "fruit-2"]
    await broker.delete_topic(DeleteTopicRequest("fruit-1"))
    assert await refreshed(broker, "g", joined.member_epoch + 1) == ["__consumer_offsets", "fruit-2"]


async def test_an_expression_that_is_refused_leaves_no_group(broker: Broker) -> None:
    with pytest.raises(errors.InvalidRegularExpressionError, match="RE2 says"):
        await broker.groups.consumer_heartbeat("g", joins("("))
    with pytest.raises(errors.UnknownGroupError):
        broker.groups.describe_consumer("g")


async def test_after_a_restart_topics_of_meanwhile_are_found(fs: ForgetfulFileSystem, broker: Broker) -> None:
    await make(broker, "fruit-1")
    joined = await broker.groups.consumer_heartbeat("g", joins("fruit-.*"))
    await make(broker, "fruit-2")
    async with running(fs.found_after(POWER_LOSS)) as again:
        assert await refreshed(again, "g", joined.member_epoch) == ["fruit-1", "fruit-2"]


async def test_many_expressions_meet_a_new_topic_in_turns_and_each_once(broker: Broker) -> None:
    """However many expressions there are: one of them, and one name, in a turn of the loop."""
    await make(broker, "fruit-1")
    for member in range(30):
        for group in ("g", "h"):
            await broker.groups.consumer_heartbeat(group, joins(f"fruit-.*|x{member}", f"m{member}"))
    await trio.sleep(3)
    work: list[tuple[int, str]] = []
    turns = 0

    class Noted(ClientPattern):
        def matching(
            self, names: Iterable[str], processor_seconds: Callable[[], float] = thread_time
        ) -> Iterator[str | None]:
            names = list(names)
            work.extend((turns, name) for name in names)
            return super().matching(names, processor_seconds)

    broker.groups._matching._pattern = lru_cache(PATTERNS_MAX)(Noted)
    async with trio.open_nursery() as nursery:

        async def count_turns() -> None:
            nonlocal turns
            while turns < math.inf:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count_turns)
        await make(broker, "fruit-2")
        for _ in range(2_000):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert [name for _, name in work] == ["fruit-2"] * 30, "once for both groups"
    assert len({turn for turn, _ in work}) == 30
