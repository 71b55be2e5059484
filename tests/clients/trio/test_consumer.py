"""The consumer on trio, on a clock that jumps: where it reads, how it waits, and what it survives."""

from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import seglog
import seglog.trio
from seglog.trio import raw
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientClosedError,
    CorruptRecordError,
    NotReachableError,
    OffsetOutOfRangeError,
)
from seglog_protocol.messages import (
    CancelRequest,
    FetchReply,
    FetchRequest,
    FetchResult,
    HelloRequest,
    OffsetsRequest,
    Request,
)
from tests.clients.fake_broker import CLOSE, Answer, speak_fetch_in_version_1
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


async def test_where_to_start_and_where_to_stop(autojump_clock: MockClock) -> None:
    moment = datetime.fromtimestamp(4, tz=UTC)
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(10)
        for start, expected in ((None, 0), (4, 4), ({0: 4}, 4), (moment, 4), ("@3001", 4), ("latest", 10), (10, 10)):
            assert await numbers(client, start=start) == list(range(expected, 10)), start
        for until, expected in ((7, 7), ({0: 7}, 7), ("@6001", 7), ("earliest", 0), (50, 10)):
            assert await numbers(client, until=until) == list(range(expected)), until


async def test_records_are_those_that_were_written(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 3}) as broker, broker.connect() as client:
        for partition in range(3):
            broker.fill(5, partition=partition)
        async with client.consumer("t", partitions=[0, 2]) as consumer:
            records = [record async for record in consumer]
        assert sorted((r.partition, r.offset) for r in records) == [(p, n) for p in (0, 2) for n in range(5)]
        assert records[0] == seglog.Record("t", records[0].partition, 0, 0, b"k", b"0", ())


