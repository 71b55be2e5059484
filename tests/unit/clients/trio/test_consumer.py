"""The consumer on trio, on a clock that jumps: where it reads, how it waits, and what it survives."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import seglog
import seglog.trio
from seglog.trio import raw
from seglog_protocol.errors import (
    ClientClosedError,
)
from seglog_protocol.messages import (
    HelloRequest,
)
from tests.unit.clients.trio.memory_broker import memory_broker


async def values(consumer: seglog.trio.Consumer, count: int | None = None) -> list[int]:
    found = []
    async for record in consumer:
        found.append(int(record.value or b"-1"))
        if len(found) == count:
            break
    return found


async def test_a_cancelled_wait_loses_nothing(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        async with client.consumer("t", follow=True) as consumer:
            for number in range(5):
                with trio.move_on_after(1) as scope:
                    await values(consumer, 1)
                assert scope.cancelled_caught
                broker.fill(1, first=number)
                assert await values(consumer, 1) == [number]
        assert broker.asked(HelloRequest) == 2


async def test_another_task_may_seek_pause_and_close_while_one_waits(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(3)
        async with client.consumer("t", follow=True) as consumer:
            found: list[int] = []
            resumed = trio.Event()

            async def read() -> None:
                found.extend(await values(consumer, 2))
                found.extend(await values(consumer))
                found.append(-1)
                await resumed.wait()
                with pytest.raises(ClientClosedError):
                    await values(consumer)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await wait_all_tasks_blocked()
                with pytest.raises(trio.BusyResourceError):
                    await values(consumer)
                await consumer.seek({0: 1})
                await wait_all_tasks_blocked()
                assert found == [1, 2]
                consumer.pause()
                await wait_all_tasks_blocked()
                assert found == [1, 2, -1], "with all paused, iteration ended"
                consumer.resume()
                resumed.set()
                await wait_all_tasks_blocked()
                await consumer.close()
        assert trio.current_time() < 1


async def test_a_loop_over_records_that_are_there_lets_other_tasks_have_their_turn(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(1_000, per_batch=1_000)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with client.consumer("t") as consumer, trio.open_nursery() as nursery:
            assert await values(consumer, 1) == [0]
            nursery.start_soon(count)
            assert await values(consumer, 900) == list(range(1, 901))
            nursery.cancel_scope.cancel()
        assert turns >= 3


async def test_leaving_the_block_of_the_client_ends_its_consumers(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        async with broker.connect() as client:
            consumer = await client.consumer("t")
        with pytest.raises(ClientClosedError):
            await values(consumer)
        assert await broker.connections() == 0


async def test_a_range_that_was_fetched_leaves_no_connection(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        async with raw.fetch(client, "t", 0, 3, 5) as batches:
            assert [batch.start_offset async for batch in batches] == [3]
        assert await broker.connections() == 1
