"""The client's tasks: one nursery, and what is to be raised when it ends.

The tasks are deaf to a cancellation from outside, because what is on the way is waited for, a moment, when a block is
left by one; they end when their owner says so, and all of them when the client's block is left. None of them fails but
by a bug. A failure of theirs, or of the block, is raised as itself and never inside an exception group.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from seglog_protocol.errors import ClientClosedError


class Background:
    """Owns the nursery, from ``open`` to ``end``, which one task calls in this order."""

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = None
        self._nursery: trio.Nursery | None = None
        self._scopes: set[trio.CancelScope] = set()

    @property
    def is_open(self) -> bool:
        """Whether tasks can be started."""
        return self._nursery is not None

    async def open(self) -> None:
        """Be ready for tasks."""
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> trio.CancelScope:
        """Run ``work`` until the scope given back is cancelled; ClientClosedError when it is too late for that."""
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
        """End every task; ``error`` is what the block was left by. What is to be raised in the end: that, as a rule."""
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
    """The one to raise: an interrupt before an error before a cancellation; a note on it tells of other errors."""
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