async def test_a_consumer_begins_also_where_its_first_connection_is_lost_before_it_knows_where(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(6)
        refusals = iter([CLOSE])
        broker.script = lambda request, _: next(refusals, None) if isinstance(request, OffsetsRequest) else None
        assert await numbers(client) == list(range(6))


async def test_one_fetch_is_on_its_way_while_records_are_worked_on(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(30)
        async with client.consumer("t", partition_bytes=1) as consumer:
            assert await values(consumer, 1) == [0]
            await wait_all_tasks_blocked()
            assert broker.asked(FetchRequest) == 2
            assert await values(consumer) == list(range(1, 30))


async def test_a_loop_that_was_left_goes_on_in_a_new_one(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(10)
        async with client.consumer("t") as consumer:
            assert await values(consumer, 4) == [0, 1, 2, 3]
            assert consumer.positions() == {0: 4}
            assert consumer.records_behind() == {0: 6}
            assert await values(consumer) == [4, 5, 6, 7, 8, 9]
            assert await values(consumer) == []


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


async def test_a_seek_in_the_middle_of_a_batch_takes_effect_with_the_next_record(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9, per_batch=9)
        seen = []
        async with client.consumer("t") as consumer:
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 2:
                    await consumer.seek({0: 7})
        assert seen == [0, 1, 2, 7, 8]


async def test_paused_partitions_wait_and_iteration_ends_when_all_are_paused(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 2}) as broker, broker.connect() as client:
        broker.fill(5)
        broker.fill(5, partition=1)
        async with client.consumer("t") as consumer:
            consumer.pause([0])
            assert [(r.partition, r.offset) async for r in consumer] == [(1, n) for n in range(5)]
            consumer.resume()
            assert [(r.partition, r.offset) async for r in consumer] == [(0, n) for n in range(5)]


async def test_a_lost_connection_costs_and_repeats_nothing(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(30)
        fetches = 0

        def script(request: Request, _payload: memoryview) -> Answer | None:
            nonlocal fetches
            if isinstance(request, FetchRequest):
                fetches += 1
                if fetches % 3 == 0:
                    return CLOSE
                if fetches % 5 == 0:
                    return BrokerStoppingError("stopping")
            return None

        broker.script = script
        assert await numbers(client, partition_bytes=1) == list(range(30))


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


async def test_fetches_name_the_topics_id_for_as_long_as_the_broker_takes_it(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.topic_ids = {"t": "i" * 22}
        broker.fill(3)
        async with client.consumer("t", follow=True, start=0) as consumer:
            assert await values(consumer, 3) == [0, 1, 2]
            assert all(r.topic_ids == broker.topic_ids for r in broker.requests if isinstance(r, FetchRequest))
            broker.stop()
            broker.requests.clear()
            broker.script = speak_fetch_in_version_1
            broker.fill(1, first=3)
            broker.start()
            assert await values(consumer, 1) == [3]
            assert all(r.version_needed() == 1 for r in broker.requests if isinstance(r, FetchRequest))


async def test_out_of_range_is_an_error_with_the_valid_range_or_goes_where_told(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        log = broker.logs["t"][0]
        del log.batches[0]
        log.earliest = 3
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await numbers(client, start=0)
        assert (caught.value.earliest, caught.value.latest) == (3, 9)
        told: list[seglog.ConsumerGap] = []
        async with client.consumer("t", start=0, on_out_of_range="earliest", on_gap=told.append) as consumer:
            assert await values(consumer) == [3, 4, 5, 6, 7, 8]
            assert told == list(consumer.gaps) == [seglog.ConsumerGap("t", 0, 0, 3, "expired")]
        with pytest.raises(ValueError, match="on_out_of_range"):
            client.consumer("t", on_out_of_range="never")  # type: ignore[call-overload]


async def test_a_damaged_batch_is_told_and_can_be_passed_over(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        damaged = bytearray(broker.logs["t"][0].batches[1])
        damaged[-2] ^= 1
        broker.logs["t"][0].batches[1] = bytes(damaged)
        async with client.consumer("t") as consumer:
            assert await values(consumer, 3) == [0, 1, 2]
            with pytest.raises(CorruptRecordError) as caught:
                await values(consumer)
            await consumer.seek({0: caught.value.next_offset})
            assert await values(consumer) == [6, 7, 8]


async def test_only_durable_records_when_asked_for(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        broker.logs["t"][0].held_durable = 6
        assert await numbers(client, durable_only=True) == list(range(6))
        async with client.consumer("t", durable_only=True, follow=True, start=0) as consumer:
            assert await values(consumer, 6) == list(range(6))
            with trio.move_on_after(60):
                await values(consumer, 1)
            broker.logs["t"][0].held_durable = None
            assert await values(consumer, 3) == [6, 7, 8]


async def test_batches_come_verified_with_their_raw_bytes(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        async with client.consumer("t", start=1, until=7) as consumer:
            batches = [batch async for batch in consumer.batches()]
            assert [bytes(one.data) for one in batches] == broker.logs["t"][0].batches
            assert [(one.start_offset, one.end_offset) for one in batches] == [(1, 3), (3, 6), (6, 7)]
            assert consumer.positions() == {0: 7}


async def test_raw_batches_are_appended_and_fetched_as_they_are(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        made = [encode_batch([(n, None, b"%d" % n, ())] * 2) for n in range(3)]
        receipts = await raw.append(client, [raw.RawBatch("t", 0, data) for data in made])
        assert receipts == [seglog.Receipt("t", 0, offset, -1, "disk") for offset in (0, 2, 4)]
        async with raw.fetch(client, "t", 0, 3, 5) as batches:
            fetched = [batch async for batch in batches]
        assert [(one.start_offset, one.end_offset) for one in fetched] == [(3, 4), (4, 5)]
        assert raw.join(fetched) == b"".join(broker.logs["t"][0].batches[1:])
        unanswered = await raw.append(client, [raw.RawBatch("t", 0, made[0])], ack="none")
        assert unanswered == [seglog.Receipt("t", 0, -1, -1, "none")]
        assert await broker.connections() == 1


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
