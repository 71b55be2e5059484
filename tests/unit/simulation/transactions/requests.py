"""What clients of the simulation ask for until it is answered, and the topics that they use."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    DiskFullError,
    TopicExistsError,
)
from seglog_protocol.messages import Ack, AppendResult, CreateTopicRequest
from tests.appends import append_batch
from tests.unit.simulation.transactions.world import CrashedError, World

LATER: Final = (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    DiskFullError,
)
"""Errors of requests that are made again a little later."""

KEPT: Final = "kept"
DELETED: Final = "deleted"
"""A topic that is deleted now and then, and made again."""
INPUT: Final = "input"
"""A topic with records, for whose offsets groups commit."""
SHARED: Final = "shared"
"""A topic whose partitions the members of a group share."""
PARTITIONS: Final = {KEPT: 3, DELETED: 2, INPUT: 1, SHARED: 3}
INPUT_RECORDS: Final = 200
SHARED_RECORDS: Final = 400
RECORDS_A_BATCH: Final = 100


async def patiently(world: World, request: Callable[[Broker], Awaitable[object]]) -> None:
    """Make a request until it is answered, also by later brokers. Raises other errors."""
    while True:
        try:
            await world.call(request)
        except CrashedError:
            continue
        except LATER:
            await trio.sleep(0.02)
        else:
            return


def append_of(topic: str, partition: int, batch: bytes, ack: Ack) -> Callable[[Broker], Awaitable[AppendResult]]:
    """The request for one append."""

    async def append(broker: Broker) -> AppendResult:
        return (await append_batch(broker, batch, topic, partition, ack=ack).wait()).partitions[0]

    return append


async def make_topics(world: World) -> None:
    """Of a broker that does not crash: the topics, and the records whose offsets are committed."""
    for topic in PARTITIONS:
        await make_topic(world, topic)
    batch = encode_batch([(1_000, None, b"v", ()) for _ in range(RECORDS_A_BATCH)])
    for topic, count in (INPUT, INPUT_RECORDS), (SHARED, SHARED_RECORDS):
        for partition in range(PARTITIONS[topic]):
            for _ in range(count // RECORDS_A_BATCH):
                result = await world.call(append_of(topic, partition, batch, "disk"))
                assert result.error is None


async def make_topic(world: World, topic: str) -> None:
    request = CreateTopicRequest(topic, PARTITIONS[topic])
    try:
        await patiently(world, lambda broker: broker.create_topic(request))
    except TopicExistsError:
        return
