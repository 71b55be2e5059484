"""A broker on the forgetful disk that coordinates transactions, without listeners, and what it is asked in tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import TransactionState
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.errors import ConcurrentTransactionsError
from seglog_protocol.messages import AppendPartition, AppendRequest, AppendResult, CreateTopicRequest
from tests.appends import append_request
from tests.logs import ManualClock
from tests.unit.broker.coordinators.groups.service.running import NOW, open_broker

TOPIC = "orders"
KEY = "pay"


@asynccontextmanager
async def coordinating(
    fs: ForgetfulFileSystem, *flags: str, closes: bool = True, clock: ManualClock | None = None, **fields: Any
) -> AsyncIterator[Broker]:
    """A broker with the tasks of groups and transactions; what there was before is loaded."""
    broker = open_broker(fs, clock or ManualClock(NOW), *flags, **fields)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.groups.run)
        nursery.start_soon(broker.transactions.run)
        await trio.testing.wait_all_tasks_blocked()
        yield broker
        nursery.cancel_scope.cancel()
    if closes:
        broker.close()


async def with_orders(broker: Broker, partitions: int = 2) -> None:
    await broker.create_topic(CreateTopicRequest(TOPIC, partitions))


async def begun(
    broker: Broker, *partitions: int, version: int = 1, key: str = KEY, timeout_ms: int = 60_000
) -> ProducerIdAndEpoch:
    """A producer with an open transaction that has these partitions."""
    producer = await broker.transactions.init_producer(key, timeout_ms)
    await add(broker, producer, *partitions, version=version, key=key)
    return producer


async def add(broker: Broker, producer: ProducerIdAndEpoch, *partitions: int, version: int = 1, key: str = KEY) -> None:
    await broker.transactions.add_partitions(
        key, producer, [(TOPIC, number) for number in partitions or (0,)], version=version
    )


async def append(
    broker: Broker,
    producer: ProducerIdAndEpoch,
    *values: bytes,
    partition: int = 0,
    sequence: int = 0,
    ack: str = "disk",
    transactional: bool = True,
) -> AppendResult:
    builder = BatchBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    for value in values:
        builder.append(NOW, None, value)
    data = builder.build()
    request = AppendRequest([AppendPartition(TOPIC, partition, len(data))], ack)  # type: ignore[arg-type]
    pending = append_request(broker, request, memoryview(bytearray(data)))
    return (await pending.wait()).partitions[0]


async def end(
    broker: Broker, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 1, key: str = KEY
) -> ProducerIdAndEpoch:
    return await broker.transactions.end(key, producer, is_commit=commit, version=version)


async def ended(broker: Broker, key: str = KEY) -> TransactionState:
    """The state, when no transaction is being ended and a power cut would not change that."""
    described, is_durable = broker.transactions.describe, broker.transactions._runtime.is_durable
    await until(lambda: not described(key).facts.state.is_ending and is_durable(key))
    return broker.transactions.describe(key).facts.state


async def until(is_so: Callable[[], bool]) -> None:
    """Return when something is so."""
    while not is_so():  # noqa: ASYNC110 - of a broker that tells nobody
        await trio.sleep(0.01)


async def init_again(broker: Broker, key: str = KEY) -> ProducerIdAndEpoch:
    """A new producer, which asks as often as it has to."""
    while True:
        try:
            return await broker.transactions.init_producer(key, 60_000)
        except ConcurrentTransactionsError:
            await trio.sleep(0.01)


def ends(broker: Broker, partition: int = 0) -> tuple[int, int]:
    """The end of a partition, and its last stable offset."""
    log = broker.partitions.partition(TOPIC, partition).log
    return log.log_end_offset, log.last_stable_offset
