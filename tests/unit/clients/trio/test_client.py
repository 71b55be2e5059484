"""The client on trio: its calls, from many tasks, over connections that break."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

import seglog
import seglog.trio
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
    ConnectionLostError,
    NotReachableError,
)
from seglog_protocol.messages import HelloRequest, OffsetsRequest, TopicsReply, TopicsRequest
from tests.unit.clients.fake_broker import CLOSE, SILENCE, fake_broker
from tests.unit.clients.trio.memory_broker import memory_broker


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


async def test_everybody_who_waits_learns_that_the_connection_broke(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker, broker.connect() as client:
        broker.script = lambda request, _: SILENCE if isinstance(request, TopicsRequest) else None
        errors: list[ConnectionLostError] = []

        async def ask() -> None:
            with pytest.raises(ConnectionLostError) as caught:
                await client.call(TopicsRequest(), TopicsReply)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await broker.heard(TopicsRequest, 3)
            broker.drop_connections()
        assert len(set(errors)) == 3, "each has an exception of its own"
        assert all("memory:9192" in str(error) for error in errors)


async def test_a_connection_known_to_be_dead_is_replaced_before_anything_is_asked(autojump_clock: MockClock) -> None:
    async with memory_broker(topics={"t": 1, "u": 1}) as broker, broker.connect() as client:
        broker.stop()
        broker.start()
        await client.delete_topic("t")

        async def wait_for_it() -> None:
            assert [topic.name for topic in await client.topics()] == ["u"]

        broker.stop()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait_for_it)
            await trio.sleep(3)
            broker.start()
        assert broker.asked(HelloRequest) == 3, "one task connects again, the others wait for it"


async def test_what_only_hangs_up_is_tried_again_until_the_time_is_over(autojump_clock: MockClock) -> None:
    async with memory_broker() as broker:
        broker.script = lambda request, _: CLOSE if isinstance(request, HelloRequest) else None
        with pytest.raises(NotReachableError, match="does not speak the seglog protocol"):
            async with broker.connect():
                pytest.fail("not reached")
        assert 8 < trio.current_time() <= 10


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


async def test_over_real_sockets() -> None:
    with fake_broker(topics={"t": 2}) as broker:
        async with seglog.trio.connect(broker.address) as client:
            assert len(await client.offsets("t")) == 2
            broker.stop()
            broker.start()
            await client.delete_topic("t")
            assert broker.asked(OffsetsRequest) == 1
        address = broker.address
    with pytest.raises(seglog.NotReachableError, match=rf"no broker answers at {address}: .*refused"):
        async with seglog.trio.connect(address, connect_timeout=1.0):
            pytest.fail("not reached")
