"""Coroutines that begin within a turn of the sockets, where a task for each request would cost more than the request.

Such a coroutine goes on within the call that sets the ``Signal`` for which it waits. Before it waits for anything else
it has a task take over: ``by_task``.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Generic, TypeVar, cast

import trio

from seglog_broker.runtime.awaitables import nothing, pause, run_to_end

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

    def wait(self) -> Awaitable[None]:
        """Wait for it, which begins with this call."""
        begun = Begun.running
        if begun is None:
            event = trio.Event()
            self._wake.append(event.set)
            if self.is_set:
                event.set()
            return event.wait()
        if self.is_set:
            return nothing()
        self._wake.append(begun.go_on)
        return pause()


class Begun(Generic[ResultT]):
    """A coroutine that has begun.

    ``then``, once there is one, is called when it ends, or wants a task, later than in the first turn.
    """

    running: ClassVar["Begun[Any] | None"] = None
    """The one whose code runs just now."""

    def __init__(self, work: Awaitable[ResultT], carry_out: Callable[[], None]) -> None:
        """``carry_out`` is called whenever it has run: what it decided is to be written."""
        self._work = cast("Coroutine[Any, None, ResultT]", work)
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

    def rest(self) -> Awaitable[None]:
        """Run it to its end, where it ``wants_task``."""
        return run_to_end(self._work, self._note_end)

    def _note_end(self, result: ResultT | None, error: Exception | None) -> None:
        self._result, self._error, self.is_done = result, error, True

    def close(self) -> None:
        """Close the coroutine where it waits; its result is not read."""
        self.is_done, self.then = True, None
        self._work.close()

    def result(self) -> ResultT:
        """The result of one that is done. Raises its error."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is set without an error


def by_task() -> Awaitable[None]:
    """Return in a task: what comes next waits for more than a ``Signal``."""
    begun = Begun.running
    if begun is None:
        return nothing()
    begun.wants_task = True
    return pause()
