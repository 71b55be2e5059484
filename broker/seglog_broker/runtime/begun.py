"""Coroutines that begin within a turn of the sockets, where a task for each request would cost more than the request.

Such a coroutine goes on within the call that sets the ``Signal`` for which it waits. Before it waits for anything else
it has a task take over: ``by_task``.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, ClassVar, Generic, TypeVar, cast

import trio

ResultT = TypeVar("ResultT")


class Signal:
    """A signal that is set once; tasks wait for it, and what has ``Begun``."""

    __slots__ = ("_wake", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wake: list[Callable[[], None]] = []

    def set(self) -> None:
        """Let all that wait go on; those that have begun without a task do so before this returns."""
        self.is_set = True
        waiting, self._wake = self._wake, []
        for wake in waiting:
            wake()

    async def wait(self) -> None:
        """Return when it is set."""
        begun = Begun.running
        if begun is None:
            event = trio.Event()
            self._wake.append(event.set)
            if self.is_set:
                event.set()
            await event.wait()
        elif not self.is_set:
            self._wake.append(begun.go_on)
            await _paused()


class Begun(Generic[ResultT]):
    """A coroutine that has begun.

    ``then``, once there is one, is called when it ends, or wants a task, later than in the first turn.
    """

    running: ClassVar["Begun[Any] | None"] = None
    """The one whose code runs just now."""

    def __init__(self, work: Awaitable[ResultT], carry_out: Callable[[], None]) -> None:
        """``carry_out`` is called whenever it has run: what it decided is to be written."""
        self._work = cast("Coroutine[None, None, ResultT]", work)
        self._carry_out = carry_out
        self._result: ResultT | None = None
        self._error: Exception | None = None
        self.is_done = False
        self.wants_task = False
        """Whether ``rest`` is to go on with it."""
        self.then: Callable[[], None] | None = None
        self.go_on()

    def go_on(self) -> None:
        """Run up to the next wait, or to the end."""
        if self.is_done:
            return
        before, Begun.running = Begun.running, self
        try:
            assert self._work.send(None) is None, "a task takes over before other waits"
        except StopIteration as done:
            self._result, self.is_done = done.value, True
        except Exception as error:  # noqa: BLE001 - ``result`` raises it
            self._error, self.is_done = error, True
        finally:
            Begun.running = before
        is_last = self.is_done or self.wants_task
        self._carry_out()
        if is_last and (then := self.then) is not None:
            self.then = None  # which refers to this
            then()

    async def rest(self) -> None:
        """Run it to its end, where it ``wants_task``."""
        try:
            self._result = await _rest(self._work)
        except Exception as error:  # noqa: BLE001 - ``result`` raises it
            self._error = error
        self.is_done = True

    def close(self) -> None:
        """Close the coroutine where it waits; its result is not read."""
        self.is_done, self.then = True, None
        self._work.close()

    def result(self) -> ResultT:
        """The result of one that is done. Raises its error."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is set without an error


async def by_task() -> None:
    """Return in a task: what comes next waits for more than a ``Signal``."""
    if Begun.running is not None:
        Begun.running.wants_task = True
        await _paused()


@coroutine
def _paused() -> Generator[None, None, None]:
    yield


@coroutine
def _rest(work: Coroutine[Any, Any, ResultT]) -> Generator[Any, Any, ResultT]:
    result: ResultT = yield from work
    return result
