"""Clients in a loop that is not theirs: one sentence that says what to write instead."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest
import trio

import seglog
import seglog.asyncio
import seglog.trio
from tests.processes import Daemon

pytestmark = pytest.mark.filterwarnings("error")


async def _enter(client: seglog.Client) -> None:
    async with client:
        pass


async def _await(client: seglog.Client) -> None:
    await client


@pytest.mark.parametrize("use", [_enter, _await])
def test_the_blocking_client_is_not_for_coroutines(
    shared: Daemon, use: Callable[[seglog.Client], Coroutine[None, None, None]]
) -> None:
    clients = []

    async def main() -> None:
        clients.append(seglog.connect(shared.address))
        await use(clients[0])

    instead = r"on asyncio use seglog\.asyncio\.connect\(\), on trio seglog\.trio\.connect"
    with pytest.raises(seglog.ClientError, match=r"not for `async with` or `await`: " + instead):
        asyncio.run(main())
    with pytest.raises(seglog.ClientClosedError):
        clients[0].topics()


def test_the_client_on_trio_does_not_run_on_asyncio(shared: Daemon) -> None:
    async def main() -> None:
        async with seglog.trio.connect(shared.address):
            pass

    with pytest.raises(seglog.ClientError, match=r"runs on trio alone.*on asyncio use seglog\.asyncio\.connect"):
        asyncio.run(main())


def test_the_client_on_asyncio_does_not_run_on_trio(shared: Daemon) -> None:
    async def main() -> None:
        async with seglog.asyncio.connect(shared.address):
            pass

    with pytest.raises(seglog.ClientError, match=r"runs on asyncio alone.*on trio use seglog\.trio\.connect"):
        trio.run(main)
