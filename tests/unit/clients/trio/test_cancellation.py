"""Cancelled after any number of turns of the loop, a call leaves its client right: the next one gets its own answer."""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

import seglog
import seglog.trio
from seglog.trio import raw
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import ConnectionLostError
from tests.unit.clients.cancelled_calls import SCENARIOS, TOPICS
from tests.unit.clients.trio.memory_broker import memory_broker

TURNS_MAX = 400


async def cancelled_after(turns: int, call: Callable[[], Awaitable[object]]) -> bool:
    """Run the call; whether it was cancelled ``turns`` turns of the loop later."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            nursery.start_soon(cancel)
            await call()
            nursery.cancel_scope.cancel()
    return scope.cancelled_caught


async def sweep(call: Callable[[], Awaitable[object]], check: Callable[[], Awaitable[None]]) -> None:
    """Cancel the call after 0, 1, 2, ... turns, and check each time, until it ends before it is cancelled."""
    finished = 0
    for turns in range(TURNS_MAX):
        finished += not await cancelled_after(turns, call)
        await check()
        if finished == 5:
            assert turns > 5
            return
    pytest.fail("it never came to its end")


@pytest.mark.parametrize(
    ("scenario", "slow"), [*((name, False) for name in SCENARIOS), ("a question", True), ("seeking", True)]
)
async def test_a_call(autojump_clock: MockClock, scenario: str, slow: bool) -> None:
    async with memory_broker(topics=TOPICS, slow=slow) as broker, broker.connect() as client:
        await SCENARIOS[scenario](broker, client, sweep)


async def test_a_question_does_not_break_those_of_other_tasks(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"one": 1, "two": 2}) as broker, broker.connect() as client:

        async def ask_on(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            task_status.started()
            while True:
                assert len(await client.offsets("two")) == 2

        async def check() -> None:
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                await nursery.start(ask_on)
            await sweep(lambda: client.describe_topic("one"), check)
            nursery.cancel_scope.cancel()


async def test_other_tasks_have_turns_between_records_of_a_program_that_computes(autojump_clock: MockClock) -> None:
    """Else the task that sends a member's heartbeats waits for 256 records, however long each of them takes."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with memory_broker() as broker, broker.connect() as client, trio.open_nursery() as nursery:
        broker.fill(12)
        nursery.start_soon(other)
        async with client.consumer("t", start=0) as consumer:
            before = None
            async for _ in consumer:
                assert before is None or turns >= before + 4, "its request, and what comes of the answer"
                before = turns
                autojump_clock.jump(1)
        broker.fill(1_000, first=12, per_batch=1_000)
        async with client.consumer("t", start=12) as consumer:
            async for record in consumer:
                before = turns if record.offset == 12 else before
        assert before is not None
        assert turns >= before + 2, "nor for a thousand that take no time: trio draws who runs first"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["cancelled", "an error", "an interrupt"])
async def test_a_whole_program_left_at_any_point_leaves_nothing_behind_and_raises_no_group(
    autojump_clock: MockClock, how: str
) -> None:
    errors = {"an error": ZeroDivisionError, "an interrupt": KeyboardInterrupt}

    async with memory_broker() as broker:
        broker.fill(3)

        async def program() -> None:
            async with broker.connect() as client:
                async with client.producer("t", linger_ms=0) as producer:  # while turns are counted no time passes
                    delivery = await producer.send(b"3")
                    await delivery
                async with client.consumer("t", until=3) as consumer:
                    async for _ in consumer:
                        await client.topics()

        async def left_by_an_error(turns: int, kind: type[BaseException]) -> None:
            """The program is cancelled, and turns its cancellation into an error inside its innermost block."""
            async with (
                broker.connect() as client,
                client.producer("t", linger_ms=1) as producer,
                client.consumer("t") as consumer,
            ):
                try:
                    await cancelled_after(turns, lambda: producer.send(b"x"))
                    async for _ in consumer:
                        await trio.lowlevel.checkpoint()
                finally:
                    raise kind

        async def check() -> None:
            assert await broker.connections() == 0

        if how == "cancelled":
            await sweep(program, check)
            return
        for turns in range(20):
            with pytest.raises(errors[how]) as caught:
                await left_by_an_error(turns, errors[how])
            assert type(caught.value) is errors[how]
            await check()


async def test_two_tasks_that_write_while_one_is_cut_short(autojump_clock: MockClock) -> None:
    """The other one's request was not begun: it is told that the connection broke, or asked again if it only asks."""
    batch = encode_batch([(0, None, b"x" * 300, ())])
    async with memory_broker(topics={"one": 1, "two": 2}, slow=True) as broker, broker.connect() as client:
        outcomes: set[str] = set()

        async def create(turns: int) -> None:
            try:
                await client.create_topic(f"new{turns}")
                outcomes.add("created")
            except ConnectionLostError:
                outcomes.add("lost")

        async def ask() -> None:
            assert len(await client.offsets("two")) == 2

        for turns in range(0, 120, 3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, turns)
                nursery.start_soon(ask)
                await cancelled_after(turns, lambda: raw.append(client, [raw.RawBatch("one", 0, batch)]))
            assert isinstance((await client.offsets("one"))[0], seglog.PartitionOffsets)
        assert outcomes == {"created", "lost"}
