"""A client on trio: its clock and waits, one nursery for its tasks, and the TCP sockets of its connections.

A failure of a task, or of the block, is raised as itself and never inside an exception group.
"""

import errno
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

import trio

from seglog.asynchronous.client import Face
from seglog.asynchronous.loop import Transport, beside, first_of
from seglog.core.dialing import Address
from seglog_protocol.errors import ClientClosedError, ClientError


class TrioLoop:
    """As ``seglog.asynchronous.loop.Loop``. Owns the nursery: one task opens and ends it."""

    now = staticmethod(trio.current_time)
    sleep = staticmethod(trio.sleep)
    turn = staticmethod(trio.lowlevel.checkpoint)
    cancel_point = staticmethod(trio.lowlevel.checkpoint_if_cancelled)
    give_way = staticmethod(trio.lowlevel.cancel_shielded_checkpoint)
    until = staticmethod(trio.move_on_at)
    event = trio.Event
    lock = trio.Lock
    current_task = staticmethod(trio.lowlevel.current_task)
    busy = trio.BusyResourceError

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = None
        self._nursery: trio.Nursery | None = None
        self._scopes: set[trio.CancelScope] = set()

    @property
    def is_open(self) -> bool:
        """As in Loop."""
        return self._nursery is not None

    async def open(self) -> None:
        """Open the nursery. Raises ClientError where trio does not run, as in a loop of asyncio."""
        try:
            self.current_task()
        except RuntimeError as error:
            raise ClientError(
                "seglog.trio runs on trio alone, as by trio.run: on asyncio use seglog.asyncio.connect()"
            ) from error
        self._token = trio.lowlevel.current_trio_token()
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()

    def check(self) -> None:
        """As in Loop; trio itself refuses to wait elsewhere."""

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> trio.CancelScope:
        """As in Loop."""
        if self._nursery is None:
            raise ClientClosedError("the client is closed")
        scope = trio.CancelScope(shield=True)
        self._scopes.add(scope)
        self._nursery.start_soon(self._run, work, scope, name=name)
        return scope

    async def _run(self, work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        try:
            with scope:
                await work()
        finally:
            self._scopes.discard(scope)

    async def end(self, error: BaseException | None) -> BaseException | None:
        """As in Loop."""
        manager, nursery = self._manager, self._nursery
        assert manager is not None
        assert nursery is not None
        self._nursery = None
        has_crashed = nursery.cancel_scope.cancel_called
        for scope in self._scopes:
            scope.cancel()
        # Only when a task has crashed may `error` hold the nursery's own cancellation, which only the nursery can undo.
        given = error if has_crashed else None
        failure: BaseException | None = None
        try:
            await manager.__aexit__(None if given is None else type(given), given, None)
        except BaseExceptionGroup as group:
            failure = first_of(list(group.exceptions), trio.Cancelled)
        except BaseException as other:  # noqa: BLE001 - returned, and raised by the caller
            failure = other
        if error is None or has_crashed:
            return failure
        return beside(error, failure, trio.Cancelled)

    def soon(self, call: Callable[[], object]) -> None:
        """Call it soon, as in Loop."""
        self._token.run_sync_soon(call)

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Do them in tasks of the caller, as in Loop."""
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work)

    async def shielded(self, deadline: float, work: Callable[[], Awaitable[object]]) -> bool:
        """As in Loop; trio raises the cancellation at the next checkpoint."""
        with trio.CancelScope(deadline=deadline, shield=True) as scope:
            await work()
        return not scope.cancelled_caught


class SocketTransport:
    """Owns a TCP socket."""

    def __init__(self, connected: trio.socket.SocketType) -> None:
        self._socket = connected

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """As in Transport, in one system call."""
        with _as_os_error():
            return await self._socket.sendmsg(buffers)

    async def receive_into(self, buffer: memoryview) -> int:
        """As in Transport, without a copy."""
        with _as_os_error():
            return await self._socket.recv_into(buffer)

    def close(self) -> None:
        """As in Transport."""
        self._socket.close()


async def open_socket(address: Address) -> Transport:
    """Connect to the first address of the host that answers. Raises OSError with the reason when none does."""
    try:
        stream = await trio.open_tcp_stream(*address)
    except OSError as error:
        raise _reason(error) from None
    return SocketTransport(stream.socket)


def _reason(error: OSError) -> OSError:
    """The error of one attempt: trio raises one without errno for all, with the attempts as its cause."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[-1]
    return cause if error.errno is None and isinstance(cause, OSError) else error


@contextmanager
def _as_os_error() -> Generator[None, None, None]:
    try:
        yield
    except trio.ClosedResourceError as error:
        raise OSError(errno.EBADF, "the connection was closed") from error


connect = Face(TrioLoop, open_socket).connect
