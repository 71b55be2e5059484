"""The runtime of coordinators and their topic, with state machines of its own in place of groups."""

import errno
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.state_machine import Record
from seglog_broker.coordinators.topic import ENCODED_A_TURN, Encoded, StateTopic
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime.begun import Begun
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import Fault
from seglog_protocol.errors import CoordinatorNotAvailableError, MessageTooLargeError, SeglogError
from seglog_protocol.internal_topics import TRANSACTIONS_TOPIC
from seglog_protocol.kafka.messages import TransactionLogKey, TransactionLogValue
from seglog_protocol.messages import AlterTopicRequest
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker
from tests.unit.broker.coordinators.held_topic import FAILED, HeldTopic
from tests.unit.broker.coordinators.register import LIFE_MS, Register, Registers

# --- Through a broker -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def started(fs: ForgetfulFileSystem) -> AsyncIterator[Registers]:
    clock = ManualClock(NOW)
    broker = open_broker(fs, clock)
    registers = Registers(broker, clock)
    async with registers.running():
        yield registers


async def test_what_was_answered_is_there_after_a_start(fs: ForgetfulFileSystem) -> None:
    async with started(fs) as registers:
        assert [await registers.add("a", 1), await registers.add("a", 2), await registers.add("b", 5)] == [1, 3, 5]
    async with started(fs.crash(POWER_LOSS)) as registers:
        assert registers.values() == {"a": 3, "b": 5}
        assert await registers.add("a", 4) == 7


async def test_any_number_of_keys_share_the_batches_of_their_topic(fs: ForgetfulFileSystem) -> None:
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


async def test_a_deadline_is_kept_also_after_a_start_and_put_off_by_a_request(fs: ForgetfulFileSystem) -> None:
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
            self.topic, ManualClock(0), cast("Scheduler", None)
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


async def test_a_reply_without_records_waits_for_those_that_were_decided_before() -> None:
    held = Held()
    held.add()
    answer: Waiting[None] = Waiting()
    held.runtime.outbox.replies.append((answer, None))
    held.runtime.carry_out("r")
    held.topic.end(FAILED)
    while held.topic.writes:
        held.topic.end()
    assert await outcome(answer) == "failed"


async def test_a_tombstone_is_owed_until_that_of_the_last_removal_is_durable() -> None:
    held = Held()
    held.runtime.remove("r")
    held.register = held.runtime.machines["r"] = Register("r", held.runtime.outbox)
    held.add()
    held.runtime.remove("r")
    for error in (None, None, FAILED):
        held.topic.end(error)
    assert list(held.runtime.owed) == ["r"]


# --- The topic of a coordinator: what becomes of each write, and in what order its callbacks come ---------------------


LIMIT = 2_000
"""Bytes of a batch, in these tests."""


class Outcomes:
    """Appends to a topic of coordinators, and notes the callbacks."""

    def __init__(self, topic: StateTopic) -> None:
        self._topic = topic
        self.of_writes: list[tuple[int, type[SeglogError] | None]] = []
        """The numbers of the writes, in the order of their callbacks, with their errors."""
        self.raising: set[int] = set()
        """Writes whose callbacks raise an error."""

    def append(self, number: int, records: Sequence[Encoded | Record]) -> None:
        self._topic.append("key", records, lambda error: self._note(number, error))

    def _note(self, number: int, error: SeglogError | None) -> None:
        self.of_writes.append((number, None if error is None else type(error)))
        if number in self.raising:
            raise ValueError("of the callback")


@asynccontextmanager
async def queued() -> AsyncIterator[tuple[Broker, Registers, Outcomes]]:
    """A topic with a limit, which takes what the block appends, and writes it when the block runs its tasks."""
    broker = open_broker(ForgetfulFileSystem(), clock := ManualClock(NOW), f"message.max.bytes={LIMIT}")
    registers = Registers(broker, clock)
    async with registers.running():
        await registers.add("first", 1)  # creates the topic
    yield broker, registers, Outcomes(registers.topic)
    broker.close()


async def write_all(registers: Registers) -> None:
    async with registers.running():
        await trio.testing.wait_all_tasks_blocked()


def some(size: int) -> list[Encoded]:
    return [(b"k", bytes(size))]


TOO_LARGE = Record(TransactionLogKey(transactional_id="key"), 0, TransactionLogValue(), 1, least_size=LIMIT + 1)


async def test_a_write_that_is_refused_stays_so_when_the_limit_is_raised_before_its_turn() -> None:
    async with queued() as (broker, registers, outcomes):
        outcomes.append(0, [TOO_LARGE])
        await broker.alter_topic(AlterTopicRequest(TRANSACTIONS_TOPIC, {"max.message.bytes": "8000000"}))
        await write_all(registers)
        assert outcomes.of_writes == [(0, MessageTooLargeError)]


