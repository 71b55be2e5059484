"""Fetches that wait: without a task, in a room that looks for them in time and in turn, or with one of their own."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.partitions import fetch_purgatory as waiting
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter


@asynccontextmanager
async def a_room() -> AsyncIterator[FetchPurgatory]:
    room = FetchPurgatory()
    async with trio.open_nursery() as nursery:
        await nursery.start(room.run)
        yield room
        nursery.cancel_scope.cancel()


def seated(
    room: FetchPurgatory, due: Callable[[Waiter], None], seconds: float = math.inf, *places: set[Waiter]
) -> Waiter:
    """One who looks after ``seconds``, if not before."""
    waiter = Waiter(due)
    waiter.deadline = trio.current_time() + seconds
    waiter.arrive(places)
    room.park(waiter)
    return waiter


async def test_each_parked_fetch_is_answered_at_its_own_deadline(autojump_clock: MockClock) -> None:
    looked: list[tuple[float, float]] = []
    async with a_room() as room:
        for seconds in (3.0, 1.0, 2.0, 2.0, 30.0):
            seated(room, lambda waiter: looked.append((waiter.deadline, trio.current_time())), seconds)
            await wait_all_tasks_blocked()
        await trio.sleep(60)
    assert [round(now - looked[0][1]) for _, now in looked] == [0, 1, 1, 2, 29]
    assert [now for _, now in looked] == pytest.approx([deadline for deadline, _ in looked])


@pytest.mark.parametrize("act", [Waiter.wake, Waiter.end])
async def test_a_woken_or_ended_fetch_is_answered_once_and_no_longer_parked(
    act: Callable[[Waiter], None], autojump_clock: MockClock
) -> None:
    looked: list[Waiter] = []
    places: tuple[set[Waiter], set[Waiter]] = (set(), set())
    async with a_room() as room:
        waiter = seated(room, looked.append, 100, *places)
        assert waiter.is_waiting
        assert places == ({waiter}, {waiter})
        act(waiter)
        act(waiter)  # twice is once
        await wait_all_tasks_blocked()
        assert looked == [waiter]
        assert not waiter.is_waiting
        assert places == (set(), set())
        await trio.sleep(200)
    assert looked == [waiter]


async def test_a_fetch_that_was_removed_is_not_answered() -> None:
    looked: list[Waiter] = []
    async with a_room() as room:
        waiter = seated(room, looked.append)
        waiter.wake()
        waiter.leave()
        await wait_all_tasks_blocked()
    assert looked == []


async def test_many_woken_fetches_are_answered_in_turns_so_that_other_tasks_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "ANSWERS_A_TURN", 2)
    log: list[str] = []

    async def others() -> None:
        log.append("others")

    async with a_room() as room, trio.open_nursery() as nursery:
        for waiter in [seated(room, lambda _: log.append("one")) for _ in range(4)]:
            waiter.wake()
        nursery.start_soon(others)
        await wait_all_tasks_blocked()
    assert log.index("others") <= 2
    assert len(log) == 5


async def test_deadlines_are_kept_while_others_are_served_without_end() -> None:
    over = trio.Event()
    async with a_room() as room:

        def look(_: Waiter) -> None:
            if room.is_open:
                seated(room, look).wake()

        seated(room, look).wake()
        seated(room, lambda _: over.set(), 0)
        await over.wait()


async def test_deadlines_of_answered_fetches_do_not_accumulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ENTRIES_MIN", 10)
    async with a_room() as room:
        stays = seated(room, lambda _: None, 100)
        for _ in range(100):
            seated(room, lambda _: None, 50).leave()
            assert len(room._entries) <= 13
        assert stays in [entry[2] for entry in room._entries]


async def test_fetches_parked_in_a_purgatory_that_closes_find_it_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ANSWERS_A_TURN", 1)
    looked: list[tuple[Waiter, bool]] = []
    room = FetchPurgatory()
    async with trio.open_nursery() as nursery:
        await nursery.start(room.run)
        first = seated(room, lambda _: nursery.cancel_scope.cancel())
        others = [seated(room, lambda waiter: looked.append((waiter, room.is_open))) for _ in range(2)]
        first.wake()
        others[0].wake()  # and does not come to it
    assert looked == [(waiter, False) for waiter in others]


async def test_a_parked_task_waits_until_it_is_woken_ended_or_cancelled() -> None:
    for act in (Waiter.wake, Waiter.end):
        waiter = Waiter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.wait)
            await wait_all_tasks_blocked()
            assert waiter.is_waiting
            act(waiter)
        assert not waiter.is_waiting
        act(waiter)
        await waiter.wait()  # was woken, or ended, before
    with trio.CancelScope() as scope:
        scope.cancel()
        waiter = Waiter()
        await waiter.wait()
    assert scope.cancelled_caught
    assert not waiter.is_waiting
