"""The client's one nursery: no exception groups come out of it, and nothing that was raised is lost."""

import traceback

import pytest
import trio
from trio.testing import MockClock

import seglog
from seglog.trio.loop import TrioLoop
from seglog_protocol.errors import ClientClosedError
from tests.support import each_case
from tests.unit.clients.trio.memory_broker import memory_broker


async def bug() -> None:
    raise ZeroDivisionError("a bug")


async def interrupted() -> None:
    raise KeyboardInterrupt


@each_case(
    "error",
    [
        ValueError("mine"),
        *(kind() for kind in (KeyboardInterrupt, SystemExit, GeneratorExit)),
        ExceptionGroup("mine", [ValueError("a"), ExceptionGroup("inner", [ValueError("b")])]),
    ],
    ids=repr,
)
async def test_what_the_block_raises_comes_out_as_itself(autojump_clock: MockClock, error: BaseException) -> None:
    async with memory_broker() as broker:
        with pytest.raises(type(error)) as caught:
            async with broker.connect() as client, client.producer("t"), client.consumer("t"):
                raise error
        assert caught.value is error
        assert caught.value.__cause__ is caught.value.__context__ is None
        assert await broker.connections() == 0


async def test_a_cancellation_comes_out_as_a_cancellation(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        with trio.move_on_after(1) as scope:
            with pytest.raises(trio.Cancelled) as caught:
                async with broker.connect():
                    await trio.sleep_forever()
            assert type(caught.value) is trio.Cancelled
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught


async def test_a_bug_in_a_task_ends_the_block_and_comes_out_as_itself(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
            async with broker.connect() as client:
                client._loop.start(bug, "a bug")
                await trio.sleep_forever()
        assert not isinstance(caught.value.__cause__, BaseExceptionGroup)
        assert await broker.connections() == 0
        assert "a bug" in "".join(traceback.format_exception(caught.value))


async def test_an_interrupt_in_a_task_comes_before_what_the_block_says_about_it(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            async with broker.connect() as client:
                client._loop.start(interrupted, "an interrupt")
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("while cleaning up")


async def test_a_bug_while_the_block_is_left_by_an_exception_does_not_mask_that(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012
            async with broker.connect() as client:
                client._loop.start(bug, "a bug")
                raise ValueError("mine")
        assert any("ZeroDivisionError" in note for note in caught.value.__notes__)


async def test_two_failures_come_out_as_the_more_urgent_one_with_a_note_on_the_other(autojump_clock: MockClock) -> None:
    background = TrioLoop()
    await background.open()
    for task in (bug, interrupted, bug):
        background.start(task, "failing")
    failure: BaseException | None = None
    try:
        await trio.sleep_forever()
    except trio.Cancelled as cancelled:  # by the nursery, whose own it is
        failure = await background.end(cancelled)
    assert isinstance(failure, KeyboardInterrupt)
    assert len(failure.__notes__) == 2


async def test_tasks_are_deaf_to_a_cancellation_from_outside(autojump_clock: MockClock) -> None:
    background = TrioLoop()
    ended = trio.Event()
    ended_by: list[BaseException | None] = []
    was_ended: list[bool] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    with trio.CancelScope() as scope:
        await background.open()
        background.start(work, "work")
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            for _ in range(10):
                await trio.lowlevel.cancel_shielded_checkpoint()
            was_ended.append(ended.is_set())
            ended_by.append(await background.end(cancelled))
            raise
    assert ended.is_set()
    assert was_ended == [False]
    assert [type(error) for error in ended_by] == [trio.Cancelled]
    with pytest.raises(ClientClosedError):
        background.start(work, "too late")


async def test_a_client_is_used_inside_one_block_only(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        client = broker.connect()
        with pytest.raises(ClientClosedError, match="async with"):
            await client.topics()
        with pytest.raises(ClientClosedError, match="async with"):
            client.broker  # noqa: B018
        async with client:
            with pytest.raises(RuntimeError, match="one block"):
                await client.__aenter__()
            assert client.broker.broker == "fake/1"
        for call in (client.topics, client.ping, lambda: client.producer("t"), lambda: client.consumer("t")):
            with pytest.raises(ClientClosedError):
                await call()
        assert seglog.ClientClosedError is ClientClosedError
