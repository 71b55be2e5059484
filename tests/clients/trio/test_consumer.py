"""The consumer on trio, on a clock that jumps: where it reads, how it waits, and what it survives."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import seglog
import seglog.trio
from seglog.trio import raw
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientClosedError,
    NotReachableError,
)
from seglog_protocol.messages import (
    CancelRequest,
    FetchReply,
    FetchRequest,
    FetchResult,
    HelloRequest,
    Request,
)
from tests.clients.fake_broker import Answer
from tests.clients.trio.memory_broker import memory_broker


async def values(consumer: seglog.trio.Consumer, count: int | None = None) -> list[int]:
    found = []
    async for record in consumer:
        found.append(int(record.value or b"-1"))
        if len(found) == count:
            break
    return found


async def numbers(client: seglog.trio.Client, **options: Any) -> list[int]:
    async with client.consumer("t", **options) as consumer:
        return await values(consumer)


async def test_following_gives_new_records_as_they_come(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(3)
        async with client.consumer("t", follow=True) as consumer, trio.open_nursery() as nursery:

            async def write() -> None:
                for number in range(3, 8):
                    await trio.sleep(100)
                    broker.fill(1, first=number)

            nursery.start_soon(write)
            assert await values(consumer, 5) == [3, 4, 5, 6, 7]
        assert trio.current_time() >= 500


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


async def test_seeking_while_a_fetch_waits_at_the_broker_does_not_wait_with_it(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(3)
        async with client.consumer("t", follow=True, start="earliest") as consumer:
            assert await values(consumer, 3) == [0, 1, 2]
            for _ in range(200):
                await wait_all_tasks_blocked()
                await consumer.seek({0: 1})
                assert await values(consumer, 2) == [1, 2]
            assert trio.current_time() < 1
            assert broker.asked(CancelRequest) == 200, "the broker does not wait for nobody"
            await consumer.seek("earliest")
            assert await values(consumer, 1) == [0]
            with pytest.raises(ValueError, match="does not read partition 7"):
                await consumer.seek({7: 0})
            with pytest.raises(ValueError, match="does not read partition 7"):
                consumer.pause([7])


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


async def test_what_has_come_is_handed_out_before_a_lost_connection_matters(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        async with client.consumer("t", follow=True, start=0, reconnect_timeout=50) as consumer:
            assert await values(consumer, 1) == [0]
            await wait_all_tasks_blocked()
            broker.stop()
            assert await values(consumer, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
            began = trio.current_time()
            with pytest.raises(NotReachableError):
                await values(consumer)
            assert trio.current_time() == pytest.approx(began + 50, abs=1.1)
            broker.start()
            broker.fill(1, first=9)
            assert await values(consumer, 1) == [9], "and trying once more is fine"


async def test_a_partition_that_fails_for_a_while_is_asked_again_and_the_others_go_on(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker(topics={"t": 2}) as broker, broker.connect() as client:
        broker.fill(3)
        broker.fill(3, partition=1)

        def script(request: Request, _payload: memoryview) -> Answer | None:
            if not isinstance(request, FetchRequest) or trio.current_time() > 20:
                return None
            error = BrokerStoppingError("not now")
            wanted = [p for p in request.partitions if p.partition == 1]
            reply, payload = broker._read(FetchRequest(wanted))
            results = {r.partition: r for r in reply.partitions}
            return FetchReply(
                [results.get(p.partition or 0) or FetchResult("t", 0, error=error) for p in request.partitions]
            ), payload

        broker.script = script
        async with client.consumer("t") as consumer:
            seen = [(record.partition, record.offset) async for record in consumer]
        assert seen == [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1), (0, 2)]
        assert trio.current_time() >= 20
        assert broker.asked(FetchRequest) < 60, "with growing pauses"
        assert broker.asked(HelloRequest) == 2


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
