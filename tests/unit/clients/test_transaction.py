"""Transactions of all faces of the client, with a real broker."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from threading import Event, Thread
from typing import Any

import pytest

import seglog
import seglog.asyncio
from seglog.testing import Broker
from seglog_protocol.errors import InvalidTopicError
from tests.unit.clients.faces import Connect

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
async def client(connect: Connect, broker: Broker) -> AsyncIterator[Any]:
    async with connect(broker.address) as client:
        for topic in await client.topics():
            if not topic.name.startswith("__"):
                await client.delete_topic(topic.name)
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


async def test_a_block_that_is_left_by_an_exception_counts_for_nothing(client: Any) -> None:
    txn = client.transaction("app")

    async def fail() -> None:
        async with txn:
            await (await txn.send("in", "lost"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with txn:
        await txn.send("in", "kept")
    assert await values(client, "in") == ["kept"]


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


async def test_partitions_that_go_within_the_block_have_it_aborted(client: Any, broker: Broker) -> None:
    async with client.producer("in") as producer:
        for number in range(20):
            await producer.send(str(number), partition=number % 2)
    txn = client.transaction("app")
    assigned: list[list[int]] = []
    joined: list[seglog.GroupConsumer] = []

    def join() -> None:
        with seglog.connect(broker.address) as other:
            joined.append(other.consumer("in", group="etl", auto_commit=False))
            with suppress(seglog.ClientClosedError):
                for _ in joined[0]:
                    pass

    second = Thread(target=join)
    options = {"group": "etl", "auto_commit": False, "session_timeout": 3, "on_assigned": assigned.append}
    async with client.consumer("in", **options) as consumer:

        async def copy() -> None:
            async with txn:
                async for record in consumer:
                    await txn.send("out", record.value)
                    if len(assigned) == 2:
                        break
                    if not second.is_alive():
                        second.start()
                await txn.commit_offsets(consumer)

        try:
            with pytest.raises(seglog.GroupError, match="rewind"):
                await copy()
        finally:
            if joined:
                joined[0].close()
            second.join(WAIT_SECONDS)
        assert await values(client, "out") == []


@pytest.mark.parametrize("what", ["a consumer without a group", None])
async def test_offsets_are_those_of_a_consumer_in_a_group(client: Any, what: str | None) -> None:
    async with client.consumer("in") as consumer, client.transaction("app") as txn:
        with pytest.raises(TypeError, match="group=") as raised:
            await txn.commit_offsets(None if what is None else consumer)
    assert ("Consumer" if what else "NoneType") in str(raised.value)


async def test_a_consumer_that_commits_by_itself_is_refused(client: Any) -> None:
    async with client.producer("in") as producer:
        await producer.send("x")
    txn = client.transaction("app")
    async with client.consumer("in", group="auto", follow=False) as consumer:
        async for _ in consumer:
            pass
        with pytest.raises(ValueError, match="auto_commit=False"):
            async with txn:
                await txn.commit_offsets(consumer)


@pytest.mark.parametrize("how", ["the block ends", "the block is left by an error", "close"])
async def test_a_client_that_is_closed_aborts_what_is_open(
    connect: Connect, broker: Broker, client: Any, how: str
) -> None:
    async def leave_open() -> None:
        async with connect(broker.address) as closing:
            txn = closing.transaction("left", linger_ms=0)
            await txn.__aenter__()
            await (await txn.send("in", "lost"))
            await txn.send("out", "lost, too")
            if how == "close":
                await closing.close()
            elif how == "the block is left by an error":
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if how == "the block is left by an error" else nullcontext():
        await leave_open()
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


async def test_a_batch_whose_partition_does_not_become_part_fails_with_the_reason(client: Any) -> None:
    await client.create_topic("goes", 1)

    async def lose_the_topic() -> None:
        async with client.transaction("app", linger_ms=60_000) as txn:
            await txn.send("goes", "x")
            await client.delete_topic("goes")

    with pytest.raises(seglog.TransactionAborted, match="goes"):
        await lose_the_topic()


@pytest.mark.parametrize("bad", [None, 7, b"in"])
async def test_a_topic_is_named_by_text(client: Any, bad: Any) -> None:
    async with client.transaction("app") as txn:
        with pytest.raises(TypeError, match="a topic's name is text, not "):
            await txn.send(bad, "x")
    with pytest.raises(TypeError, match="a topic's name is text, not "):
        async with client.producer(bad):
            pass


async def test_a_topic_to_which_the_broker_alone_writes_is_refused_before_anything_is_sent(client: Any) -> None:
    async with client.transaction("app") as txn:
        await txn.send("in", "x")
        with pytest.raises(InvalidTopicError, match="it alone writes to it"):
            await txn.send("__transaction_state", "y")
    assert await values(client, "in") == ["x"]


def test_many_threads_send_to_partitions_that_are_part_of_none_yet(broker: Broker) -> None:
    with seglog.connect(broker.address) as client:
        client.create_topic("shared", 16)
        with client.transaction("threads", linger_ms=0) as txn, ThreadPoolExecutor(6) as pool:
            for sent in [pool.submit(txn.send, "shared", "x", partition=n // 6) for n in range(96)]:
                sent.result()
        with client.consumer("shared", isolation="read_committed") as consumer:
            assert sum(1 for _ in consumer) == 96


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


def test_what_a_thread_sends_while_another_one_commits_is_part_of_no_transaction(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seglog.connect(broker.address) as client:
        client.create_topic("ends", 1)
        txn = client.transaction("ends", linger_ms=20)
        with txn:
            txn.send("ends", "kept")
            producer = txn.producers["ends"]
            flush = producer.flush

            def flush_while_another_thread_sends() -> None:
                flush()
                with pytest.raises(seglog.ClientError, match="ended meanwhile"):
                    txn.send("ends", "late")

            monkeypatch.setattr(producer, "flush", flush_while_another_thread_sends)
        monkeypatch.undo()
        with txn:
            txn.send("ends", "after")
        with client.consumer("ends", isolation="read_committed") as consumer:
            assert [record.value for record in consumer] == [b"kept", b"after"]


def test_an_abort_that_is_cancelled_is_followed_by_no_commit(broker: Broker) -> None:
    """What it had dropped by then would be missing."""

    async def main() -> None:
        async with seglog.asyncio.connect(broker.address) as client:
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


def test_a_thread_whose_block_is_left_by_an_exception_sends_nothing_into_the_next_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seglog.connect(broker.address) as client, ThreadPoolExecutor(1) as pool:
        client.create_topic("ghosts", 1)
        txn = client.transaction("ghosts")
        asked, may_go_on = Event(), Event()
        make_producer = client.make_producer

        def make_producer_slowly(*arguments: Any) -> Any:
            asked.set()
            may_go_on.wait(WAIT_SECONDS)
            return make_producer(*arguments)

        monkeypatch.setattr(client, "make_producer", make_producer_slowly)
        with suppress(ZeroDivisionError), txn:
            sent = pool.submit(txn.send, "ghosts", "of the aborted block")
            asked.wait(WAIT_SECONDS)
            raise ZeroDivisionError
        with txn:
            may_go_on.set()
            with pytest.raises(seglog.ClientError, match="ended meanwhile"):
                sent.result(WAIT_SECONDS)
            txn.send("ghosts", "of the next one")
        with txn:
            txn.send("ghosts", "of the last one")
        with client.consumer("ghosts", isolation="read_committed") as consumer:
            assert [record.value for record in consumer] == [b"of the next one", b"of the last one"]


def test_tasks_whose_block_is_left_by_an_exception_do_nothing_in_the_next_one(broker: Broker) -> None:
    """``gather`` does not cancel what it has begun when one of its parts fails."""

    async def fail() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with seglog.asyncio.connect(broker.address) as client:
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
