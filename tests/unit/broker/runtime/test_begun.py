"""Coroutines that begin without a task, and go on where what they wait for is set."""

import pytest
import trio
import trio.testing

from seglog_broker.runtime.begun import Begun, Signal, by_task


async def ended_by(said: list[str], *signals: Signal) -> str:
    try:
        for number, signal in enumerate(signals):
            said.append(f"waits for {number}")
            await signal.wait()
    finally:
        said.append("ends")
    return "done"


def test_it_goes_on_within_the_call_that_sets_what_it_waits_for() -> None:
    said: list[str] = []
    first, second = Signal(), Signal()
    begun = Begun(ended_by(said, first, second), lambda: said.append("carried out"))
    begun.then = lambda: said.append(begun.result())
    assert said == ["waits for 0", "carried out"]
    first.set()
    assert said[2:] == ["waits for 1", "carried out"]
    second.set()
    assert said[4:] == ["ends", "carried out", "done"]
    assert Begun.running is None


def test_what_is_carried_out_may_be_what_it_waits_for() -> None:
    said: list[str] = []
    signal = Signal()
    begun = Begun(ended_by(said, signal), signal.set)
    assert (begun.is_done, begun.result()) == (True, "done"), "it has ended before it is given to anyone"


def test_it_does_not_wait_for_what_is_set_and_tells_its_error() -> None:
    async def fail() -> None:
        await signal.wait()
        raise ValueError("no")

    signal = Signal()
    signal.set()
    begun = Begun(fail(), lambda: None)
    with pytest.raises(ValueError, match="no"):
        begun.result()


def test_one_that_sets_what_another_waits_for_is_the_running_one_again_afterwards() -> None:
    async def set_and_wait() -> None:
        before = Begun.running
        signal.set()
        assert Begun.running is before
        await last.wait()

    said: list[str] = []
    signal, last = Signal(), Signal()
    inner = Begun(ended_by(said, signal), lambda: None)
    outer = Begun(set_and_wait(), lambda: None)
    assert (inner.is_done, outer.is_done) == (True, False)
    last.set()
    outer.result()


def test_one_that_is_closed_ends_where_it_waits_and_is_not_gone_on_with() -> None:
    said: list[str] = []
    signal = Signal()
    begun = Begun(ended_by(said, signal), lambda: None)
    begun.then = lambda: said.append("answered")
    begun.close()
    signal.set()
    assert said == ["waits for 0", "ends"]


async def test_tasks_wait_for_the_same_and_others_run_in_any_case() -> None:
    signal = Signal()
    woken: list[bool] = []

    async def wait() -> None:
        await signal.wait()
        woken.append(signal.is_set)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        signal.set()
    assert woken == [True, True]
    with trio.testing.assert_checkpoints():
        await signal.wait()


async def test_a_task_takes_over_before_what_has_begun_waits_for_more() -> None:
    async def work(signal: Signal) -> str:
        await signal.wait()
        await by_task()
        assert Begun.running is None
        await trio.lowlevel.checkpoint()
        await by_task()  # it is one already
        raise ValueError("of the task")

    said: list[str] = []
    signal = Signal()
    begun = Begun(work(signal), lambda: said.append("carried out"))
    begun.then = lambda: said.append("wanted")
    assert not begun.wants_task
    signal.set()
    assert (begun.wants_task, begun.is_done, said) == (True, False, ["carried out", "carried out", "wanted"])
    await begun.rest()
    with pytest.raises(ValueError, match="of the task"):
        begun.result()


def test_a_wait_for_more_without_a_task_is_an_error() -> None:
    async def work() -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    begun = Begun(work(), lambda: None)
    with pytest.raises(AssertionError):
        begun.result()
