"""The producer on trio, on a clock that jumps: batches, retries, failures, and how its block is left."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import seglog
import seglog.trio
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
)
from seglog_protocol.messages import AppendRequest
from tests.unit.clients.fake_broker import SILENCE, FakePartition, on_append
from tests.unit.clients.trio.memory_broker import MemoryTransport, memory_broker


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


async def test_leaving_by_an_exception_waits_a_second_for_what_is_on_the_way(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.script = on_append(lambda _request, _payload: SILENCE)
        began = trio.current_time()
        with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
            async with client.producer("t", linger_ms=0) as producer:
                await producer.send(b"x")
                await broker.heard(AppendRequest)
                raise ZeroDivisionError
        assert trio.current_time() == pytest.approx(began + 1)
        assert caught.value.__notes__ == ["seglog: not acknowledged: 1 record to t"]


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


async def test_a_cancelled_flush_at_the_end_of_the_block_is_left_like_an_exception(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.script = on_append(lambda _request, _payload: SILENCE)
        began = trio.current_time()
        with trio.move_on_after(10) as scope:
            async with client.producer("t") as producer:
                delivery = await producer.send(b"x")
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(began + 11)
        with pytest.raises(ClientClosedError, match="before this record was acknowledged"):
            await delivery


@pytest.mark.parametrize("ack", ["none", "disk"])
async def test_partitions_that_are_added_are_used_within_seconds(ack: Any, autojump_clock: MockClock) -> None:
    """At ack "none", where no answer tells, as soon as the broker is asked."""
    async with memory_broker() as broker, broker.connect() as client, client.producer("t", ack=ack) as producer:
        broker.script = on_append(
            lambda request, payload: msgspec.structs.replace(broker.append(request, payload), partition_counts={"t": 3})
        )
        await producer.send(b"v")
        await producer.flush()
        broker.logs["t"] += [FakePartition(), FakePartition()]
        began = trio.current_time()
        while producer.partitions == 1 and trio.current_time() < began + 10:
            await producer.send(b"v")
            await producer.flush()
            await trio.sleep(0.5)
        assert producer.partitions == 3
        for number in range(30):
            await producer.send(b"v", key=b"%d" % number)
        await producer.flush()
        await wait_all_tasks_blocked()
        assert all(partition.batches for partition in broker.logs["t"])
