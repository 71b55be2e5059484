"""The blocking face of the client and that on trio under one: what they share is tested once, in tests that await.

``async with face(topics={"t": 3}) as (broker, client)``: on trio the client is the real one, with a broker in memory;
of the blocking one it is ``Awaited``, with a broker in a thread. What is particular to a face (threads, forks,
cancellation, how long it waits) has tests of its own; so have the loop and the sockets of the face on asyncio, whose
client is the one on trio.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import trio

import seglog
import seglog.trio
from seglog import raw
from seglog.trio import raw as trio_raw
from seglog_protocol.messages import Message
from tests.unit.clients.fake_broker import FakeBroker, fake_broker
from tests.unit.clients.trio.memory_broker import MemoryBroker, memory_broker

Face = Callable[..., AbstractAsyncContextManager[tuple[FakeBroker, Any]]]
Connect = Callable[..., AbstractAsyncContextManager[Any]]

_PLAIN: Final = {"positions", "records_behind", "pause", "resume", "rewind", "done", "batches", "stop", "__iter__"}
"""What is not awaited on trio either."""
_WRAPPED: Final = (seglog.Client, seglog.Producer, seglog.Consumer, seglog.Delivery, seglog.Queue)
RESULT_SECONDS: Final = 30.0


class Awaited:
    """An object of the blocking face whose calls are awaited; a delivery is awaited for its receipt."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blocking, name)
        if name == "batches":
            return lambda: Items(found())
        if name == "transaction":
            return lambda *arguments, **more: Awaited(found(*arguments, **more))
        if not callable(found) or name in _PLAIN:
            return found
        return lambda *arguments, **more: Call(found, arguments, more)

    def __aiter__(self) -> "Items":
        return Items(iter(self._blocking))

    def __await__(self) -> Generator[Any, Any, seglog.Receipt]:
        yield from ()
        receipt: seglog.Receipt = self._blocking.result(RESULT_SECONDS)
        return receipt

    async def __aenter__(self) -> Self:
        self._blocking.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocking.__exit__(kind, error, trace)


class Call:
    """A call of the blocking face: made when it is awaited, or entered as a block."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
        plain = [each._blocking if isinstance(each, Awaited) else each for each in arguments]
        self._made = function(*plain, **more)
        if isinstance(self._made, _WRAPPED):
            self._made = Awaited(self._made)

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from ()
        return self._made

    async def __aenter__(self) -> Any:
        return await self._made.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._made.__aexit__(*error)


class Items:
    """A blocking iterator for ``async for``."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        for item in self._items:
            return item
        raise StopAsyncIteration


@asynccontextmanager
async def blocking_client(address: str, **options: Any) -> AsyncGenerator[Any, None]:
    """A client of the blocking face."""
    with seglog.connect(address, **options) as client:
        yield Awaited(client)


@asynccontextmanager
async def blocking_face(**options: Any) -> AsyncGenerator[tuple[FakeBroker, Any], None]:
    """A broker in a thread, and a client of the blocking face."""
    with fake_broker(**options) as broker:
        async with blocking_client(broker.address) as client:
            yield broker, client


@asynccontextmanager
async def trio_face(**options: Any) -> AsyncGenerator[tuple[FakeBroker, Any], None]:
    """A broker in memory, and a client of the face on trio."""
    async with memory_broker(**options) as broker, broker.connect() as client:
        yield broker, client


FACES: Final[dict[str, Face]] = {"blocking": blocking_face, "trio": trio_face}
CLIENTS: Final[dict[str, Connect]] = {"blocking": blocking_client, "trio": seglog.trio.connect}


async def heard(broker: FakeBroker, kind: type[Message], count: int = 1) -> None:
    """Wait until so many requests of a kind have come."""
    if isinstance(broker, MemoryBroker):
        await broker.heard(kind, count)
        return
    with broker.changed:
        assert broker.changed.wait_for(lambda: sum(isinstance(r, kind) for r in broker.requests) >= count, 60)


async def together(client: Any, *calls: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of calls that are made at the same time: by tasks on trio, by threads of the blocking face."""
    results: list[Any] = [None] * len(calls)

    async def call(number: int) -> None:
        results[number] = await calls[number]()

    if isinstance(client, Awaited):
        with ThreadPoolExecutor(len(calls)) as pool:
            list(pool.map(lambda number: trio.run(call, number), range(len(calls))))
        return results
    async with trio.open_nursery() as nursery:
        for number in range(len(calls)):
            nursery.start_soon(call, number)
    return results


# --- Whole batches ----------------------------------------------------------------------------------------------------


async def append(client: Any, batches: list[raw.RawBatch], **options: Any) -> list[Any]:
    """``raw.append`` of the client's face."""
    if isinstance(client, Awaited):
        return raw.append(client._blocking, batches, **options)
    return await trio_raw.append(client, batches, **options)


async def flush(client: Any, topic: str, partitions: list[int]) -> dict[int, int]:
    """``raw.flush`` of the client's face."""
    if isinstance(client, Awaited):
        return raw.flush(client._blocking, topic, partitions)
    return await trio_raw.flush(client, topic, partitions)


async def fetched(client: Any, topic: str, partition: int, start: int, end: int, **options: Any) -> list[Any]:
    """All batches of ``raw.fetch`` of the client's face."""
    if isinstance(client, Awaited):
        return list(raw.fetch(client._blocking, topic, partition, start, end, **options))
    async with trio_raw.fetch(client, topic, partition, start, end, **options) as batches:
        return [batch async for batch in batches]
