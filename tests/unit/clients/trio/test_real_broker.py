"""The client on trio and the real broker, over real sockets."""

import pytest
import trio

import seglog
import seglog.trio
from seglog.testing import Broker
from seglog.trio import raw
from seglog_protocol.batch_builder import encode_batch


@pytest.mark.parametrize("linger_ms", [0, 5])
async def test_both_ends_live_through_restarts_on_the_same_port(linger_ms: float) -> None:
    async with Broker() as broker, seglog.trio.connect(broker.address) as client:
        await client.create_topic("commits", 2)
        seen: list[seglog.Record] = []
        sending, receiving = trio.open_memory_channel[int](1_000)

        async def consume(task_status: trio.TaskStatus[None]) -> None:
            async with client.consumer("commits", follow=True, start="earliest") as consumer:
                task_status.started()
                async for record in consumer:
                    seen.append(record)
                    if len(seen) in {50, 150, 250}:
                        sending.send_nowait(len(seen))
                    if record.value == b"last":
                        return

        async def restart() -> None:
            for _ in range(3):
                await receiving.receive()
                await broker.restart()

        async with trio.open_nursery() as nursery:
            await nursery.start(consume)
            nursery.start_soon(restart)
            async with client.producer("commits", linger_ms=linger_ms) as producer:
                for number in range(400):
                    delivery = await producer.send(b"%d" % number, partition=number % 2)
                    if number % 10 == 9:
                        await delivery
                await producer.flush()
                await producer.send(b"last", partition=0)
        for partition in range(2):
            mine = [record for record in seen if record.partition == partition]
            assert [record.offset for record in mine] == list(range(len(mine))), "nothing lost, nothing twice"
        written = [int(record.value) for record in seen if record.value and record.value != b"last"]
        assert set(written) >= {number for number in range(400) if number % 2 == 0}, "at least once"
        assert (await client.topics())[0].name == "commits"


async def test_cancelled_calls_leave_a_real_connection_in_step() -> None:
    batch = encode_batch([(0, None, bytes(1_000_000), ())])
    async with Broker() as broker, seglog.trio.connect(broker.address) as client:
        await client.create_topic("one", 1)
        await client.create_topic("two", 2)
        for turns in range(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.offsets, "one")
                nursery.start_soon(raw.append, client, [raw.RawBatch("one", 0, batch)] * 5)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            assert len(await client.offsets("two")) == 2
        async with raw.fetch(client, "one", 0, 0, 10**6) as batches:
            async for fetched in batches:
                assert bytes(fetched.data[16:]) == batch[16:]
