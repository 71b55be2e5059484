"""The memory budget for large responses: a few at a time, each bounded, and a slow peer does not hold up others."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.runtime.response_memory import (
    GRACE_SECONDS,
    LARGE_BYTES,
    LARGE_MAX,
    PACE_BYTES,
    RESPONSE_BYTES_MAX,
    ResponseMemory,
    Room,
)


def test_a_response_takes_no_more_than_its_room() -> None:
    room = ResponseMemory().room()
    assert room.add(RESPONSE_BYTES_MAX - 1)
    assert not room.add(2)
    assert room.used == RESPONSE_BYTES_MAX - 1
    assert room.add(1), "what did not fit is not counted"
    room.close()
    assert room.used == 0


async def large(memory: ResponseMemory) -> Room:
    """Room that has a place."""
    room = memory.room()
    assert room.add(LARGE_BYTES + 1)
    await room.wait()
    return room


async def test_only_some_responses_are_large_at_a_time() -> None:
    memory = ResponseMemory()
    held = [await large(memory) for _ in range(LARGE_MAX)]
    small = memory.room()
    assert small.add(LARGE_BYTES)
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


async def test_a_peer_is_too_slow_when_others_wait_and_its_time_is_over(autojump_clock: MockClock) -> None:
    memory = ResponseMemory()
    first, *_ = [await large(memory) for _ in range(LARGE_MAX)]
    first.note_sending(3 * PACE_BYTES)
    await trio.sleep(GRACE_SECONDS + 3.5)
    assert not first.is_too_slow, "nobody waits"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(large, memory)
        await wait_all_tasks_blocked()
        assert first.is_too_slow
        first.note_sending(3 * PACE_BYTES)
        await trio.sleep(GRACE_SECONDS + 2.5)
        assert not first.is_too_slow
        first.close()
        assert not first.is_too_slow
