"""Transactions of all faces of the client, with a real broker."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

import seglog
import seglog.asyncio
from seglog.testing import Broker
from seglog_protocol.errors import InvalidTopicError
from tests.unit.clients.faces import Connect


@pytest.fixture
async def client(connect: Connect, group_broker: Broker) -> AsyncIterator[Any]:
    async with connect(group_broker.address) as client:
        await client.create_topic("in", 2)
        await client.create_topic("out", 2)
        yield client


async def values(client: Any, topic: str, *, isolation: str = "read_committed") -> list[str]:
    async with client.consumer(topic, isolation=isolation) as consumer:
        return sorted([record.value.decode() async for record in consumer])


async def test_what_a_block_sends_to_several_topics_can_be_read_when_it_is_left(client: Any) -> None:
    async with client.transaction("app") as txn:
        for number in range(10):
            await txn.send("in", str(number), partition=number % 2)
            await txn.send("out", str(-number), key=str(number))
        delivery = await txn.send("in", "awaited")
        assert (await delivery).offset >= 0
        assert await values(client, "in") == []
        assert "awaited" in await values(client, "in", isolation="read_uncommitted")
    assert await values(client, "in") == sorted([*map(str, range(10)), "awaited"])
    assert await values(client, "out") == sorted(map(str, range(0, -10, -1)))


async def test_one_object_has_one_transaction_after_the_other(client: Any) -> None:
    txn = client.transaction("app")
    for number in range(20):
        async with txn:
            await txn.send("in", f"{number:02}", partition=number % 2)
            if number % 3 == 0:
                await txn.abort()
    assert await values(client, "in") == [f"{number:02}" for number in range(20) if number % 3]
    async with txn:
        pass  # nothing is asked of the broker
    with pytest.raises(seglog.ClientError, match="no transaction"):
        await txn.send("in", "x")


async def test_the_producer_that_began_last_fences_the_one_before(client: Any) -> None:
    first, second = client.transaction("app"), client.transaction("app")

    async def be_fenced() -> None:
        async with first:
            await (await first.send("in", "first"))
            async with second:
                await second.send("in", "second")

    with pytest.raises(seglog.TransactionFenced):
        await be_fenced()
    with pytest.raises(seglog.TransactionFenced, match="app"):
        async with first:
            pass
    async with second:
        await second.send("in", "again")
    assert await values(client, "in") == ["again", "second"]


@pytest.mark.parametrize("is_seen", [False, True])
async def test_a_record_that_is_refused_aborts_the_transaction(client: Any, is_seen: bool) -> None:
    """Also where the program has seen the refusal: the transaction would lack the record."""
    await client.create_topic("small", 1, {"max.message.bytes": 1_000})
    txn = client.transaction("app")

    async def send_too_much() -> None:
        async with txn:
            await txn.send("in", "kept")
            await txn.send("small", "fits")
            await client.alter_topic("small", {"max.message.bytes": 500})
            refused = await txn.send("small", "x" * 800)
            if is_seen:
                with pytest.raises(seglog.SeglogError):
                    await refused

    with pytest.raises(seglog.TransactionAborted, match=r"nothing of it counts: .* again in a new one") as raised:
        await send_too_much()
    assert isinstance(raised.value.__cause__, seglog.DeliveryFailed)
    assert await values(client, "in") == []
    async with txn:
        await txn.send("small", "after")
    assert await values(client, "small") == ["after"]


async def test_offsets_are_committed_with_the_records(client: Any) -> None:
    async with client.producer("in") as producer:
        for number in range(10):
            await producer.send(str(number), partition=number % 2)
    txn = client.transaction("app")
    async with client.consumer("in", group="etl", auto_commit=False, follow=False) as consumer:
        seen = 0

        async def fail() -> None:
            async with txn:
                async for record in consumer:
                    await txn.send("out", record.value)
                await txn.commit_offsets(consumer)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await consumer.committed() == {}
        consumer.rewind()
        async with txn:
            async for record in consumer:
                await txn.send("out", record.value)
                seen += 1
            await txn.commit_offsets(consumer)
            assert await consumer.committed() == {}
        assert {number: found.offset for number, found in (await consumer.committed()).items()} == {0: 5, 1: 5}
        async with txn:
            await txn.commit_offsets(consumer)  # there is nothing new, so no transaction begins
    assert seen == 10
    assert await values(client, "out") == sorted(map(str, range(10)))


@pytest.mark.parametrize("what", ["a consumer without a group", None])
async def test_offsets_are_those_of_a_consumer_in_a_group(client: Any, what: str | None) -> None:
    async with client.consumer("in") as consumer, client.transaction("app") as txn:
        with pytest.raises(TypeError, match="group=") as raised:
            await txn.commit_offsets(None if what is None else consumer)
    assert ("Consumer" if what else "NoneType") in str(raised.value)


async def test_a_client_that_is_closed_aborts_what_is_open(connect: Connect, group_broker: Broker, client: Any) -> None:
    async with connect(group_broker.address) as closing:
        txn = closing.transaction("left", linger_ms=0)
        await txn.__aenter__()
        await (await txn.send("in", "lost"))
        await txn.send("out", "lost, too")
    assert (await client.describe_transaction("left")).state in {"PrepareAbort", "CompleteAbort"}
    assert await values(client, "in") == []


async def test_a_client_is_closed_also_where_no_broker_can_abort_what_is_open(connect: Connect) -> None:
    with Broker() as gone:
        async with connect(gone.address) as closing:
            await closing.create_topic("in")
            txn = closing.transaction("left")
            await txn.__aenter__()
            await (await txn.send("in", "lost"))
            gone.crash()


async def test_a_topic_to_which_the_broker_alone_writes_is_refused_before_anything_is_sent(client: Any) -> None:
    async with client.transaction("app") as txn:
        await txn.send("in", "x")
        with pytest.raises(InvalidTopicError, match="it alone writes to it"):
            await txn.send("__transaction_state", "y")
    assert await values(client, "in") == ["x"]


async def test_an_object_for_each_block_leaves_no_connections_behind(client: Any) -> None:
    for number in range(20):
        async with client.transaction("app") as txn:
            await txn.send("in", str(number))
    gc.collect()
    async with client.transaction("app") as txn:
        await txn.send("in", "last")
    (connections,) = await client.samples(["seglog_connections"])
    assert sum(sample.value for sample in connections.samples) < 10
    assert len(await values(client, "in")) == 21


def test_a_thread_that_was_about_to_send_when_its_block_ended_is_part_of_none(group_broker: Broker) -> None:
    with seglog.connect(group_broker.address) as client:
        client.create_topic("late", 1)
        txn = client.transaction("late")
        with txn:
            ended = txn._core.open
            producer = txn._producer("late", ended)
        with txn:
            for late in (lambda: txn._producer("late", ended), lambda: producer.send("x", part_of=ended)):
                with pytest.raises(seglog.ClientError, match="ended meanwhile"):
                    late()
            txn.send("late", "of the next one")
        with client.consumer("late", isolation="read_committed") as consumer:
            assert [record.value for record in consumer] == [b"of the next one"]


def test_an_abort_that_is_cancelled_is_followed_by_no_commit(group_broker: Broker) -> None:
    """What it had dropped by then would be missing."""

    async def main() -> None:
        async with seglog.asyncio.connect(group_broker.address) as client:
            await client.create_topic("half", 1)
            await client.create_topic("rest", 1)
            txn = client.transaction("half", linger_ms=60_000)

            async def abort_half() -> None:
                async with txn:
                    await txn.send("half", "dropped")
                    await txn.send("rest", "dropped")
                    aborting = asyncio.ensure_future(txn.abort())
                    await asyncio.sleep(0)
                    aborting.cancel()
                    with suppress(asyncio.CancelledError):
                        await aborting

            with pytest.raises(seglog.ClientError, match=r"was to be aborted: call abort\(\) again"):
                await abort_half()
            async with txn:
                await txn.send("half", "of the next one")
            async with client.consumer("half", isolation="read_committed") as consumer:
                assert [record.value async for record in consumer] == [b"of the next one"]

    asyncio.run(main())


def test_tasks_whose_block_is_left_by_an_exception_do_nothing_in_the_next_one(group_broker: Broker) -> None:
    """``gather`` does not cancel what it has begun when one of its parts fails."""

    async def fail() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with seglog.asyncio.connect(group_broker.address) as client:
            await client.create_topic("read", 1)
            await client.create_topic("gathered", 1)
            async with client.producer("read") as producer:
                await producer.send("x")
            txn = client.transaction("gathered")
            async with client.consumer("read", group="gathered", auto_commit=False) as consumer:
                async for _ in consumer:
                    break
                for call in (
                    lambda: txn.send("gathered", "of an aborted block"),
                    lambda: txn.commit_offsets(consumer),
                    lambda: asyncio.gather(txn.commit_offsets(consumer), txn.send("gathered", "likewise")),
                ):
                    with suppress(ZeroDivisionError):
                        async with txn:
                            late = asyncio.ensure_future(call())
                            await asyncio.gather(late, fail())
                    async with txn:
                        await txn.send("gathered", "kept")
                    await asyncio.wait([late])
            async with client.consumer("gathered", isolation="read_committed") as reader:
                assert [record.value async for record in reader] == [b"kept"] * 3
            assert await client.group_offsets("gathered") == []

    asyncio.run(main())
