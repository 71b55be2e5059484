"""What metrics and problems tell of transactions, from brokers with open, ended, held up and hanging ones."""

import errno
from typing import Any

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.broker_sources import TOLD_MAX
from seglog_broker.api.monitoring.samples import Column
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.errors import (
    InvalidRequestError,
    InvalidTransactionStateError,
    SeglogError,
    UnknownTopicError,
)
from seglog_protocol.messages import AbortTransactionReply, AbortTransactionRequest
from tests.logs import ManualClock
from tests.support import each_case
from tests.unit.broker.coordinators.groups.service.running import NOW
from tests.unit.broker.coordinators.transactions.service.running import (
    KEY,
    TOPIC,
    add,
    append,
    begun,
    coordinating,
    end,
    ended,
    init_again,
    until,
    with_orders,
)


def told(broker: Broker, name: str) -> Any:
    """The value of a family without labels; those of one with a label by it."""
    samples = []
    for piece in broker.monitoring.slices([name]):
        assert not any(isinstance(sample, Column) for sample in piece.samples)
        samples += piece.samples
    values = {tuple(sample.labels): sample.value for sample in samples}
    return values[()] if () in values else {label: value for (label,), value in values.items()}


async def hang(broker: Broker, producer_id: int, partition: int) -> None:
    """A transaction in a partition that no transactional id knows, as a directory of another broker may have it."""
    producer = ProducerIdAndEpoch(producer_id, 0)
    broker.partitions.partition(TOPIC, partition).log.producers.expect(*producer)
    result = await append(broker, producer, b"v", partition=partition)
    assert result.error is None


async def test_transactions_are_counted_while_they_are_open_and_by_how_they_end(autojump_clock: object) -> None:
    del autojump_clock
    clock = ManualClock(NOW)
    async with coordinating(ForgetfulFileSystem(), clock=clock) as broker:
        await with_orders(broker)
        assert told(broker, "seglog_transactions_ended_total") == {"aborted": 0, "committed": 0, "timed_out": 0}
        assert told(broker, "seglog_transaction_oldest_seconds") == 0
        one = await begun(broker, 0, 1)
        clock.now += 7_000
        two = await begun(broker, 1, key="other", timeout_ms=5_000)
        await append(broker, one, b"v")
        assert told(broker, "seglog_transactional_ids") == 2
        assert told(broker, "seglog_transactions_open") == 2
        assert told(broker, "seglog_transaction_oldest_seconds") == 7
        assert told(broker, "seglog_partitions_held_back") == 1
        await end(broker, one)
        await ended(broker)
        assert told(broker, "seglog_transactions_open") == 1
        assert told(broker, "seglog_partitions_held_back") == 0
        await append(broker, two, b"v", partition=1)
        await trio.sleep(5.1)  # of the loop's clock: its timeout
        await until(lambda: not broker.transactions.open.ids)
        again = await init_again(broker)
        await add(broker, again)
        await init_again(broker)  # which aborts it
        assert told(broker, "seglog_transactions_ended_total") == {"aborted": 1, "committed": 1, "timed_out": 1}
        assert told(broker, "seglog_transactions_open") == 0
        assert list(broker.problems) == []


async def test_an_end_that_is_held_up_is_a_problem_until_it_is_written(autojump_clock: object) -> None:
    del autojump_clock
    fs = ForgetfulFileSystem()
    async with coordinating(fs, closes=False) as broker:
        await with_orders(broker)
        producer = await begun(broker, 0, 1)
        for partition in 0, 1:
            await append(broker, producer, b"v", partition=partition)
        fs.inject(Fault("pwritev", f"{TOPIC}-1/00000000000000000000.log", error=errno.ENOSPC, sticky=True))
        await end(broker, producer)
        await until(lambda: broker.transactions.describe(KEY).held_up is not None)
        assert told(broker, "seglog_transactions_held_up") == 1
        assert told(broker, "seglog_transaction_markers_waiting") == 1
        assert told(broker, "seglog_transactions_open") == 1
        [held_up] = [problem.sentence for problem in broker.problems if problem.kind == "transaction"]
        assert held_up.startswith(f"the transaction of {KEY} is committed, and its end is held up in 1 partition, ")
        fs.heal()
        await ended(broker)
        assert told(broker, "seglog_transactions_held_up") == told(broker, "seglog_transaction_markers_waiting") == 0
        assert [problem for problem in broker.problems if problem.kind == "transaction"] == []


