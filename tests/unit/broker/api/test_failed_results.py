"""A reply with very many results leaves no reference cycles for the garbage collector."""

import gc
from collections.abc import Awaitable, Callable
from typing import Any

from seglog_broker.api.broker import Broker
from seglog_protocol import messages
from tests.appends import append_request
from tests.support import each_case
from tests.unit.broker.brokers import open_broker

RESULTS = 1_000

Ask = Callable[[Broker, str], Awaitable[None]]


async def _fetch(broker: Broker, topic: str) -> None:
    places = [messages.FetchPartition(topic, n, offset=9) for n in range(RESULTS)]
    (await broker.fetch(messages.FetchRequest(places))).close()


async def _append(broker: Broker, topic: str) -> None:
    places = [messages.AppendPartition(topic, n, 1) for n in range(RESULTS)]
    pending = append_request(broker, messages.AppendRequest(places, "os"), memoryview(bytearray(RESULTS)))
    await pending.write_rest()
    await pending.wait()


def _answer(request: Callable[[list[Any]], messages.Request], place: Callable[..., Any], *more: int) -> Ask:
    async def ask(broker: Broker, topic: str) -> None:
        await broker.answer(request([place(topic, number, *more) for number in range(RESULTS)]))

    return ask


ASKS = {
    "fetch": _fetch,
    "append": _append,
    "offsets": _answer(messages.OffsetsRequest, messages.OffsetsPartition),
    "flush": _answer(messages.FlushRequest, messages.FlushPartition),
    "truncate": _answer(messages.TruncateRequest, messages.TruncatePartition, 0),
    "lag": _answer(messages.LagRequest, messages.LagPartition, 0),
}


@each_case("topic", ["t", "unknown"])
@each_case("ask", ASKS.values(), ids=ASKS)
async def test_very_many_failed_results_are_freed_without_the_collector(ask: Ask, topic: str) -> None:
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
