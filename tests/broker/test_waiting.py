"""Fetches that wait: woken, too late, ended or answered; with the task that answers them and without."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker import waiting
from seglog_broker.waiting import Waiter, WaitingRoom


@asynccontextmanager
async def a_room(runs: bool = True) -> AsyncIterator[WaitingRoom]:
    room = WaitingRoom()
    async with trio.open_nursery() as nursery:
        if runs:
            await nursery.start(room.run)
        yield room
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("runs", [True, False], ids=["the task runs", "nobody serves"])
async def test_each_returns_at_its_own_deadline(runs: bool, autojump_clock: MockClock) -> None:
    ended: list[tuple[float, float]] = []
    began = trio.current_time()

    async def wait(seconds: float) -> None:
        await room.wait(Waiter(), began + seconds)
        ended.append((seconds, trio.current_time() - began))

    async with a_room(runs) as room, trio.open_nursery() as nursery:
        for seconds in (3, 1, 2, 2, 30):
            nursery.start_soon(wait, seconds)
            await wait_all_tasks_blocked()
    assert [seconds for seconds, _ in ended] == [1, 2, 2, 3, 30]
    assert [waited for _, waited in ended] == pytest.approx([1, 2, 2, 3, 30])


@pytest.mark.parametrize("runs", [True, False], ids=["the task runs", "nobody serves"])
async def test_one_who_is_woken_ended_or_cancelled_does_not_wait_for_its_deadline(
    runs: bool, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    async with a_room(runs) as room:
        for act in (Waiter.wake, Waiter.end, Waiter.serve):
            waiter = Waiter()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(room.wait, waiter, began + 100)
                await wait_all_tasks_blocked()
                assert waiter.is_waiting
                act(waiter)
            assert not waiter.is_waiting
        with trio.CancelScope() as scope:
            scope.cancel()
            await room.wait(Waiter(), began + 100)
        ended = Waiter()
        ended.end()
        await room.wait(ended, began + 100)
        early = Waiter()
        early.wake()
        await room.wait(early, began + 100)
    assert trio.current_time() == began


def answering(log: list[str], name: str, outcome: bool) -> Callable[[], bool]:
    def answer() -> bool:
        log.append(f"answers {name}")
        return outcome

    return answer


async def test_what_is_served_together_is_answered_before_any_of_the_tasks_goes_on() -> None:
    log: list[str] = []
    waiters = {
        name: Waiter(answering(log, name, outcome)) for name, outcome in (("a", True), ("b", False), ("c", True))
    }

    async def wait(name: str) -> None:
        await room.wait(waiters[name], trio.current_time() + 100)
        log.append(f"{name} goes on, answered: {waiters[name].is_answered}")

    async with a_room() as room, trio.open_nursery() as nursery:
        for name in waiters:
            nursery.start_soon(wait, name)
        await wait_all_tasks_blocked()
        for waiter in waiters.values():
            waiter.serve()
            waiter.serve()  # twice is once
    assert log[:3] == ["answers a", "answers b", "answers c"]
    assert sorted(log[3:]) == [f"{name} goes on, answered: {name != 'b'}" for name in "abc"]


async def test_one_who_left_meanwhile_is_not_answered() -> None:
    log: list[str] = []
    waiter = Waiter(answering(log, "a", outcome=True))
    async with a_room() as room, trio.open_nursery() as nursery:
        nursery.start_soon(room.wait, waiter, trio.current_time() + 100)
        await wait_all_tasks_blocked()
        waiter.serve()
        waiter.end()
    assert log == []
    assert not waiter.is_answered


async def test_many_are_served_in_turns_so_that_others_are_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ANSWERS_A_TURN", 2)
    log: list[str] = []
    waiters = [Waiter(answering(log, "one", outcome=True)) for _ in range(4)]

    async def others() -> None:
        log.append("others")

    async with a_room() as room, trio.open_nursery() as nursery:
        for waiter in waiters:
            nursery.start_soon(room.wait, waiter, trio.current_time() + 100)
        await wait_all_tasks_blocked()
        for waiter in waiters:
            waiter.serve()
        nursery.start_soon(others)
    assert log.index("others") <= 2
    assert len(log) == 5


async def test_deadlines_are_kept_while_others_are_served_without_end(autojump_clock: MockClock) -> None:
    busy = Waiter(lambda: True)
    async with a_room() as room, trio.open_nursery() as nursery:

        async def be_served() -> None:
            while True:
                await room.wait(busy, math.inf)
                await trio.lowlevel.checkpoint()

        async def serve() -> None:
            while True:
                busy.serve()
                await trio.lowlevel.checkpoint()

        nursery.start_soon(be_served)
        nursery.start_soon(serve)
        deadline = trio.current_time()  # is over already
        await room.wait(Waiter(), deadline)
        nursery.cancel_scope.cancel()


async def test_deadlines_that_nobody_waits_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "ENTRIES_MIN", 10)
    async with a_room() as room, trio.open_nursery() as nursery:
        stays = Waiter()
        nursery.start_soon(room.wait, stays, trio.current_time() + 100)
        await wait_all_tasks_blocked()
        for _ in range(100):
            waiter = Waiter()
            waiter.wake()
            await room.wait(waiter, trio.current_time() + 50)
            assert len(room._entries) <= 13
        assert stays in [entry[2] for entry in room._entries]
        stays.end()
