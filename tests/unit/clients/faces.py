"""All faces of the client under one, so that what they share is tested once, in tests that await.

``async with face(topics={"t": 3}) as (broker, client)``: on trio the client is the real one, with a broker in memory;
of the blocking one it is ``Awaited``, of the one on asyncio ``Elsewhere``, with a broker in a thread. What is
particular to a face (threads, forks, cancellation, how long it waits) has tests of its own.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import trio

import seglog
import seglog.asyncio
import seglog.trio
from seglog import raw
from seglog.asynchronous.client import Explain, Opening
from seglog.asynchronous.consumer import Items as AsyncItems
from seglog.asyncio import raw as asyncio_raw
from seglog.trio import raw as trio_raw
from seglog_protocol.messages import Message
from tests.unit.clients.fake_broker import FakeBroker, fake_broker
from tests.unit.clients.trio.memory_broker import MemoryBroker, memory_broker

Face = Callable[..., AbstractAsyncContextManager[tuple[FakeBroker, Any]]]
Connect = Callable[..., AbstractAsyncContextManager[Any]]

_PLAIN: Final = {"positions", "records_behind", "pause", "resume", "rewind", "done", "batches", "__iter__"}
"""What is not awaited on trio either."""
_WRAPPED: Final = (seglog.Client, seglog.Producer, seglog.Consumer, seglog.Delivery)
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


class LoopInThread:
    """A loop of asyncio in a thread; calls are handed to it, and waited for."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns or raises in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(2 * RESULT_SECONDS)

    def close(self) -> None:
        """End the loop, in which no task may be left."""
        left = self.run(_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert left == []


async def _tasks() -> list[str]:
    await asyncio.sleep(0)
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


_THERE: Final = (
    seglog.asyncio.Client,
    seglog.asyncio.Producer,
    seglog.asyncio.Consumer,
    seglog.asyncio.Delivery,
    seglog.asyncio.Transaction,
    AsyncItems,
    Coroutine,
    Explain,
    Opening,
)


class Elsewhere:
    """An object of the face on asyncio, of which all that is done is done in a loop in a thread."""

    def __init__(self, there: Any, thread: LoopInThread) -> None:
        self._there = there
        self._thread = thread

    def _wrapped(self, found: Any) -> Any:
        return Elsewhere(found, self._thread) if isinstance(found, _THERE) else found

    def _done(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        async def do() -> Any:
            return function(*(each._there if isinstance(each, Elsewhere) else each for each in arguments), **more)

        return self._wrapped(self._thread.run(do()))

    def __getattr__(self, name: str) -> Any:
        found = self._wrapped(getattr(self._there, name))
        return partial(self._done, found) if callable(found) else found

    def __aiter__(self) -> Any:
        return self._done(self._there.__aiter__)

    async def __anext__(self) -> Any:
        return self._thread.run(self._there.__anext__())

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from ()

        async def do() -> Any:
            return await self._there

        return self._wrapped(self._thread.run(do()))

    async def __aenter__(self) -> Any:
        return self._wrapped(self._thread.run(self._there.__aenter__()))

    async def __aexit__(self, *error: object) -> None:
        self._thread.run(self._there.__aexit__(*error))


@asynccontextmanager
async def asyncio_client(address: str, **options: Any) -> AsyncGenerator[Any, None]:
    """A client of the face on asyncio."""
    thread = LoopInThread()
    try:
        async with Elsewhere(seglog.asyncio.connect(address, **options), thread) as client:
            yield client
    finally:
        thread.close()


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
async def asyncio_face(**options: Any) -> AsyncGenerator[tuple[FakeBroker, Any], None]:
    """A broker in a thread, and a client of the face on asyncio."""
    with fake_broker(**options) as broker:
        async with asyncio_client(broker.address) as client:
            yield broker, client


@asynccontextmanager
async def trio_face(**options: Any) -> AsyncGenerator[tuple[FakeBroker, Any], None]:
    """A broker in memory, and a client of the face on trio."""
    async with memory_broker(**options) as broker, broker.connect() as client:
        yield broker, client


FACES: Final[dict[str, Face]] = {"blocking": blocking_face, "trio": trio_face, "asyncio": asyncio_face}
CLIENTS: Final[dict[str, Connect]] = {
    "blocking": blocking_client,
    "trio": seglog.trio.connect,
    "asyncio": asyncio_client,
}


async def heard(broker: FakeBroker, kind: type[Message], count: int = 1) -> None:
    """Wait until so many requests of a kind have come."""
    if isinstance(broker, MemoryBroker):
        await broker.heard(kind, count)
        return
    with broker.changed:
        assert broker.changed.wait_for(lambda: sum(isinstance(r, kind) for r in broker.requests) >= count, 60)


async def together(client: Any, *calls: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of calls that are made at the same time: by tasks on trio, by threads of the other faces."""
    results: list[Any] = [None] * len(calls)

    async def call(number: int) -> None:
        results[number] = await calls[number]()

    if isinstance(client, Awaited | Elsewhere):
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
    if isinstance(client, Elsewhere):
        done: list[Any] = await client._done(asyncio_raw.append, client, batches, **options)
        return done
    return await trio_raw.append(client, batches, **options)


async def flush(client: Any, topic: str, partitions: list[int]) -> dict[int, int]:
    """``raw.flush`` of the client's face."""
    if isinstance(client, Awaited):
        return raw.flush(client._blocking, topic, partitions)
    if isinstance(client, Elsewhere):
        flushed: dict[int, int] = await client._done(asyncio_raw.flush, client, topic, partitions)
        return flushed
    return await trio_raw.flush(client, topic, partitions)


async def fetched(client: Any, topic: str, partition: int, start: int, end: int, **options: Any) -> list[Any]:
    """All batches of ``raw.fetch`` of the client's face."""
    if isinstance(client, Awaited):
        return list(raw.fetch(client._blocking, topic, partition, start, end, **options))
    if isinstance(client, Elsewhere):

        async def read() -> list[Any]:
            async with asyncio_raw.fetch(client._there, topic, partition, start, end, **options) as batches:
                return [batch async for batch in batches]

        found: list[Any] = await client._done(read)
        return found
    async with trio_raw.fetch(client, topic, partition, start, end, **options) as batches:
        return [batch async for batch in batches]
