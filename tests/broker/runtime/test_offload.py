"""Offload: each kind of call has its own limiter, no call is abandoned, and the inline double for tests."""

import threading

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.runtime import offload as module
from seglog_broker.runtime.offload import Offload
from seglog_broker.testing.offload import InlineOffload


@pytest.mark.trio
async def test_calls_run_in_threads_and_bring_back_results_and_errors() -> None:
    offload = Offload()
    loop = threading.get_ident()
    for run in (offload.commit, offload.fsync, offload.cold_read, offload.maintenance):
        assert await run(threading.get_ident) != loop
        assert await run(int, "7") == 7
        with pytest.raises(ValueError):
            await run(int, "seven")


@pytest.mark.trio
async def test_cold_reads_and_maintenance_do_not_hold_up_an_fsync() -> None:
    offload = Offload()
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(2 * module.COLD_READ_THREADS_MAX):
            nursery.start_soon(lambda: offload.cold_read(gate.wait))
            nursery.start_soon(lambda: offload.maintenance(gate.wait))
        await wait_all_tasks_blocked()
        assert await offload.fsync(int, "1") == 1
        gate.set()


@pytest.mark.trio
async def test_a_cancelled_fsync_is_waited_for_and_its_outcome_known() -> None:
    offload = Offload()
    began, gate = threading.Event(), threading.Event()
    outcomes = []

    def fsync() -> str:
        began.set()
        gate.wait()
        return "synced"

    async def sync(scope: trio.CancelScope) -> None:
        with scope:
            outcomes.append(await offload.fsync(fsync))

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(sync, scope)
        await trio.to_thread.run_sync(began.wait)
        scope.cancel()
        await wait_all_tasks_blocked()
        assert outcomes == []
        gate.set()
    assert outcomes == ["synced"]


@pytest.mark.trio
@pytest.mark.parametrize("offload", [Offload(), InlineOffload()], ids=["threads", "inline"])
async def test_a_call_cancelled_before_it_began_does_not_happen(offload: Offload) -> None:
    happened: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await offload.fsync(happened.append, 1)
    assert scope.cancelled_caught
    assert happened == []


@pytest.mark.trio
async def test_inline_runs_on_the_loop_and_no_virtual_time_passes(autojump_clock: MockClock) -> None:
    offload = InlineOffload()
    before = trio.current_time()
    for run in (offload.commit, offload.fsync, offload.cold_read, offload.maintenance):
        assert await run(threading.get_ident) == threading.get_ident()
    assert trio.current_time() == before
