"""The runtime of coordinators, with state machines that are no groups."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime, Waiting
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.errors import CoordinatorNotAvailableError
from tests.logs import ManualClock
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker
from tests.unit.broker.coordinators.held_topic import FAILED, HeldTopic
from tests.unit.broker.coordinators.register import LIFE_MS, Register, Registers

# --- Through a broker -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def started(fs: ForgetfulFileSystem, *, closes: bool = False) -> AsyncIterator[Registers]:
    clock = ManualClock(NOW)
    broker = open_broker(fs, clock)
    registers = Registers(broker, clock)
    async with registers.running():
        yield registers
    if closes:
        broker.close()


@pytest.mark.parametrize("closes", [False, True])
async def test_what_was_answered_is_there_after_a_start(closes: bool) -> None:
    fs = ForgetfulFileSystem()
    async with started(fs) as registers:
        assert [await registers.add("a", 1), await registers.add("a", 2), await registers.add("b", 5)] == [1, 3, 5]
    async with started(fs.crash(POWER_LOSS)) as registers:
        assert registers.values() == {"a": 3, "b": 5}
        assert await registers.add("a", 4) == 7


async def test_any_number_of_keys_share_the_batches_of_their_topic() -> None:
    fs = ForgetfulFileSystem()
    async with started(fs) as registers:
        await registers.add("first", 4)  # the topic is there
        fs.operations.clear()
        results: list[int] = []

        async def add(number: int) -> None:
            results.append(await registers.add(f"r-{number % 50}", 1))

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(add, number)
        assert sorted(results) == sorted([1, 2, 3, 4] * 50)
        assert set(registers.values().values()) == {4}
        assert sum(operation.name == "pwritev" for operation in fs.operations) <= 6


async def test_a_deadline_is_kept_also_after_a_start_and_put_off_by_a_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fs = ForgetfulFileSystem()
    async with started(fs) as registers:
        await registers.add("a", 1)
        await registers.add("b", 2)
        await trio.sleep(LIFE_MS / 1000 * 0.6)
        await registers.add("b", 2)
        await trio.sleep(LIFE_MS / 1000 * 0.6)
        assert registers.values() == {"a": 0, "b": 4}
        await registers.sweep.sweep()
        assert registers.values() == {"b": 4}
    async with started(fs.crash(POWER_LOSS)) as registers:
        assert registers.values() == {"b": 4}
        await trio.sleep(LIFE_MS / 1000 + 1)
        assert registers.values() == {"b": 0}


async def test_requests_that_wait_are_answered_when_the_broker_stops() -> None:
    registers = Registers(open_broker(ForgetfulFileSystem(), clock := ManualClock(NOW)), clock)
    async with trio.open_nursery() as nursery:

        async def add_in_vain() -> None:
            with pytest.raises(CoordinatorNotAvailableError, match="stopping"):
                await registers.add("a", 1)

        nursery.start_soon(add_in_vain)
        await trio.testing.wait_all_tasks_blocked()
        registers.runtime.end_waits()
    with pytest.raises(CoordinatorNotAvailableError, match="stopping"):
        await registers.add("a", 1)


# --- Writes that fail -------------------------------------------------------------------------------------------------


class Held:
    """A register whose writes the test ends."""

    def __init__(self) -> None:
        self.topic = HeldTopic()
        self.runtime: CoordinatorRuntime[Register] = CoordinatorRuntime(
            cast("StateTopic", self.topic), ManualClock(0), cast("Scheduler", None)
        )
        self.register = self.runtime.machines["r"] = Register("r", self.runtime.outbox)

    def add(self) -> Waiting[int]:
        answer: Waiting[int] = Waiting()
        self.register.add(1, answer, self.runtime.now())
        self.runtime.carry_out("r")
        return answer


async def outcome(answer: Waiting[Any]) -> str:
    try:
        await answer.wait()
    except CoordinatorNotAvailableError:
        return "failed"
    return "done"


async def test_what_was_decided_on_top_of_a_failed_write_is_not_answered_as_durable() -> None:
    held = Held()
    answers = [held.add() for _ in range(3)]
    held.topic.end(FAILED)
    later = held.add()  # after what the register writes again
    assert len(held.topic.writes) == 4
    for _ in range(4):
        held.topic.end()
    assert [await outcome(answer) for answer in [*answers, later]] == ["failed", "failed", "failed", "done"]


@pytest.mark.parametrize("second_fails", [False, True])
async def test_a_second_failure_counts_for_what_was_queued_before_it(second_fails: bool) -> None:
    held = Held()
    answers = [held.add() for _ in range(2)]
    held.topic.end(FAILED)
    answers.append(held.add())
    held.topic.end(FAILED if second_fails else None)
    answers.append(held.add())
    while held.topic.writes:
        held.topic.end()
    third = "failed" if second_fails else "done"
    assert [await outcome(answer) for answer in answers] == ["failed", "failed", third, "done"]
