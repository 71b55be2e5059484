"""A reply with very many results leaves no reference cycles for the garbage collector."""

import gc
from collections.abc import Awaitable, Callable

from seglog_broker.api.broker import Broker
from seglog_protocol import messages
from tests.appends import append_request
from tests.support import each_case
from tests.unit.broker.brokers import open_broker

RESULTS = 1_000


async def _fetch(broker: Broker, topic: str) -> None:
    answer = await broker.fetch(
        messages.FetchRequest([messages.FetchPartition(topic, n, offset=9) for n in range(RESULTS)])
    )
    answer.close()


async def _append(broker: Broker, topic: str) -> None:
    places = [messages.AppendPartition(topic, n, 1) for n in range(RESULTS)]
    pending = append_request(broker, messages.AppendRequest(places, "os"), memoryview(bytearray(RESULTS)))
    await pending.write_rest()
    await pending.wait()


async def _offsets(broker: Broker, topic: str) -> None:
    await broker.offsets(messages.OffsetsRequest([messages.OffsetsPartition(topic, n) for n in range(RESULTS)]))


async def _flush(broker: Broker, topic: str) -> None:
    await broker.flush(messages.FlushRequest([messages.FlushPartition(topic, n) for n in range(RESULTS)]))


async def _truncate(broker: Broker, topic: str) -> None:
    await broker.truncate(messages.TruncateRequest([messages.TruncatePartition(topic, n, 0) for n in range(RESULTS)]))


async def _lag(broker: Broker, topic: str) -> None:
    await broker.answer(messages.LagRequest([messages.LagPartition(topic, n, 0) for n in range(RESULTS)]))


@each_case("topic", ["t", "unknown"])
@each_case("ask", [_fetch, _append, _offsets, _flush, _truncate, _lag])
async def test_very_many_failed_results_are_freed_without_the_collector(
    ask: Callable[[Broker, str], Awaitable[None]], topic: str
) -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("t", 1))
    await ask(broker, topic)
    gc.collect()
    gc.disable()
    try:
        await ask(broker, topic)
        assert gc.collect() < RESULTS
    finally:
        gc.enable()
    broker.close()
