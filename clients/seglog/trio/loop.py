"""trio's loop for a client: its clock and waits, and one nursery for the client's tasks.

A failure of a task, or of the block, is raised as itself and never inside an exception group.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from seglog.asynchronous.loop import beside, first_of
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

    async def shielded(self, deadline: float, work: Callable[[], Awaitable[object]]) -> bool:
        """As in Loop; trio raises the cancellation at the next checkpoint."""
        with trio.CancelScope(deadline=deadline, shield=True) as scope:
            await work()
        return not scope.cancelled_caught
