"""``AsyncBroker``: a ``Broker`` for tests that run in trio or asyncio, whose loop it never blocks."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import sniffio
import trio

from seglog.core.delivery import Receipt
from seglog.core.records import Record
from seglog.core.security import SCRAM_MECHANISMS, Mechanism, Secret
from seglog.groups import GroupDescription
from seglog.testing.reading import WAIT_SECONDS
from seglog_protocol.messages import Ack, ConfigValue, CreateTopicReply

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.testing.accounts import Password
    from seglog.testing.blocking import BlockingBroker, Headers
    from seglog_broker.testing.request_faults import Fault
    from seglog_protocol.errors import SeglogError

T = TypeVar("T")


async def _in_thread(fn: Callable[[], T], threads: set[threading.Thread]) -> T:
    """What ``fn()`` returns, run in a thread that has ended by then. If cancelled, it stays in ``threads``.

    Neither library's pool of threads is used: those threads outlive the test.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(fn())
        except BaseException as error:  # noqa: BLE001 - the caller's
            failure.append(error)
        finally:
            tell()

    wait: Callable[[], Awaitable[object]]
    if sniffio.current_async_library() == "trio":
        ended = trio.Event()
        token = trio.lowlevel.current_trio_token()
        wait = ended.wait

        def tell() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

    else:
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        wait = finished.wait

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finished.set)

    thread = threading.Thread(target=run, name="seglog testing call", daemon=True)
    threads.add(thread)
    thread.start()
    await wait()
    thread.join()
    threads.discard(thread)
    if failure:
        raise failure[0]
    return outcome[0]


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
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self.sync.close()
        while self._threads:  # of calls that were cancelled, which end now
            self._threads.pop().join()

    async def _call(self, fn: Callable[[], T]) -> T:
        return await _in_thread(fn, self._threads)

    def __repr__(self) -> str:
        return repr(self.sync).replace("Broker", "AsyncBroker", 1)

    @property
    def address(self) -> str:
        """See Broker."""
        return self.sync.address

    @property
    def kafka_address(self) -> str:
        """See Broker."""
        return self.sync.kafka_address

    @property
    def pid(self) -> int:
        """See Broker."""
        return self.sync.pid

    @property
    def pending_faults(self) -> "list[Fault]":
        """See Broker."""
        return self.sync.pending_faults

    @property
    def client(self) -> "Client":
        """See Broker. The client blocks."""
        return self.sync.client

    @property
    def server(self) -> str:
        """See Broker."""
        return self.sync.server

    @property
    def ca(self) -> str | None:
        """See Broker."""
        return self.sync.ca

    def client_config(self, user: str | None = None) -> dict[str, Any]:
        """See Broker. It takes no time."""
        return self.sync.client_config(user)

    def kafka_config(self, user: str | None = None, mechanism: Mechanism = SCRAM_MECHANISMS[0]) -> dict[str, str]:
        """See Broker. It takes no time."""
        return self.sync.kafka_config(user, mechanism)

    @property
    def directory(self) -> str:
        """See Broker."""
        return self.sync.directory

    @property
    def is_running(self) -> bool:
        """See Broker."""
        return self.sync.is_running

    @property
    def log(self) -> list[dict[str, Any]]:
        """See Broker."""
        return self.sync.log

    # --- To be awaited ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See Broker."""
        self._close()

    async def start(self) -> None:
        """See Broker."""
        await self._call(self.sync.start)

    async def stop(self) -> None:
        """See Broker."""
        await self._call(self.sync.stop)

    async def restart(self) -> None:
        """See Broker."""
        await self._call(self.sync.restart)

    async def crash(self) -> None:
        """See Broker."""
        await self._call(self.sync.crash)

    async def power_cut(self, *, random: bool = False) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.power_cut(random=random))

    async def create_topic(self, name: str, partitions: int = 1, **config: ConfigValue) -> CreateTopicReply:
        """See Broker."""
        return await self._call(lambda: self.sync.create_topic(name, partitions, **config))

    async def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: "Headers" = (),
        ack: Ack = "os",
    ) -> list[Receipt]:
        """See Broker."""
        return await self._call(
            lambda: self.sync.produce(
                topic, *values, key=key, partition=partition, timestamp=timestamp, headers=headers, ack=ack
            )
        )

    async def records(self, topic: str) -> list[Record]:
        """See Broker."""
        return await self._call(lambda: self.sync.records(topic))

    async def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: float = WAIT_SECONDS,  # noqa: ASYNC109 - as in Broker
        *,
        where: Callable[[Record], bool] | None = None,
    ) -> list[Record]:
        """See Broker."""
        return await self._call(lambda: self.sync.wait_for(topic, count, timeout, where=where))

    async def wait_for_group(
        self,
        group: str,
        members: int = 1,
        timeout: float = WAIT_SECONDS,  # noqa: ASYNC109 - as in Broker
        *,
        after: int = -1,
    ) -> GroupDescription:
        """See Broker."""
        return await self._call(lambda: self.sync.wait_for_group(group, members, timeout, after=after))

    # --- Accounts -----------------------------------------------------------------------------------------------------

    async def create_user(self, name: str, password: "Password") -> None:
        """See Broker."""
        hidden = Secret(password)
        del password
        await self._call(lambda: self.sync.create_user(name, hidden))

    async def set_password(self, name: str, password: "Password") -> None:
        """See Broker."""
        hidden = Secret(password)
        del password
        await self._call(lambda: self.sync.set_password(name, hidden))

    async def delete_user(self, name: str) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.delete_user(name))

    # --- Faults -------------------------------------------------------------------------------------------------------

    async def full_disk(self, full: bool = True) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.full_disk(full))

    async def slow_disk(self, seconds: float) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.slow_disk(seconds))

    async def jump_clock(self, seconds: float, *, wall_only: bool = False) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.jump_clock(seconds, wall_only=wall_only))

    async def cut_connections(self, client_id: str | None = None) -> int:
        """See Broker."""
        return await self._call(lambda: self.sync.cut_connections(client_id))

    async def refuse(self, refuse: bool = True, *, cut: bool = False) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.refuse(refuse, cut=cut))

    async def delay(self, seconds: float, api: str | None = None, times: int | None = None) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.delay(seconds, api, times))

    async def fail_next(
        self,
        api: str,
        error: "str | int | SeglogError | type[SeglogError]",
        times: int = 1,
        *,
        topic: str | None = None,
    ) -> "Fault":
        """See Broker."""
        return await self._call(lambda: self.sync.fail_next(api, error, times, topic=topic))

    async def lose_next_ack(self, topic: str) -> "Fault":
        """See Broker."""
        return await self._call(lambda: self.sync.lose_next_ack(topic))

    async def expire_session(self, group: str, member: str) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.expire_session(group, member))

    async def rebalance(self, group: str) -> None:
        """See Broker."""
        await self._call(lambda: self.sync.rebalance(group))

    async def heal(self) -> None:
        """See Broker."""
        await self._call(self.sync.heal)
