"""Fetches that wait: without a task, in a purgatory that retries them in time and in turns, or in their own task."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.partitions.fetch_purgatory import ANSWER_COST, ENTRIES_MIN, FetchPurgatory, Waiter
from seglog_broker.partitions.waiting_fetches import run_purgatory, wait_woken
from seglog_broker.runtime import budget

ANSWERS_A_TURN = budget.items_of(ANSWER_COST)


@asynccontextmanager
async def open_purgatory() -> AsyncIterator[FetchPurgatory]:
    purgatory = FetchPurgatory()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_purgatory, purgatory)
        yield purgatory
        nursery.cancel_scope.cancel()


def parked(
    purgatory: FetchPurgatory, retry: Callable[[Waiter], None], seconds: float = math.inf, *watch_lists: set[Waiter]
) -> Waiter:
    """A waiter that is retried after ``seconds``, if not before."""
    waiter = Waiter(retry)
    waiter.deadline = trio.current_time() + seconds
    waiter.watch(watch_lists)
    purgatory.park(waiter)
    return waiter


async def test_each_waiter_is_retried_at_its_own_deadline(autojump_clock: MockClock) -> None:
    retried: list[tuple[float, float]] = []
    async with open_purgatory() as purgatory:
        for seconds in (3.0, 1.0, 2.0, 2.0, 30.0):
            parked(purgatory, lambda waiter: retried.append((waiter.deadline, trio.current_time())), seconds)
            await wait_all_tasks_blocked()
        await trio.sleep(60)
    assert [round(now - retried[0][1]) for _, now in retried] == [0, 1, 1, 2, 29]
    assert [now for _, now in retried] == pytest.approx([deadline for deadline, _ in retried])


@pytest.mark.parametrize("act", [Waiter.wake, Waiter.end])
async def test_a_woken_or_ended_waiter_is_retried_once_and_watches_nothing(
    act: Callable[[Waiter], None], autojump_clock: MockClock
) -> None:
    retried: list[Waiter] = []
    watch_lists: tuple[set[Waiter], set[Waiter]] = (set(), set())
    async with open_purgatory() as purgatory:
        waiter = parked(purgatory, retried.append, 100, *watch_lists)
        assert waiter.is_waiting
        assert watch_lists == ({waiter}, {waiter})
        act(waiter)
        act(waiter)  # twice is once
        await wait_all_tasks_blocked()
        assert retried == [waiter]
        assert not waiter.is_waiting
        assert watch_lists == (set(), set())
        await trio.sleep(200)
    assert retried == [waiter]


async def test_a_waiter_that_unwatched_is_not_retried() -> None:
    retried: list[Waiter] = []
    async with open_purgatory() as purgatory:
        waiter = parked(purgatory, retried.append)
        waiter.wake()
        waiter.unwatch()
        await wait_all_tasks_blocked()
    assert retried == []


async def test_many_waiters_are_retried_in_turns_so_that_other_tasks_run() -> None:
    log: list[str] = []

    async def others() -> None:
        log.append("others")

    async with open_purgatory() as purgatory, trio.open_nursery() as nursery:
        for waiter in [parked(purgatory, lambda _: log.append("one")) for _ in range(2 * ANSWERS_A_TURN)]:
            waiter.wake()
        nursery.start_soon(others)
        await wait_all_tasks_blocked()
    assert log.index("others") <= ANSWERS_A_TURN
    assert len(log) == 2 * ANSWERS_A_TURN + 1


async def test_deadlines_are_kept_while_others_are_served_without_end() -> None:
    over = trio.Event()
    async with open_purgatory() as purgatory:

        def retry(_: Waiter) -> None:
            if purgatory.is_open:
                parked(purgatory, retry).wake()

        parked(purgatory, retry).wake()
        parked(purgatory, lambda _: over.set(), 0)
        await over.wait()


async def test_deadlines_of_answered_fetches_do_not_accumulate() -> None:
    async with open_purgatory() as purgatory:
        stays = parked(purgatory, lambda _: None, 100)
        for _ in range(5 * ENTRIES_MIN):
            parked(purgatory, lambda _: None, 50).unwatch()
            assert len(purgatory._entries) <= ENTRIES_MIN + 3
        assert stays in [entry[2] for entry in purgatory._entries]


async def test_waiters_in_a_purgatory_that_closes_are_retried_and_find_it_closed() -> None:
    retried: list[tuple[Waiter, bool]] = []
    purgatory = FetchPurgatory()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_purgatory, purgatory)
        first = parked(purgatory, lambda _: nursery.cancel_scope.cancel())
        beside = [parked(purgatory, lambda _: None) for _ in range(ANSWERS_A_TURN - 1)]
        others = [parked(purgatory, lambda waiter: retried.append((waiter, purgatory.is_open))) for _ in range(2)]
        for waiter in (first, *beside):
            waiter.wake()
        others[0].wake()  # and does not come to it
    assert retried == [(waiter, False) for waiter in others]


async def test_a_task_waits_until_it_is_woken_ended_or_cancelled() -> None:
    for act in (Waiter.wake, Waiter.end):
        waiter = Waiter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_woken, waiter)
            await wait_all_tasks_blocked()
            assert waiter.is_waiting
            act(waiter)
        assert not waiter.is_waiting
        act(waiter)
        await wait_woken(waiter)  # was woken, or ended, before
    with trio.CancelScope() as scope:
        scope.cancel()
        waiter = Waiter()
        await wait_woken(waiter)
    assert scope.cancelled_caught
    assert not waiter.is_waiting
