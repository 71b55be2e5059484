"""The topic of a coordinator: what becomes of each write, and in what order its callbacks come."""

import errno
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.state_machine import Record
from seglog_broker.coordinators.topic import Encoded, StateTopic
from seglog_broker.runtime.begun import Begun
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import Fault
from seglog_protocol.errors import CoordinatorNotAvailableError, MessageTooLargeError, SeglogError
from seglog_protocol.internal_topics import TRANSACTIONS_TOPIC
from seglog_protocol.kafka.messages import TransactionLogKey, TransactionLogValue
from seglog_protocol.messages import AlterTopicRequest
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker
from tests.unit.broker.coordinators.register import Registers

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
            await registers.topic.run()
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
        count = len(registers.topic._queue)
        begun(registers, outcomes, count)
        assert outcomes.of_writes == []
        begun(registers, outcomes, count + 1)
        await write_all(registers)
        assert outcomes.of_writes == [(number, None) for number in range(count + 2)]


async def test_what_has_begun_is_refused_where_the_disk_fails() -> None:
    fs = ForgetfulFileSystem()
    broker = open_broker(fs, clock := ManualClock(NOW))
    registers = Registers(broker, clock)
    async with registers.running():
        await registers.add("first", 1)
    outcomes = Outcomes(registers.topic)
    fs.inject(Fault("fdatasync", error=errno.EIO, sticky=True))
    begun(registers, outcomes, 0)
    await write_all(registers)
    assert outcomes.of_writes == [(0, CoordinatorNotAvailableError)]
    broker.close()
