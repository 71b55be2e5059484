"""The memory budget for large requests: never exceeded, the oldest request first, and one can always be completed."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.listeners.admission import take_share
from seglog_broker.runtime import request_memory
from seglog_protocol.frame_receiver import RECEIVE_BYTES
from seglog_protocol.frames import encode_frame
from seglog_protocol.messages import AppendPartition, AppendRequest, request_header


async def take(share: request_memory.Share, size: int, order: list[int]) -> None:
    await take_share(share, size)
    order.append(size)


async def begin(nursery: trio.Nursery, work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    """Start a task, and wait until it waits."""
    nursery.start_soon(work, *arguments)
    await wait_all_tasks_blocked()


async def test_memory_that_fits_is_given_at_once_and_a_waiting_request_can_be_completed() -> None:
    memory = request_memory.RequestMemory(200)
    assert memory.request_bytes_max == 100, "half is kept for one request at a time"
    first, second, third = (memory.begin() for _ in range(3))
    order: list[int] = []
    await take_share(first, 60)
    await take_share(second, 30)
    assert (memory.used, memory.waits) == (90, 0)
    await take_share(third, 70)  # of what is kept
    assert (memory.used, memory.waits) == (160, 0)
    async with trio.open_nursery() as nursery:
        await begin(nursery, take, second, 40, order)
        await begin(nursery, take, first, 39, order)
        assert (order, memory.waiting) == ([], 2), "until the third is done no other request gets any of that"
        await take_share(third, 30)
        assert memory.used == 190
        third.close()
        await wait_all_tasks_blocked()
        assert (order, memory.used, memory.waiting) == ([39], 129, 1), "the older one first, though it asked later"
        first.close()
        await wait_all_tasks_blocked()
    assert (order, memory.used, memory.waits) == ([39, 40], 70, 2)
    larger = request_memory.RequestMemory(600)
    for size in (60, 30, 70, 40, 39, 30):
        await take_share(larger.begin(), size)
    assert larger.waits == 0, "as the advice is"


def test_two_batches_of_256_kib_are_received_at_a_time() -> None:
    header = request_header(2**31, AppendRequest([AppendPartition("t" * 249, 9_999, 1 << 18)], "disk"))
    assert 2 * len(encode_frame(header, [bytes(1 << 18)])) <= request_memory.RECEIVE_BYTES_MAX


async def test_connections_receive_less_at_a_time_while_memory_is_short() -> None:
    memory = request_memory.RequestMemory(200)
    assert memory.receive_bytes_max == request_memory.RECEIVE_BYTES_MAX
    memory.note_held(request_memory.HELD_BYTES_MAX)
    assert memory.receive_bytes_max == request_memory.RECEIVE_BYTES_MAX
    memory.note_held(1)
    assert memory.receive_bytes_max == RECEIVE_BYTES, "others hold much"
    memory.note_held(-1 - request_memory.HELD_BYTES_MAX)
    first, second = memory.begin(), memory.begin()
    await take_share(first, 90)
    async with trio.open_nursery() as nursery:
        await begin(nursery, take_share, second, 120)
        assert memory.receive_bytes_max == RECEIVE_BYTES, "another waits"
        first.close()
    assert memory.receive_bytes_max == request_memory.RECEIVE_BYTES_MAX


async def test_a_request_that_stops_waiting_is_skipped_and_lets_smaller_ones_pass() -> None:
    memory = request_memory.RequestMemory(200)
    holding, finishing, impatient, patient = (memory.begin() for _ in range(4))
    order: list[int] = []
    await take_share(holding, 90)
    await take_share(finishing, 20)  # of what is kept for one
    holding.close()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                await begin(inner, take, impatient, 90, order)
                await begin(nursery, take, patient, 30, order)
                assert order == []
                scope.cancel()
        await wait_all_tasks_blocked()
        assert (order, memory.used, memory.waiting) == ([30], 50, 0)


async def test_spare_buffers_count_and_are_dropped_before_a_request_waits() -> None:
    memory = request_memory.RequestMemory(2_000_000)
    memory.pool.give_back(memoryview(bytearray(400_000)))
    share = memory.begin()
    await take_share(share, 500_000)
    assert memory.pool.spare_bytes == 400_000
    await take_share(share, 400_000)
    assert (memory.pool.spare_bytes, memory.used) == (0, 900_000)


async def test_a_spare_buffer_that_is_larger_than_needed_counts_in_full() -> None:
    memory = request_memory.RequestMemory(2_000_000)
    memory.pool.give_back(memoryview(bytearray(400_000)))
    share = memory.begin()
    assert share.take_spare(500_000) is None
    assert len(share.take_spare(100_000) or b"") == 400_000
    assert (memory.used, memory.pool.spare_bytes) == (400_000, 0)
    share.close()
    assert memory.used == 0


async def test_a_request_is_too_slow_only_while_others_wait_for_what_it_holds(autojump_clock: MockClock) -> None:
    memory = request_memory.RequestMemory(200)
    slow, other = memory.begin(), memory.begin()
    await take_share(slow, 100)
    await take_share(other, 100)
    await trio.sleep(1000)
    assert not slow.is_too_slow(60), "it disturbs no other connection"
    waiting = memory.begin()
    async with trio.open_nursery() as nursery:
        await begin(nursery, take, waiting, 10, [])
        assert slow.is_too_slow(60)
        assert not slow.is_too_slow(1000 * request_memory.PACE_BYTES), "so much in 1000 seconds is not slow"
        assert not waiting.is_too_slow(0), "it waits for memory, not for its peer"
        await trio.sleep(1000)
        other.close()
        await wait_all_tasks_blocked()
        another = memory.begin()
        await begin(nursery, take, another, 100, [])
        assert memory.waiting == 1
        assert not waiting.is_too_slow(10), "the time in which it had to wait does not count"
        await trio.sleep(request_memory.GRACE_SECONDS + 0.1)
        assert waiting.is_too_slow(10)
        slow.close()
        waiting.close()


# --- Any requests whatever --------------------------------------------------------------------------------------------

LIMIT = 2_000
Peer = tuple[int, int, bool]  # bytes of its request, bytes it sends at a time, whether it stops for good half way


@given(
    st.lists(st.tuples(st.integers(1, LIMIT // 2), st.integers(1, 400), st.booleans()), max_size=25),
    st.randoms(use_true_random=False),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_whatever_peers_send_the_limit_holds_and_every_request_that_comes_is_served(
    autojump_clock: MockClock, peers: list[Peer], dice: Any
) -> None:
    """Peers that stop sending half-way are cut off only as the listener does it."""
    memory = request_memory.RequestMemory(LIMIT)
    served: list[int] = []
    wanted = [number for number, (_, _, stops) in enumerate(peers) if not stops]
    all_served = trio.Event()
    receiving: dict[int, tuple[request_memory.Share, int, trio.CancelScope]] = {}  # and how much came

    async def serve(number: int, peer: Peer) -> None:
        size, step, stops = peer
        await trio.sleep(dice.random())
        share, received = memory.begin(), 0
        try:
            while received < size:
                if stops and received >= size // 2:
                    with trio.CancelScope() as receiving_scope:
                        receiving[number] = share, received, receiving_scope
                        await trio.sleep_forever()
                    return
                await trio.sleep(dice.random() / 100)
                receiving.pop(number, None)
                granted = min(size - received, max(1, min(step, received + 1)))
                await take_share(share, granted)
                received += granted
                assert memory.used <= LIMIT
            await trio.sleep(dice.random() / 10)  # it is worked on
            served.append(number)
            if len(served) == len(wanted):
                all_served.set()
        finally:
            receiving.pop(number, None)
            share.close()

    async def watch() -> None:
        while True:
            await trio.sleep(1)
            for share, received, scope in list(receiving.values()):
                if share.is_too_slow(received):
                    scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        for number, peer in enumerate(peers):
            nursery.start_soon(serve, number, peer)
        if not wanted:
            all_served.set()
        with trio.move_on_after(10_000):
            await all_served.wait()
        assert sorted(served) == wanted
        assert memory.waiting == 0 or len(receiving) < len(peers)
        nursery.cancel_scope.cancel()
    assert (memory.used, memory.waiting) == (0, 0)