async def test_a_transaction_that_nothing_will_end_is_named_with_how_to_abort_it() -> None:
    async with coordinating(ForgetfulFileSystem()) as broker:
        await with_orders(broker)
        producer = await begun(broker, 0)
        await append(broker, producer, b"v")
        assert told(broker, "seglog_transactions_hanging") == 0
        await hang(broker, 4711, 1)
        assert told(broker, "seglog_transactions_hanging") == 1
        assert told(broker, "seglog_partitions_held_back") == 2
        [(kind, problem)] = broker.problems
        assert kind == "transaction"
        assert problem.startswith(f"{TOPIC}-1 has a hanging transaction: producer 4711 began it at offset 0, ")
        assert problem.endswith(f"`seglog transaction abort-hanging {TOPIC} 1 0`")
        asked = AbortTransactionRequest(topic=TOPIC, partition=1, first_offset=0)
        reply, _ = await broker.answer(asked)
        assert isinstance(reply, AbortTransactionReply)
        assert told(broker, "seglog_transactions_hanging") == 0
        assert list(broker.problems) == []


@each_case(
    ("asked", "error", "why"),
    [
        (
            AbortTransactionRequest(topic=TOPIC, partition=0, first_offset=0),
            InvalidTransactionStateError,
            "that of pay",
        ),
        (
            AbortTransactionRequest(topic=TOPIC, partition=0, first_offset=9),
            InvalidTransactionStateError,
            "offset 9 of",
        ),
        (AbortTransactionRequest(topic="none", partition=0, first_offset=0), UnknownTopicError, "none"),
        (AbortTransactionRequest(topic=TOPIC, partition=0), InvalidRequestError, "topic, partition and first_offset"),
        (AbortTransactionRequest(KEY, TOPIC), InvalidRequestError, "topic, partition and first_offset"),
        (AbortTransactionRequest(), InvalidRequestError, "topic, partition and first_offset"),
    ],
)
async def test_what_does_not_hang_is_not_aborted_as_that(
    asked: AbortTransactionRequest, error: type[SeglogError], why: str
) -> None:
    async with coordinating(ForgetfulFileSystem()) as broker:
        await with_orders(broker)
        producer = await begun(broker, 0)
        await append(broker, producer, b"v")
        with pytest.raises(error, match=why):
            await broker.answer(asked)
        assert told(broker, "seglog_transactions_open") == 1


async def test_an_open_transaction_does_not_hang_after_a_start_and_one_that_hung_still_does() -> None:
    fs = ForgetfulFileSystem()
    async with coordinating(fs) as broker:
        await with_orders(broker)
        producer = await begun(broker, 0)
        await append(broker, producer, b"v")
        await hang(broker, 4711, 1)
    async with coordinating(fs) as broker:
        await until(lambda: len(broker.transactions.open) == 1)
        assert [found.partition for found in broker.transactions.hanging() if found is not None] == [1]


async def test_of_very_many_that_hang_some_are_named() -> None:
    async with coordinating(ForgetfulFileSystem()) as broker:
        await with_orders(broker, TOLD_MAX + 5)
        for partition in range(TOLD_MAX + 5):
            await hang(broker, 4711 + partition, partition)
        assert told(broker, "seglog_transactions_hanging") == TOLD_MAX + 5
        assert len(list(broker.problems)) == TOLD_MAX
