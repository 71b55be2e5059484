"""``Broker``: a real broker in a test, by ``with``; and ``AsyncBroker``, by ``async with``, which blocks no loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import sniffio
import trio

from seglog.core.security import Secret
from seglog.testing.accounts import Password
from seglog.testing.blocking import BlockingBroker
from seglog.testing.errors import BrokerStoppedError, NotArrivedError, NotPossibleError
from seglog.testing.interrupts import thread_of

__all__ = ["AsyncBroker", "Broker", "BrokerStoppedError", "NotArrivedError", "NotPossibleError"]

P = ParamSpec("P")
T = TypeVar("T")


async def _in_thread(fn: Callable[[], T], threads: set[threading.Thread]) -> T:
    """What ``fn()`` returns, run in a thread that has ended by then. If cancelled, it stays in ``threads``.

    Neither library's pool of threads is used: those threads outlive the test.
    """
    ended: trio.Event | asyncio.Event
    soon: Callable[[Callable[[], object]], object]
    if sniffio.current_async_library() == "trio":
        ended, soon = trio.Event(), trio.lowlevel.current_trio_token().run_sync_soon
    else:
        ended, soon = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe

    def tell(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            soon(ended.set)

    thread, done = thread_of(fn, "seglog testing call")
    done.add_done_callback(tell)
    threads.add(thread)
    thread.start()
    await ended.wait()
    thread.join()
    threads.discard(thread)
    return done.result()


def _awaited(
    method: Callable[Concatenate[BlockingBroker, P], T],
) -> "Callable[Concatenate[AsyncBroker, P], Coroutine[Any, Any, T]]":
    """``method`` of the blocking broker, or what a subclass has in its place, called in a thread."""

    @wraps(method)
    async def call(self: "AsyncBroker", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._call(partial(getattr(self.sync, method.__name__), *args, **kwargs))

    call.__qualname__ = f"AsyncBroker.{method.__name__}"
    return call


class _AtOnce(property, Generic[T]):
    """A property or method of the blocking broker that takes no time."""

    def __init__(self, of: Callable[[BlockingBroker], T]) -> None:
        super().__init__(lambda broker: of(broker.sync))

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = getattr(getattr(BlockingBroker, name, None), "__doc__", None)

    @overload
    def __get__(self, broker: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self, broker: Any, owner: type | None = None, /) -> T: ...
    def __get__(self, broker: Any, owner: type | None = None, /) -> Any:
        return super().__get__(broker, owner)


class AsyncBroker:
    """What ``async with Broker(...)`` gives: the methods of ``Broker``, to be awaited."""

    def __init__(self, broker: "BlockingBroker") -> None:
        self.sync = broker
        """The ``Broker``, for what takes no time."""
        self._threads: set[threading.Thread] = set()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """See Broker."""
        self.sync.close()
        while self._threads:  # of calls that were cancelled, which end now
            self._threads.pop().join()

    async def _call(self, fn: Callable[[], T]) -> T:
        return await _in_thread(fn, self._threads)

    def __repr__(self) -> str:
        return repr(self.sync).replace("Broker", "AsyncBroker", 1)

    address = _AtOnce(lambda broker: broker.address)
    kafka_address = _AtOnce(lambda broker: broker.kafka_address)
    server = _AtOnce(lambda broker: broker.server)
    ca = _AtOnce(lambda broker: broker.ca)
    client = _AtOnce(lambda broker: broker.client)  # it blocks
    client_config = _AtOnce(lambda broker: broker.client_config)
    kafka_config = _AtOnce(lambda broker: broker.kafka_config)
    directory = _AtOnce(lambda broker: broker.directory)
    is_running = _AtOnce(lambda broker: broker.is_running)
    log = _AtOnce(lambda broker: broker.log)
    pid = _AtOnce(lambda broker: broker.pid)
    pending_faults = _AtOnce(lambda broker: broker.pending_faults)

    start = _awaited(BlockingBroker.start)
    stop = _awaited(BlockingBroker.stop)
    restart = _awaited(BlockingBroker.restart)
    crash = _awaited(BlockingBroker.crash)
    power_cut = _awaited(BlockingBroker.power_cut)
    create_topic = _awaited(BlockingBroker.create_topic)
    produce = _awaited(BlockingBroker.produce)
    records = _awaited(BlockingBroker.records)
    wait_for = _awaited(BlockingBroker.wait_for)
    wait_for_group = _awaited(BlockingBroker.wait_for_group)
    delete_user = _awaited(BlockingBroker.delete_user)
    full_disk = _awaited(BlockingBroker.full_disk)
    slow_disk = _awaited(BlockingBroker.slow_disk)
    jump_clock = _awaited(BlockingBroker.jump_clock)
    cut_connections = _awaited(BlockingBroker.cut_connections)
    refuse = _awaited(BlockingBroker.refuse)
    delay = _awaited(BlockingBroker.delay)
    fail_next = _awaited(BlockingBroker.fail_next)
    lose_next_ack = _awaited(BlockingBroker.lose_next_ack)
    expire_session = _awaited(BlockingBroker.expire_session)
    rebalance = _awaited(BlockingBroker.rebalance)
    heal = _awaited(BlockingBroker.heal)

    async def create_user(self, name: str, password: Password) -> None:
        """See Broker."""
        hidden = Secret(password)  # a traceback may show the variables of this call
        del password
        await self._call(lambda: self.sync.create_user(name, hidden))

    async def set_password(self, name: str, password: Password) -> None:
        """See Broker."""
        hidden = Secret(password)
        del password
        await self._call(lambda: self.sync.set_password(name, hidden))


class Broker(BlockingBroker):
    """A real broker, native and on Kafka's wire, in a thread of this process or, with ``process``, beside it.

    It keeps its data in ``directory``, by default a temporary one that it removes, or in ``memory``. ``listen`` and
    ``kafka`` are where it listens, by default on free ports. Keys of the configuration are keyword arguments
    (``log_retention_ms=1000`` is ``log.retention.ms``) or in ``config``. ``seed`` makes what is random the same again.

    With ``users``, passwords by name, whoever connects has to log in, on both wires; those in ``admins`` administer.
    With ``tls`` both wires are encrypted, with a certificate of the authority ``ca``.

    Use it by ``with``, or by ``start`` and ``close``; by ``async with`` from trio and asyncio, where it is an
    ``AsyncBroker``. Any thread may use it, but no process that was forked.
    """

    async def __aenter__(self) -> AsyncBroker:
        self._async = AsyncBroker(self)
        return await self._async.__aenter__()

    async def __aexit__(self, *reason: object) -> None:
        await self._async.__aexit__(*reason)
