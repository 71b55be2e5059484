"""Calls that are cancelled at any of their waits, on any loop: what holds of them and of the next call.

Each scenario takes a broker, a client, and ``sweep``, which cancels a call at one of its waits after the other, and
makes a check behind each.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from tests.unit.clients.fake_broker import FakeBroker

Sweep = Callable[[Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]], Awaitable[None]]
Scenario = Callable[[FakeBroker, Any, Sweep], Awaitable[None]]

TOPICS: Final = {"t": 1, "one": 1, "two": 2}


async def a_question(_broker: FakeBroker, client: Any, sweep: Sweep) -> None:
    async def check() -> None:
        assert len(await client.offsets("two")) == 2
        assert (await client.describe_topic("one")).name == "one"

    await sweep(lambda: client.offsets("one"), check)


async def sending(broker: FakeBroker, client: Any, sweep: Sweep, *, linger_ms: float) -> None:
    """What send returned for is sent once and in order, and nothing else."""
    async with client.producer("t", linger_ms=linger_ms, buffer_bytes=300) as producer:
        accepted: list[bytes] = []
        number = 0

        async def send_some() -> None:
            nonlocal number
            for _ in range(10):
                value = b"%05d" % number * 10
                number += 1
                await producer.send(value)
                accepted.append(value)

        async def check() -> None:
            await producer.flush()
            assert broker.values() == accepted

        await sweep(send_some, check)


async def waiting_for_deliveries(broker: FakeBroker, client: Any, sweep: Sweep) -> None:
    async with client.producer("t", linger_ms=0) as producer:
        deliveries: list[Any] = []

        async def send_and_wait() -> None:
            deliveries.append(await producer.send(b"x"))
            await deliveries[-1]
            await producer.flush()

        async def check() -> None:
            assert [(await delivery).offset for delivery in deliveries] == list(range(len(deliveries)))

        await sweep(send_and_wait, check)
        assert len(broker.values()) == len(deliveries)


async def reading(broker: FakeBroker, client: Any, sweep: Sweep) -> None:
    """Nothing is lost, and nothing read twice."""
    broker.fill(12)
    async with client.consumer("t", follow=True, start=0, partition_bytes=1) as consumer:
        seen: list[int] = []

        async def read() -> None:
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == broker.logs["t"][0].latest - 1:
                    return

        async def check() -> None:
            if len(seen) < broker.logs["t"][0].latest:
                await read()
            assert seen == list(range(broker.logs["t"][0].latest))
            broker.fill(12, first=len(seen))

        await sweep(read, check)


async def seeking(broker: FakeBroker, client: Any, sweep: Sweep) -> None:
    """A seek moves, or does not."""
    broker.fill(9)
    async with client.consumer("t", follow=True, start=4) as consumer:

        async def seek() -> None:
            async for record in consumer:
                assert record.offset == 4
                break
            await consumer.seek("@7000")

        async def check() -> None:
            (position,) = consumer.positions().values()
            assert position in {4, 5, 7}
            async for record in consumer:
                assert record.offset == position
                break
            await consumer.seek({0: 4})

        await sweep(seek, check)


SCENARIOS: Final[dict[str, Scenario]] = {
    "a question": a_question,
    "sending": partial(sending, linger_ms=0),
    "sending a little later": partial(sending, linger_ms=1),
    "waiting for deliveries": waiting_for_deliveries,
    "reading": reading,
    "seeking": seeking,
}
