"""The memory budget for large responses: a few at a time, each bounded, and a slow peer does not hold up others."""

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.runtime import response_memory


def test_a_response_takes_no_more_than_its_room() -> None:
    room = response_memory.ResponseMemory().room()
    assert room.add(response_memory.RESPONSE_BYTES_MAX - 1)
    assert not room.add(2)
    assert room.used == response_memory.RESPONSE_BYTES_MAX - 1
    assert room.add(1), "what did not fit is not counted"
    room.close()
    assert room.used == 0


async def large(memory: response_memory.ResponseMemory) -> response_memory.Room:
    """Room that has a place."""
    room = memory.room()
    assert room.add(response_memory.LARGE_BYTES + 1)
    await room.wait()
    return room


async def test_only_some_responses_are_large_at_a_time() -> None:
    memory = response_memory.ResponseMemory()
    held = [await large(memory) for _ in range(response_memory.LARGE_MAX)]
    small = memory.room()
    assert small.add(response_memory.LARGE_BYTES)
    await small.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(large, memory)
        await wait_all_tasks_blocked()
        assert memory.waiting == 1
        await held[1].wait()
        held[0].close()
        held[0].close()
    assert memory.waiting == 0
    with trio.move_on_after(0) as scope:
        await large(memory)
    assert scope.cancelled_caught, "a place that was given back twice is one place"


class Peer:
    """It takes a large response at a pace, and is cut off or done at ``ended``, by trio's clock."""

    def __init__(
        self,
        memory: response_memory.ResponseMemory,
        address: str,
        size: int = response_memory.RESPONSE_BYTES_MAX,
        pace: int = 0,
    ) -> None:
        self._memory = memory
        self._address = address
        self._size = size
        self._pace = pace
        self.began = self.ended = math.inf
        self.is_cut = False

    async def run(self) -> None:
        room = self._memory.room(self._address)
        assert room.add(response_memory.LARGE_BYTES + 1)
        try:
            await room.wait()
            self.began = trio.current_time()
            with room.sending(lambda: int(self._pace * (trio.current_time() - self.began))) as scope:
                await trio.sleep(self._size / self._pace if self._pace else math.inf)
            self.is_cut = scope.cancelled_caught
            self.ended = trio.current_time()
        finally:
            room.close()


async def run_all(*peers: Peer) -> None:
    """Have the peers ask one after the other, and wait for the last."""
    async with trio.open_nursery() as nursery:
        for peer in peers[:-1]:
            nursery.start_soon(peer.run)
            await wait_all_tasks_blocked()
        await peers[-1].run()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("address", "seconds_max"), [("bad", 14), ("good", 2)])
async def test_twenty_peers_that_take_nothing_hold_up_another_one_for_some_seconds_in_all(
    address: str, seconds_max: float, autojump_clock: MockClock
) -> None:
    memory = response_memory.ResponseMemory()
    began = trio.current_time()
    bad = [Peer(memory, "bad") for _ in range(20)]
    good = Peer(memory, address, size=response_memory.PACE_BYTES, pace=100 * response_memory.PACE_BYTES)
    await run_all(*bad, good)
    assert not good.is_cut
    assert good.began - began < seconds_max
    assert memory.waiting == 0


async def test_a_peer_that_takes_its_response_at_the_pace_is_cut_only_when_more_wait(autojump_clock: MockClock) -> None:
    memory = response_memory.ResponseMemory()
    steady = [
        Peer(memory, "steady", size=60 * response_memory.PACE_BYTES, pace=2 * response_memory.PACE_BYTES)
        for _ in range(response_memory.LARGE_MAX)
    ]
    await run_all(*steady, Peer(memory, "other", size=1, pace=response_memory.PACE_BYTES))
    assert not any(peer.is_cut for peer in steady)
    slow = [
        Peer(memory, "slow", size=60 * response_memory.PACE_BYTES, pace=response_memory.PACE_BYTES // 2)
        for _ in range(response_memory.LARGE_MAX)
    ]
    await run_all(*slow, Peer(memory, "other", size=1, pace=response_memory.PACE_BYTES))
    assert any(peer.is_cut for peer in slow)


async def test_a_peer_may_take_any_time_while_no_other_waits(autojump_clock: MockClock) -> None:
    memory = response_memory.ResponseMemory()
    slow = Peer(memory, "slow", size=response_memory.PACE_BYTES, pace=response_memory.PACE_BYTES // 100)
    await slow.run()
    assert not slow.is_cut


async def test_a_response_that_is_not_wanted_any_more_leaves_the_line(autojump_clock: MockClock) -> None:
    memory = response_memory.ResponseMemory()
    held = [await large(memory) for _ in range(response_memory.LARGE_MAX)]
    with trio.move_on_after(1):
        await large(memory)
    assert memory.waiting == 0
    for room in held:
        room.close()

    async def wait_and_close() -> None:
        room = await large(memory)
        room.close()

    async with trio.open_nursery() as nursery:
        again = [await large(memory) for _ in range(response_memory.LARGE_MAX)]
        nursery.start_soon(wait_and_close)
        await wait_all_tasks_blocked()
        again[0].close()
        nursery.cancel_scope.cancel()  # at the moment when the place is given
    with trio.fail_after(1):
        await large(memory)
