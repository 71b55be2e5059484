"""The client on trio and the real broker, over real sockets."""

import time

import pytest
import trio

import seglog
import seglog.trio
from seglog.core.explaining import PartitionExplanation
from seglog.testing import Broker
from seglog.trio import raw
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import UnknownTopicError


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


async def test_a_fetch_that_waits_for_nobody_is_cancelled_at_the_broker() -> None:
    async with Broker() as broker, seglog.trio.connect(broker.address) as client:
        await client.create_topic("t", 1)
        async with client.producer("t") as producer, client.consumer("t", follow=True, start=0) as consumer:
            await (await producer.send(b"0"))
            records = aiter(consumer)
            for _ in range(150):  # the broker lets 100 fetches of a connection wait
                assert (await anext(records)).offset == 0
                with trio.move_on_after(0):
                    await anext(records)
                await consumer.seek({0: 0})


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


async def test_a_client_that_is_cancelled_lets_the_broker_stop() -> None:
    async with Broker() as broker:
        with trio.CancelScope() as scope:
            async with seglog.trio.connect(broker.address) as client:
                await client.create_topic("t")
                async with client.producer("t", linger_ms=3_600_000) as producer, client.consumer("t", follow=True):
                    await producer.send(b"never sent")
                    scope.cancel()
        assert scope.cancelled_caught
        async with seglog.trio.connect(broker.address) as client:
            assert (await client.offsets("t"))[0].latest == 0


async def test_what_was_written_at_os_survives_a_power_cut_when_it_was_flushed() -> None:
    async with Broker() as broker, seglog.trio.connect(broker.address) as client:
        await client.create_topic("t", 2)
        batch = encode_batch([(1, None, b"v", ())] * 3)
        await raw.append(client, [raw.RawBatch("t", number, batch) for number in (0, 1)], ack="os")
        assert await raw.flush(client, "t", [1]) == {1: 3}
        assert [(place.latest, place.durable) for place in await client.offsets("t")] == [(3, 0), (3, 3)]


async def test_segments_are_explained_alike_by_both_faces() -> None:
    async with Broker() as broker, seglog.trio.connect(broker.address) as client:
        await client.create_topic("t", 1, {"segment.bytes": 4096})
        async with client.producer("t", linger_ms=0) as producer:
            for _ in range(10):
                await (await producer.send(bytes(1500)))
        told = await client.explain.segments("t", 0)

        def ask_blocking() -> PartitionExplanation:
            with seglog.connect(broker.address) as blocking:
                return blocking.explain.segments("t", 0)

        again = await trio.to_thread.run_sync(ask_blocking)
        assert [s.base_offset for s in told.segments] == [s.base_offset for s in again.segments] == [0, 2, 4, 6, 8]
        assert [s.state for s in again.segments] == [*["closed"] * 4, "active"]
        assert (told.partition.latest, told.partition.segments) == (10, 5)


async def test_lag_is_told_in_records_and_seconds_and_by_when_retention_comes() -> None:
    async with Broker() as broker, seglog.trio.connect(broker.address) as client:
        await client.create_topic("t", 2, {"retention.ms": 3_600_000})
        now = time.time_ns() // 1_000_000
        async with client.producer("t") as producer:
            for age in (600_000, 60_000, 0):
                await producer.send(b"x", partition=0, timestamp=now - age)
                await producer.flush()
        async with client.consumer("t", start="earliest") as consumer:
            lag = (await consumer.lag())[0]
            assert (lag.position, lag.records, lag.lost, lag.is_beyond_end) == (0, 3, 0, False)
            assert lag.seconds is not None
            assert 600 <= lag.seconds < 700
            assert lag.newest_timestamp == now
            assert lag.seconds_to_loss is not None
            assert 3_500 < lag.seconds_to_loss <= 3_600 + 300, "the newest record of the segment counts"
            (segment,) = (await client.explain.segments("t", 0)).segments
            assert (lag.loss_from_ms, lag.loss_by_ms) == (segment.leaves_from_ms, segment.leaves_by_ms)
            async for _ in consumer:
                pass
            lags = await consumer.lag()
            assert [(lag.records, lag.seconds, lag.seconds_to_loss) for lag in lags.values()] == [(0, 0.0, None)] * 2
        assert (await client.lag("t", {"0": 1, "1": 5}))[1].is_beyond_end
        with pytest.raises(UnknownTopicError):
            await client.lag("nothing", {0: 0})
