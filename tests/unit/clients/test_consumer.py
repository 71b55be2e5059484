"""Consumers and the client of either face: where they read, what they survive, and what they tell."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

import seglog
from seglog import raw
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientClosedError,
    ConnectionLostError,
    NotReachableError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from tests.unit.clients.faces import Face, append, fetched, flush, heard, together
from tests.unit.clients.fake_broker import CLOSE, SILENCE, Answer


async def values(consumer: Any, count: int | None = None) -> list[int]:
    return [int(record.value or b"-1") for record in await records(consumer, count)]


async def records(consumer: Any, count: int | None = None) -> list[seglog.Record]:
    """So many of a loop that is left then, or all."""
    found: list[seglog.Record] = []
    async for record in consumer:
        found.append(record)
        if len(found) == count:
            break
    return found


async def read(client: Any, **options: Any) -> list[seglog.Record]:
    async with client.consumer("t", **options) as consumer:
        return await records(consumer)


async def numbers(client: Any, **options: Any) -> list[int]:
    return [int(record.value or b"-1") for record in await read(client, **options)]


async def test_reading_ends_at_the_end_seen_at_start(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(10)
        async with client.consumer("t") as consumer:
            broker.fill(10, first=10)
            assert await values(consumer) == list(range(10))
            assert consumer.positions() == {0: 10}
            assert consumer.records_behind() == {0: 10}
            assert await values(consumer) == []


async def test_records_carry_all_they_have(face: Face) -> None:
    async with face() as (broker, client):
        broker.logs["t"][0].append(encode_batch([(5, None, None, [("h", b"1")])]))
        (record,) = await read(client)
        assert record == seglog.Record("t", 0, 0, 5, None, None, (("h", b"1"),))


async def test_where_to_start_and_where_to_stop(face: Face) -> None:
    moment = datetime.fromtimestamp(4, tz=UTC)
    async with face() as (broker, client):
        broker.fill(10)
        for start, expected in (
            (None, 0),
            (4, 4),
            ({0: 4}, 4),
            (moment, 4),
            ("@3001", 4),
            ("1970-01-01T00:00:04", 4),
            ("earliest", 0),
            ("latest", 10),
            (10, 10),
            ("@10000", 10),
        ):
            assert await numbers(client, start=start) == list(range(expected, 10)), start
        for until, expected in ((7, 7), ({0: 7}, 7), ("@6001", 7), ("earliest", 0), ("latest", 10), (50, 10)):
            assert await numbers(client, until=until) == list(range(expected)), until


async def test_every_partition_is_read_or_only_some(face: Face) -> None:
    async with face(topics={"t": 3}) as (broker, client):
        for partition in range(3):
            broker.fill(5, partition=partition)
        assert sorted((r.partition, r.offset) for r in await read(client)) == [
            (p, n) for p in range(3) for n in range(5)
        ]
        assert {r.partition for r in await read(client, partitions=[0, 2])} == {0, 2}
        assert [(r.partition, r.offset) for r in await read(client, start={1: 3}, partitions=[1])] == [(1, 3), (1, 4)]
        assert [(r.partition, r.offset) for r in await read(client, start={0: 5, 1: 3})] == [(1, 3), (1, 4)] + [
            (2, n) for n in range(5)
        ], "one that positions do not name was added since"


async def test_one_fetch_is_on_its_way_while_records_are_worked_on(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(30)
        consumer = await client.consumer("t", partition_bytes=1)
        assert await values(consumer, 2) == [0, 1]
        await heard(broker, messages.FetchRequest, 2)
        assert broker.asked(messages.FetchRequest) == 2
        assert await values(consumer) == list(range(2, 30))


async def test_seeking_while_a_fetch_waits_at_the_broker_does_not_wait_with_it(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(3)
        consumer = await client.consumer("t", follow=True, start="earliest")
        assert await values(consumer, 3) == [0, 1, 2]
        for number in range(40):
            await heard(broker, messages.FetchRequest, 2 * number + 2)
            await consumer.seek({0: 1})
            assert await values(consumer, 2) == [1, 2]
        await heard(broker, messages.CancelRequest, 40)
        assert broker.asked(messages.CancelRequest) == 40, "the broker does not wait for nobody"
        await consumer.seek("earliest")
        assert await values(consumer, 1) == [0]
        with pytest.raises(ValueError, match="does not read partition 7"):
            consumer.pause([7])


async def test_a_seek_in_the_middle_of_a_batch_takes_effect_with_the_next_record(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(9, per_batch=9)
        seen = []
        consumer = await client.consumer("t")
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 2:
                await consumer.seek({0: 7})
        assert seen == [0, 1, 2, 7, 8]


async def test_a_lost_connection_costs_and_repeats_nothing(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(30)
        fetches = 0

        def script(request: messages.Request, _payload: memoryview) -> Answer | None:
            nonlocal fetches
            if isinstance(request, messages.FetchRequest):
                fetches += 1
                if fetches % 3 == 0:
                    return CLOSE
                if fetches % 5 == 0:
                    return BrokerStoppingError("stopping")
            return None

        broker.script = script
        assert await numbers(client, partition_bytes=1) == list(range(30))


async def test_what_has_come_is_handed_out_before_a_lost_connection_matters(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(9)
        consumer = await client.consumer("t", follow=True, start=0, reconnect_timeout=0.1)
        assert await values(consumer, 1) == [0]
        broker.stop()
        assert await values(consumer, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
        with pytest.raises(NotReachableError):
            await values(consumer)
        broker.start()
        broker.fill(1, first=9)
        assert await values(consumer, 1) == [9], "and trying once more is fine"


async def test_out_of_range_is_an_error_with_the_valid_range_or_goes_where_told(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(9)
        log = broker.logs["t"][0]
        del log.batches[0]
        log.earliest = 3
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await numbers(client, start=0)
        assert (caught.value.earliest, caught.value.latest) == (3, 9)
        told: list[seglog.ConsumerGap] = []
        assert await numbers(client, start=0, on_out_of_range="earliest", on_gap=told.append) == [3, 4, 5, 6, 7, 8]
        assert told == [seglog.ConsumerGap("t", 0, 0, 3, "expired")]
        with pytest.raises(ValueError, match="on_out_of_range"):
            await client.consumer("t", on_out_of_range="never")


async def test_batches_come_verified_with_their_raw_bytes(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(9)
        consumer = await client.consumer("t", start=1, until=7)
        batches = [batch async for batch in consumer.batches()]
        assert [bytes(one.data) for one in batches] == broker.logs["t"][0].batches
        assert [(one.start_offset, one.end_offset) for one in batches] == [(1, 3), (3, 6), (6, 7)]
        assert consumer.positions() == {0: 7}
        assert list(consumer.gaps) == []


async def test_raw_batches_are_appended_and_fetched_as_they_are(face: Face) -> None:
    async with face() as (broker, client):
        made = [encode_batch([(n, None, b"%d" % n, ())] * 2) for n in range(3)]
        receipts = await append(client, [raw.RawBatch("t", 0, data) for data in made])
        assert receipts == [seglog.Receipt("t", 0, offset, -1, "disk") for offset in (0, 2, 4)]
        ranged = await fetched(client, "t", 0, 3, 5)
        assert [(one.start_offset, one.end_offset) for one in ranged] == [(3, 4), (4, 5)]
        assert raw.join(ranged) == b"".join(broker.logs["t"][0].batches[1:])
        unanswered = await append(client, [raw.RawBatch("t", 0, made[0])], ack="none")
        assert unanswered == [seglog.Receipt("t", 0, -1, -1, "none")]


async def test_partitions_are_flushed_and_the_ends_that_survive_are_told(face: Face) -> None:
    async with face(topics={"t": 3}) as (broker, client):
        for number, count in enumerate((4, 0, 6)):
            broker.fill(count, partition=number)
            broker.logs["t"][number].held_durable = 0
        assert await flush(client, "t", [0, 2]) == {0: 4, 2: 6}
        assert [place.durable for place in await client.offsets("t")] == [4, 0, 6]
        with pytest.raises(UnknownTopicError):
            await flush(client, "nope", [0])


# --- The client -------------------------------------------------------------------------------------------------------


async def test_many_calls_share_one_connection_and_each_gets_its_own_answer(face: Face) -> None:
    async with face(topics={f"t{n}": n + 1 for n in range(8)}) as (broker, client):

        async def ask(number: int) -> bool:
            return all([len(await client.offsets(f"t{number}")) == number + 1 for _ in range(50)])

        assert all(await together(client, *(partial(ask, number) for number in range(8))))
        assert broker.asked(messages.HelloRequest) == 1


async def test_all_that_find_the_connection_dead_share_one_new_one(face: Face) -> None:
    async with face(topics={f"t{n}": n + 1 for n in range(8)}) as (broker, client):

        async def ask(number: int) -> int:
            return len(await client.offsets(f"t{number}"))

        for _ in range(5):
            broker.stop()
            broker.start()
            before = broker.asked(messages.HelloRequest)
            assert await together(client, *(partial(ask, number) for number in range(8))) == list(range(1, 9))
            assert broker.asked(messages.HelloRequest) == before + 1


async def test_everybody_who_waits_learns_that_the_connection_broke(face: Face) -> None:
    async with face() as (broker, client):
        broker.script = lambda request, _: SILENCE if isinstance(request, messages.TopicsRequest) else None

        async def ask() -> ConnectionLostError:
            with pytest.raises(ConnectionLostError) as caught:
                await client.call(messages.TopicsRequest(), messages.TopicsReply)
            return caught.value

        async def drop() -> None:
            await heard(broker, messages.TopicsRequest, 3)
            broker.drop_connections()

        *errors, _ = await together(client, ask, ask, ask, drop)
        assert len(set(errors)) == 3, "each has an exception of its own"
        assert all(client.server in str(error) for error in errors)


async def test_listing_pages_and_describing_and_deleting(face: Face) -> None:
    async with face(topics={f"t{n:04}": 1 for n in range(2_500)}) as (broker, client):
        assert [topic.name for topic in await client.topics()] == [f"t{n:04}" for n in range(2_500)]
        assert broker.asked(messages.TopicsRequest) == 3
        assert (await client.describe_topic("t0007")).partitions == 1
        await client.delete_topic("t0007")
        for call in (client.delete_topic, client.describe_topic, client.offsets, client.consumer, client.producer):
            with pytest.raises(UnknownTopicError, match="did you mean"):
                await call("t0007")


async def test_what_only_asks_is_asked_once_more_and_nothing_else_is(face: Face) -> None:
    async with face() as (broker, client):
        refusals = iter([CLOSE, CLOSE])

        def script(request: messages.Request, _payload: memoryview) -> Answer | None:
            return None if isinstance(request, messages.HelloRequest) else next(refusals, None)

        broker.script = script
        with pytest.raises(ConnectionLostError):
            await client.create_topic("new")
        assert [topic.name for topic in await client.topics()] == ["t"]


async def test_lag_over_a_connection_that_breaks(face: Face) -> None:
    """Lag is asked for over the consumer's own connection and again when that broke."""
    async with face(topics={"t": 2}) as (broker, client):
        asked: list[messages.LagRequest] = []

        def script(request: messages.Request, _: memoryview) -> Answer | None:
            if not isinstance(request, messages.LagRequest):
                return None
            asked.append(request)
            if len(asked) == 1:
                return CLOSE
            near = messages.LagResult("t", 0, 0, 10, 8, timestamp=7_000, newest_timestamp=9_000, lost_from_ms=20_000)
            far = messages.LagResult("t", 1, earliest=5, latest=5, durable=5)
            return messages.LagReply([near, far], now_ms=10_000)

        broker.script = script
        broker.fill(9)
        for durable_only, records in ((False, 7), (True, 5)):
            async with client.consumer("t", durable_only=durable_only) as consumer:
                await values(consumer, 3)
                lag = await consumer.lag()
            assert asked[-1].partitions == [messages.LagPartition("t", 0, 3), messages.LagPartition("t", 1, 0)]
            assert (lag[0].position, lag[0].records, lag[0].seconds, lag[0].seconds_to_loss) == (3, records, 3.0, 10.0)
            assert (lag[1].records, lag[1].seconds, lag[1].seconds_to_loss, lag[1].lost) == (0, 0.0, None, 5)
        assert len(asked) == 3
        closed = await client.consumer("t")
        await closed.close()
        with pytest.raises(ClientClosedError):
            await closed.lag()


