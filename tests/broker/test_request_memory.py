"""The budget of memory for large requests: never exceeded, first come first served, nothing lost by cancellation."""

from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from seglog_broker.request_memory import RequestMemory
from seglog_protocol.frames import Frame


async def take(memory: RequestMemory, size: int, order: list[int]) -> None:
    await memory.take(size)
    order.append(size)


async def test_what_fits_is_given_at_once_and_what_does_not_waits_its_turn() -> None:
    memory = RequestMemory(100)
    order: list[int] = []
    async with trio.open_nursery() as nursery:
        for size in (60, 50, 10):
            nursery.start_soon(take, memory, size, order)
            await wait_all_tasks_blocked()
        assert (order, memory.used, memory.waiting) == ([60], 60, 2), "10 would fit, but 50 came first"
        memory.give_back(60)
        await wait_all_tasks_blocked()
        assert ([60, *sorted(order[1:])], memory.used, memory.waiting, memory.waits) == ([60, 10, 50], 60, 0, 2)


async def test_who_gives_up_waiting_is_passed_over_and_lets_smaller_ones_by() -> None:
    memory = RequestMemory(100)
    order: list[int] = []
    async with trio.open_nursery() as nursery:
        await memory.take(60)
        with trio.CancelScope() as impatient:
            async with trio.open_nursery() as inner:
                inner.start_soon(take, memory, 90, order)
                await wait_all_tasks_blocked()
                nursery.start_soon(take, memory, 30, order)
                await wait_all_tasks_blocked()
                assert order == []
                impatient.cancel()
        await wait_all_tasks_blocked()
        assert (order, memory.used) == ([30], 90)


async def test_who_is_cancelled_in_the_moment_it_is_served_gives_it_back() -> None:
    memory = RequestMemory(100)
    await memory.take(100)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, memory, 80, [])
            await wait_all_tasks_blocked()
            scope.cancel()
            memory.give_back(100)  # before the other has noticed
    assert (memory.used, memory.waiting) == (0, 0)


async def test_spare_buffers_count_and_are_dropped_before_anybody_waits() -> None:
    memory = RequestMemory(1_000_000)
    memory.pool.give_back(Frame({}, memoryview(bytearray(400_000))))
    await memory.take(500_000)
    assert memory.pool.spare_bytes == 400_000
    await memory.take(400_000)
    assert (memory.pool.spare_bytes, memory.used) == (0, 900_000)


async def test_a_spare_buffer_that_is_larger_than_needed_counts_as_what_it_is() -> None:
    memory = RequestMemory(1_000)
    await memory.take(100)
    memory.correct(100, 700)
    assert memory.used == 700
    memory.give_back(700)
    assert memory.used == 0


@pytest.mark.trio
@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=30))
async def test_however_requests_come_go_and_are_cancelled_the_budget_holds_and_ends_unused(
    steps: list[tuple[int, bool]],
) -> None:
    memory = RequestMemory(100)
    served: list[int] = []
    asked: list[int] = []

    async def request(size: int, scope: trio.CancelScope, *, is_cancelled: bool) -> None:
        with scope:
            await memory.take(size)
            if not is_cancelled:
                served.append(size)
            try:
                assert memory.used <= 100
                await trio.lowlevel.checkpoint()
            finally:
                memory.give_back(size)

    async with trio.open_nursery() as nursery:
        for size, is_cancelled in steps:
            scope = trio.CancelScope()
            nursery.start_soon(partial(request, size, scope, is_cancelled=is_cancelled))
            if is_cancelled:
                scope.cancel()
            else:
                asked.append(size)
    assert (memory.used, memory.waiting) == (0, 0)
    assert sorted(served) == sorted(asked)
