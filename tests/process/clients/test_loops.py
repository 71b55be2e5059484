"""Clients in a loop that is not theirs: one sentence that says what to write instead."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
import trio

import seglog
import seglog.asyncio
import seglog.trio
from tests.processes import Daemon
from tests.unit.clients.asyncio.conftest import RUNS, Run

pytestmark = pytest.mark.filterwarnings("error")


BLOCKS = (
    r"not for `async with`.* or `await`: on asyncio use seglog\.asyncio\.connect\(\), on trio seglog\.trio\.connect"
)
AWAITED = r"for `async with` and `async for`, not for `with` and `for`: where no loop runs use seglog\.connect\(\)"


async def _enter(used: Any) -> None:
    async with used:
        pass


async def _await(used: Any) -> None:
    await used


async def _loop_over(used: Any) -> None:
    async for _ in used:
        pass


@pytest.mark.parametrize("use", [_enter, _await])
def test_the_blocking_client_is_not_for_coroutines(
    shared: Daemon, use: Callable[[seglog.Client], Coroutine[None, None, None]]
) -> None:
    clients = []

    async def main() -> None:
        clients.append(seglog.connect(shared.address))
        await use(clients[0])

    with pytest.raises(seglog.ClientError, match=BLOCKS):
        asyncio.run(main())
    with pytest.raises(seglog.ClientClosedError):
        clients[0].topics()


def test_what_a_blocking_client_makes_is_not_for_coroutines(shared: Daemon) -> None:
    with seglog.connect(shared.address) as client, client.producer(topic(client)) as producer:
        made: list[tuple[Callable[[Any], Coroutine[None, None, None]], object]] = [
            (_await, producer.send(b"x")),
            (_enter, client.producer(producer.topic)),
            (_enter, client.consumer(producer.topic)),
            (_enter, client.consumer(producer.topic, group="g")),
            (_enter, client.transaction("t")),
            (_loop_over, client.consumer(producer.topic)),
        ]
        for use, found in made:
            with pytest.raises(seglog.ClientError, match=BLOCKS):
                asyncio.run(use(found))
        client.topics()


def topic(client: seglog.Client) -> str:
    client.create_topic("t", exist_ok=True)
    return "t"


@pytest.mark.parametrize("connect", [seglog.asyncio.connect, seglog.trio.connect])
def test_a_client_that_is_awaited_is_not_for_with(shared: Daemon, connect: Any) -> None:
    def enter() -> None:
        with connect(shared.address):
            pass

    async def in_loop() -> None:
        enter()

    for call in (enter, lambda: asyncio.run(in_loop()), lambda: trio.run(in_loop)):
        with pytest.raises(seglog.ClientError, match=AWAITED):
            call()


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_an_awaited_client_makes_is_not_for_with_and_is_to_be_opened(run: Run, shared: Daemon) -> None:
    async def main() -> None:
        with pytest.raises(seglog.ClientError, match=r"by `async with`, not by `await`.*AsyncExitStack"):
            await seglog.asyncio.connect(shared.address)  # type: ignore[misc]
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(seglog.asyncio.connect(shared.address))
            await client.create_topic("t", exist_ok=True)
            producer = await stack.enter_async_context(client.producer("t"))
            consumer = await stack.enter_async_context(client.consumer("t"))
            made: list[Any] = [producer, consumer, client.transaction("t"), client.producer("t"), client]
            for used in made:
                with pytest.raises(seglog.ClientError, match=AWAITED), used:
                    pass
            unopened: list[Any] = [client.consumer("t")]
            for used in (consumer, *unopened):
                with pytest.raises(seglog.ClientError, match=AWAITED):
                    list(used)
            with pytest.raises(seglog.ClientError, match=r"no records yet: .* opened by `async with`"):
                await _loop_over(*unopened)
            for name in ("send", "batches"):
                with pytest.raises(AttributeError, match=f"no {name} yet: .* opened by `async with`"):
                    getattr(client.producer("t"), name)

    run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_on_anyio_the_face_is_that_of_its_backend(shared: Daemon, backend: str) -> None:
    faces: dict[str, Any] = {"asyncio": seglog.asyncio, "trio": seglog.trio}

    async def main() -> None:
        right, wrong = faces.pop(backend), *faces.values()
        with pytest.raises(seglog.ClientError, match=rf"use seglog\.{backend}\.connect\(\)"):
            await _enter(wrong.connect(shared.address))
        async with right.connect(shared.address) as client:
            with anyio.move_on_after(60):
                await client.topics()
                return
        pytest.fail("it did not answer")

    anyio.run(main, backend=backend)