async def test_lag_of_many_partitions_is_asked_for_in_parts(face: Face) -> None:
    def script(request: messages.Request, _: memoryview) -> Answer | None:
        if not isinstance(request, messages.LagRequest):
            return None
        return messages.LagReply([messages.LagResult("t", p.partition, 0, 7, 7) for p in request.partitions], now_ms=0)

    async with face() as (broker, client):
        broker.script = script
        found = await client.lag("t", {str(number): number % 10 for number in range(2_500)})
        assert len(found) == 2_500
        assert found[2_499].is_beyond_end
        assert broker.asked(messages.LagRequest) == 3


async def test_partitions_that_are_gone_when_they_are_looked_up_cost_nothing_that_was_read(face: Face) -> None:
    async with face() as (broker, client):
        broker.fill(3)

        def script(request: messages.Request, _payload: memoryview) -> Answer | None:
            if isinstance(request, messages.OffsetsRequest) and request.partitions[0].partition == 1:
                return UnknownTopicError("there is no topic t", topic="t")
            if isinstance(request, messages.FetchRequest) and request.partitions[0].offset == 0:
                data = broker.logs["t"][0].read(0, 1_000_000)
                result = messages.FetchResult("t", 0, len(data), earliest=0, latest=3, durable=3)
                return messages.FetchReply([result], partition_counts={"t": 2}), data
            if isinstance(request, messages.FetchRequest):
                return messages.FetchReply(
                    [messages.FetchResult("t", 0, error=UnknownTopicError("there is no topic t", topic="t"))]
                )
            return None

        async with client.consumer("t", start="earliest", follow=True) as consumer:
            broker.script = script
            assert await values(consumer, 3) == [0, 1, 2]
            with pytest.raises(UnknownTopicError, match="topic t was deleted while it was read"):
                await values(consumer)
