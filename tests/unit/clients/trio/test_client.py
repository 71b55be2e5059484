"""The client on trio, on a clock that jumps: calls of many tasks, consumers, producers, and the nursery behind them."""

import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import seglog
import seglog.trio
from seglog.trio import raw
from seglog.trio.connecting import TrioLoop
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
)
from seglog_protocol.messages import HelloRequest, TopicsRequest
from tests.support import each_case
from tests.unit.clients.fake_broker import SILENCE, FakePartition, on_append
from tests.unit.clients.trio.memory_broker import MemoryTransport, memory_broker


def test_both_faces_have_the_same_names() -> None:
    at_once = {"abort", "abort_now"}  # on trio a block that is cancelled ends at once
    of_write_arrow = {"make_producer", "send_batch", "batch_bytes_max"}  # which is blocking
    for blocking, on_trio in (
        (seglog.Client, seglog.trio.Client),
        (seglog.Producer, seglog.trio.Producer),
        (seglog.Consumer, seglog.trio.Consumer),
        (seglog.Delivery, seglog.trio.Delivery),
    ):
        names = {name for name in dir(blocking) if not name.startswith("_")} - {"wait_for", *of_write_arrow, *at_once}
        assert names <= set(dir(on_trio)), blocking


async def test_a_call_that_timed_out_leaves_the_connection_in_step(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.script = lambda request, _: SILENCE if isinstance(request, TopicsRequest) else None
        began = trio.current_time()
        with pytest.raises(ClientTimeoutError, match="did not answer topics within 30 s"):
            await client.topics()
        assert trio.current_time() == began + 30
        with trio.move_on_after(5):
            await client.topics()
        assert trio.current_time() == began + 35
        assert (await client.offsets("t"))[0].topic == "t"
        assert broker.asked(HelloRequest) == 1


async def test_a_broker_that_does_not_say_hello_is_tried_again_until_the_time_is_over(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker() as broker:
        broker.script = lambda request, _: SILENCE
        with pytest.raises(seglog.NotReachableError, match="does not answer"):
            async with broker.connect(connect_timeout=12):
                pytest.fail("not reached")
        assert broker.asked(HelloRequest) == 5, "0.6, 1.2, 2.4 and 4.8 seconds, and the rest"
        assert await broker.connections() == 0


async def test_a_client_closed_early_is_closed_and_so_is_what_was_just_being_opened(autojump_clock: MockClock) -> None:
    async with memory_broker(slow=True) as broker, trio.open_nursery() as nursery, broker.connect() as client:

        async def refused(opening: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(ClientClosedError):
                await opening()

        for turns in range(0, 100, 3):
            async with broker.connect() as other:
                for opening in (lambda: other.producer("t"), lambda: other.consumer("t"), other.ping, other.topics):
                    nursery.start_soon(ended, opening)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                await other.close()
                await other.close()
                await refused(other.topics)
            assert await broker.connections() == 1
        assert len(await client.topics()) == 1


async def ended(opening: Callable[[], Awaitable[object]]) -> None:
    with suppress(ClientClosedError):
        await opening()


# --- The client's one nursery: no exception groups come out of it, and nothing that was raised is lost ----------------


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


# --- The consumer on trio, on a clock that jumps: where it reads, how it waits, and what it survives ------------------


async def values(consumer: seglog.trio.Consumer, count: int | None = None) -> list[int]:
    found = []
    async for record in consumer:
        found.append(int(record.value or b"-1"))
        if len(found) == count:
            break
    return found


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


async def test_a_range_that_was_fetched_leaves_no_connection(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.fill(9)
        async with raw.fetch(client, "t", 0, 3, 5) as batches:
            assert [batch.start_offset async for batch in batches] == [3]
        assert await broker.connections() == 1


# --- The producer on trio, on a clock that jumps: batches, retries, failures, and how its block is left ---------------


async def test_a_delivery_can_be_awaited_by_many_and_a_cancelled_wait_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with memory_broker() as broker, broker.connect() as client, client.producer("t", linger_ms=5_000) as producer:
        delivery = await producer.send(b"x")
        offsets: list[int] = []

        async def wait() -> None:
            offsets.append((await delivery).offset)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
            with trio.move_on_after(1) as scope:
                await delivery
            assert scope.cancelled_caught
        assert offsets == [0] * 5


async def test_a_broker_that_takes_no_bytes_keeps_no_record_beyond_its_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_frozen = False
    send_some = MemoryTransport.send_some

    async def sent(transport: MemoryTransport, buffers: Sequence[memoryview]) -> int:
        if is_frozen:
            await trio.sleep_forever()
        return await send_some(transport, buffers)

    monkeypatch.setattr(MemoryTransport, "send_some", sent)
    async with memory_broker(topics={"t": 2}) as broker, broker.connect() as client:
        producer = await client.producer("t", delivery_timeout=10)
        await (await producer.send(b"so that it is connected"))
        broker.script = on_append(lambda *_: SILENCE)
        began = trio.current_time()
        early = await producer.send(b"early", partition=0)
        await trio.sleep(9)
        is_frozen = True
        late = await producer.send(b"late", partition=1)
        assert isinstance(await early.exception(), ClientTimeoutError)
        assert 10 <= trio.current_time() - began < 11
        assert isinstance(await late.exception(), ClientTimeoutError)
        assert 19 <= trio.current_time() - began < 20
        await producer.abort(0)


# --- How the block is left --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["the producer's block", "the client's block"])
async def test_a_cancellation_waits_a_second_too_and_its_note_says_what_was_lost(
    autojump_clock: MockClock, inside: str
) -> None:
    async with memory_broker() as broker:
        broker.script = on_append(lambda _request, _payload: SILENCE)
        began = trio.current_time()
        notes: list[str] = []

        async def send_and_wait(producer: seglog.trio.Producer) -> None:
            await producer.send(b"x")
            await trio.sleep_forever()

        with trio.move_on_after(10) as scope:
            try:
                async with broker.connect() as client:
                    if inside == "the producer's block":
                        async with client.producer("t", linger_ms=0) as producer:
                            await send_and_wait(producer)
                    else:
                        others = [await client.producer("t", linger_ms=0) for _ in range(3)]
                        for other in others:
                            await other.send(b"x")
                        await send_and_wait(others[0])
            except trio.Cancelled as cancelled:
                notes = cancelled.__notes__
                raise
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(began + 11), "one second for all of them"
        assert all("not acknowledged" in note for note in notes)
        assert len(notes) == (1 if inside == "the producer's block" else 3)


async def test_at_ack_none_partitions_that_are_added_are_used_within_seconds(autojump_clock: MockClock) -> None:
    """No answer tells of them: the broker is asked."""
    async with memory_broker() as broker, broker.connect() as client, client.producer("t", ack="none") as producer:
        broker.logs["t"] += [FakePartition(), FakePartition()]
        began = trio.current_time()
        while producer.partitions == 1 and trio.current_time() < began + 10:
            await producer.send(b"v")
            await producer.flush()
            await trio.sleep(0.5)
        assert producer.partitions == 3


# --- The client on trio and the real broker, over real sockets --------------------------------------------------------
