"""The client's background tasks: one nursery, and the exception to raise when it ends.

The tasks are shielded from outside cancellation, because a block left by a cancellation still waits briefly for
requests in flight. They end when their owner cancels them, and all of them when the client's block is left. They fail
only by a bug. A failure of a task, or of the block, is raised as itself and never inside an exception group.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from seglog_protocol.errors import ClientClosedError


class Background:
    """Owns the nursery, from ``open`` to ``end``, which must be called by one task."""

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = None
        self._nursery: trio.Nursery | None = None
        self._scopes: set[trio.CancelScope] = set()

    @property
    def is_open(self) -> bool:
        """Whether tasks can be started."""
        return self._nursery is not None

    async def open(self) -> None:
        """Open the nursery."""
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> trio.CancelScope:
        """Run ``work`` until the returned scope is cancelled. Raises ClientClosedError when the nursery has ended."""
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
        """End every task and return the exception to raise: usually ``error``, which the block was left by."""
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
            failure = first_of(group)
        except BaseException as other:  # noqa: BLE001 - returned, and raised by the caller
            failure = other
        if error is None or has_crashed:
            return failure
        if failure is None or isinstance(failure, trio.Cancelled):
            return error
        if isinstance(failure, Exception):
            error.add_note(f"seglog: a task of the client failed, too: {failure!r}")
            return error
        return failure


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception to raise: an interrupt before an error before a cancellation; other errors become notes on it."""
    members = sorted(group.exceptions, key=_urgency)
    first = members[0]
    for other in members[1:]:
        if not isinstance(other, trio.Cancelled):
            first.add_note(f"seglog: there was another error: {other!r}")
    return first


def _urgency(error: BaseException) -> int:
    if isinstance(error, trio.Cancelled):
        return 2
    return 1 if isinstance(error, Exception | BaseExceptionGroup) else 0
