"""Share fetches that wait in lines: one is woken at a time, the one that has waited longest."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.api.share_collection import Seen, state_of
from seglog_broker.api.share_lines import ShareLines
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.waiting_fetches import run_purgatory
from tests.support import ON_SOURCES

pytestmark = ON_SOURCES

KEYS = [PartitionKey("g", bytes(16), number) for number in range(3)]


class Log:
    """Partitions that grow, and members that wait for them; ``woken`` has their names in order."""

    def __init__(self, purgatory: FetchPurgatory, tasks: trio.Nursery) -> None:
        self.lines = ShareLines(purgatory)
        self.woken: list[str] = []
        self.tasks = tasks
        self.partitions = [
            SimpleNamespace(
                log=SimpleNamespace(log_end_offset=0, last_stable_offset=0, segments=SimpleNamespace(awaited={})),
                waiters=set[Waiter](),
                is_deleted=False,
            )
            for _ in KEYS
        ]
        self.machines = [SimpleNamespace(partition=key, wakes=0) for key in KEYS]

    def seen(self, number: int) -> Seen:
        """A partition as it is now."""
        machine, partition = self.machines[number], self.partitions[number]
        some = cast("SharePartition", machine), cast("Partition", partition)
        return Seen(*some, state_of(*some))

    async def release(self, number: int) -> None:
        """As a machine whose records are available again."""
        self.machines[number].wakes += 1
        self.lines.note_available(KEYS[number])
        await wait_all_tasks_blocked()

    async def wait(
        self,
        name: str,
        *numbers: int,
        seconds: float = 1_000,
        note: Any = lambda _signal: None,
        within: trio.CancelScope | None = None,
    ) -> None:
        """Have a member wait for partitions; returns when it does."""
        seen = [self.seen(number) for number in numbers]

        async def wait() -> None:
            with within or trio.CancelScope():
                await self.lines.wait(seen, trio.current_time() + seconds, note)
                self.woken.append(name)

        self.tasks.start_soon(wait)
        await wait_all_tasks_blocked()

    async def append(self, number: int) -> None:
        """As ``Partition.note_append``."""
        partition = self.partitions[number]
        partition.log.log_end_offset += 1
        for waiter in partition.waiters:
            waiter.wake()
        await wait_all_tasks_blocked()

    async def pass_on(self, *numbers: int) -> None:
        self.lines.pass_on([self.seen(number) for number in numbers])
        await wait_all_tasks_blocked()

    def assert_empty(self) -> None:
        assert not self.lines.waiting
        assert not self.lines._lines
        assert [partition.waiters for partition in self.partitions] == [set()] * len(KEYS)


@asynccontextmanager
async def opened() -> AsyncIterator[Log]:
    purgatory = FetchPurgatory()
    async with trio.open_nursery() as tasks:
        await tasks.start(run_purgatory, purgatory)
        yield Log(purgatory, tasks)
        tasks.cancel_scope.cancel()


async def test_an_append_wakes_the_first_alone_which_lets_the_next_ones_try() -> None:
    async with opened() as log:
        for name in ("a", "b", "c"):
            await log.wait(name, 0)
        await log.append(1)
        assert log.woken == []
        await log.append(0)
        assert log.woken == ["a"]
        await log.pass_on(0)
        assert log.woken == ["a", "b"]
        await log.pass_on(0)
        assert log.woken == ["a", "b", "c"]
        log.assert_empty()


async def test_who_has_looked_at_the_partition_as_it_is_is_not_woken_by_those_before_it() -> None:
    async with opened() as log:
        await log.wait("a", 0)
        await log.append(0)
        await log.wait("b", 0)
        await log.pass_on(0)
        assert log.woken == ["a"]
        await log.release(0)
        assert log.woken == ["a", "b"]
        await log.release(1)
        log.assert_empty()


async def test_what_has_changed_since_it_was_seen_is_not_waited_for() -> None:
    async with opened() as log:
        for change in (log.append, log.release):
            seen = [log.seen(0), log.seen(1)]
            await change(1)
            await log.lines.wait(seen, trio.current_time() + 1_000, lambda _signal: None)
        log.assert_empty()


async def test_a_wait_for_several_partitions_ends_with_the_first_that_has_something() -> None:
    async with opened() as log:
        await log.wait("a", 0, 1)
        await log.wait("b", 1, 2)
        await log.append(1)
        assert log.woken == ["a"]
        await log.append(2)
        assert log.woken == ["a", "b"]
        log.assert_empty()


async def test_a_wait_ends_at_its_deadline_and_by_its_signal(autojump_clock: MockClock) -> None:
    async with opened() as log:
        signals: list[Any] = []
        await log.wait("never", note=signals.append)
        await log.wait("a", 0, seconds=5)
        await trio.sleep(6)
        assert log.woken == ["a"]
        assert log.lines.waiting == set(signals)
        signals[0].set()
        await wait_all_tasks_blocked()
        assert log.woken == ["a", "never"]
        log.assert_empty()


async def test_who_leaves_the_line_lets_the_next_one_try() -> None:
    async with opened() as log:
        leaves = trio.CancelScope()
        await log.wait("a", 0, within=leaves)
        await log.wait("b", 0)
        log.partitions[0].log.log_end_offset += 1
        leaves.cancel()
        await wait_all_tasks_blocked()
        assert log.woken == ["b"]
        log.assert_empty()


async def test_nothing_waits_where_the_broker_stops() -> None:
    purgatory = FetchPurgatory()
    await ShareLines(purgatory).wait([], trio.current_time() + 1_000, lambda _signal: None)
