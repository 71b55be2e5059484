"""``Consumer.poll`` on all faces, with a real broker."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import seglog
from seglog.testing import Broker
from tests.unit.clients.faces import Connect

LONG = 600.0
"""Nothing here waits so long, as what is waited for is there."""


@pytest.fixture
async def client(connect: Connect, group_broker: Broker) -> AsyncIterator[Any]:
    async with connect(group_broker.address) as client:
        await client.create_topic("t", 1)
        yield client


async def send(client: Any, *texts: str) -> None:
    """Send a batch."""
    async with client.producer("t", linger_ms=60_000) as producer:
        for text in texts:
            await producer.send(text, partition=0)


def texts(records: list[seglog.Record]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


@pytest.mark.parametrize("options", [{}, {"group": "g"}], ids=["alone", "in a group"])
async def test_poll_returns_a_batch_or_nothing_when_its_time_is_over(client: Any, options: dict[str, Any]) -> None:
    await send(client, "1", "2")
    await send(client, "3")
    async with client.consumer("t", start="earliest", follow=True, **options) as consumer:
        assert texts(await consumer.poll(LONG)) == ["1", "2"]
        assert texts(await consumer.poll(LONG)) == ["3"]
        for timeout in (0, 0.01, 0.3):
            assert await consumer.poll(timeout) == []
        await send(client, "4")
        found: list[str] = []
        while not found:
            found = texts(await consumer.poll(0))
        assert found == ["4"]
        assert consumer.positions() == {0: 4}
        await send(client, "5")
        async for record in consumer:
            assert record.value == b"5"
            break


async def test_records_that_poll_has_returned_are_committed_when_it_is_called_again(client: Any) -> None:
    await send(client, "1", "2")
    await send(client, "3")

    async def fail(count: int) -> list[str]:
        found: list[str] = []
        async with client.consumer("t", group="g", auto_commit_interval=3600) as consumer:
            for _ in range(count):
                found = texts(await consumer.poll(LONG))
            raise ZeroDivisionError(*found)

    for count, first in ((1, "1"), (2, "3"), (1, "3")):
        with pytest.raises(ZeroDivisionError) as raised:
            await fail(count)
        assert raised.value.args[0] == first


@pytest.mark.parametrize("bad", [-1, float("nan"), None, "1"])
async def test_a_timeout_of_poll_is_a_number_of_seconds(client: Any, bad: Any) -> None:
    async with client.consumer("t", follow=True) as consumer:
        with pytest.raises(ValueError, match=r"^timeout is a number of seconds, 0 or more, not "):
            await consumer.poll(bad)
        assert await consumer.poll(0) == []