@pytest.mark.parametrize("refused", [[TOO_LARGE], some(LIMIT)])
async def test_callbacks_come_in_order_also_of_refused_writes(refused: Sequence[Encoded | Record]) -> None:
    async with queued() as (_, registers, outcomes):
        for number, records in enumerate([some(10), refused, (), some(10)]):
            outcomes.append(number, records)
        await write_all(registers)
        assert outcomes.of_writes == [(0, None), (1, MessageTooLargeError), (2, None), (3, None)]


@each_case("size", [0, 100, 900, 1_000, LIMIT - 100])
async def test_writes_that_fit_the_limit_one_by_one_are_not_refused_together(size: int) -> None:
    async with queued() as (_, registers, outcomes):
        for number in range(100):
            outcomes.append(number, some(size))
        await write_all(registers)
        assert outcomes.of_writes == [(number, None) for number in range(100)]


async def test_a_callback_that_raises_keeps_no_other_from_its_one_call() -> None:
    async with queued() as (_, registers, outcomes):
        outcomes.raising = {1}
        for number in range(4):
            outcomes.append(number, some(10))
        await write_all(registers)
        assert outcomes.of_writes == [(number, None) for number in range(4)]


async def test_a_callback_that_raises_keeps_no_other_from_its_call_at_a_stop() -> None:
    async with queued() as (_, registers, outcomes):
        outcomes.raising = {1}
        for number in range(4):
            outcomes.append(number, some(10))
        with trio.CancelScope() as stopped:
            stopped.cancel()
            await registers.writer.run()
        assert outcomes.of_writes == [(number, CoordinatorNotAvailableError) for number in range(4)]


async def test_a_write_that_cannot_be_encoded_is_refused_alone() -> None:
    no_text: Any = 7
    odd = Record(TransactionLogKey(transactional_id=no_text), 0, TransactionLogValue(), 1, least_size=1)
    async with queued() as (_, registers, outcomes):
        outcomes.append(0, some(10))
        outcomes.append(1, [odd])
        outcomes.append(2, some(10))
        with trio.fail_after(60):
            await write_all(registers)
        assert outcomes.of_writes == [(0, None), (1, CoordinatorNotAvailableError), (2, None)]


async def test_what_takes_long_to_encode_is_encoded_in_steps() -> None:
    partitions = TransactionLogValue.PartitionsSchema(topic="t", partition_ids=list(range(2_000)))
    large = TransactionLogValue(transaction_partitions=[partitions])
    async with queued() as (_, registers, outcomes):
        for number in range(20):
            outcomes.append(number, [Record(TransactionLogKey(transactional_id="key"), 0, large, 1)])
        assert len(list(registers.topic.gather())) == 20 * 8_000 // ENCODED_A_TURN


def begun(registers: Registers, outcomes: Outcomes, *numbers: int) -> None:
    """Has writes wanted by what has begun, for a client that is the only one."""

    async def append() -> None:
        for number in numbers:
            outcomes.append(number, some(10))

    Begun(append(), partial(registers.topic.write_wanted, at_once=True))


async def test_what_has_begun_for_an_only_client_is_durable_at_once_behind_what_was_queued() -> None:
    async with queued() as (broker, registers, outcomes):
        outcomes.append(0, some(10))
        begun(registers, outcomes, 1, 2)
        log = broker.partitions[TRANSACTIONS_TOPIC, registers.topic.partition_of("key")].log
        assert outcomes.of_writes == [(0, None), (1, None), (2, None)]
        assert log.durable_end_offset == log.log_end_offset > 2
        begun(registers, outcomes)
        await write_all(registers)
        assert len(outcomes.of_writes) == 3


@each_case("slow", [True, False])
async def test_what_is_not_durable_at_once_is_so_when_tasks_run(slow: bool) -> None:
    async with queued() as (broker, registers, outcomes):
        if slow:  # the disk was, lately
            broker.commits.may_wait_at = math.inf
        else:
            for number in range(10):  # much
                outcomes.append(number, some(LIMIT - 200))
        count = len(registers.topic.queue)
        begun(registers, outcomes, count)
        assert outcomes.of_writes == []
        begun(registers, outcomes, count + 1)
        await write_all(registers)
        assert outcomes.of_writes == [(number, None) for number in range(count + 2)]


@each_case("slow", [True, False])
async def test_what_has_begun_is_refused_where_the_disk_fails(slow: bool) -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs, clock := ManualClock(NOW))
    registers = Registers(broker, clock)
    async with registers.running():
        await registers.add("first", 1)
    outcomes = Outcomes(registers.topic)
    fs.inject(Fault("fdatasync", error=errno.EIO, sticky=True))
    if slow:
        broker.commits.may_wait_at = math.inf
    begun(registers, outcomes, 0)
    begun(registers, outcomes, 1)  # before the task has taken up the first
    await write_all(registers)
    assert outcomes.of_writes == [(number, CoordinatorNotAvailableError) for number in range(2)]
    broker.close()
