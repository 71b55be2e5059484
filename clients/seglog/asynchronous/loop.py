"""A loop as the async faces need it: time, waiting, deadlines, the client's tasks, and which error a block raises."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from seglog.core.dialing import Address


class Event(Protocol):
    """Set once; any number of tasks may wait for it."""

    async def wait(self) -> object:
        """Wait until it is set."""

    def set(self) -> None:
        """Wake every waiting task; from now on nobody waits."""


class Scope(Protocol):
    """A ``with`` block that is left, quietly, when its deadline has passed."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the block was left because of its deadline."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...


class Running(Protocol):
    """A task of the client's own."""

    def cancel(self) -> object:
        """End it; a no-op when it has ended."""


class Transport(Protocol):
    """A connected stream of bytes. Failures are OSError; a cancelled call has transferred nothing."""

    async def send_some(self, buffers: Sequence[memoryview]) -> int:
        """Write at least one of these bytes; returns how many."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer``; returns how many, 0 when the peer has closed its side."""

    def close(self) -> None:
        """Close at once; waiting calls raise OSError. Idempotent."""


Opener = Callable[[Address], Awaitable[Transport]]


class Loop(Protocol):
    """An event loop, for one client: from ``open`` to ``end`` it runs the client's tasks.

    They are deaf to what cancels the program's tasks, because a block that is left by a cancellation still waits
    briefly for requests in flight. They fail only by a bug, which ends the client's block.
    """

    @property
    def is_open(self) -> bool:
        """Whether tasks can be started."""

    async def open(self) -> None:
        """Belong to the running loop from now on. Raises ClientError where that is of another kind."""

    def check(self) -> None:
        """Raise ClientError where another loop runs than the one it belongs to, or none."""

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> Running:
        """Run ``work`` as a task until it is cancelled. Raises ClientClosedError when the client's block has ended."""

    async def end(self, error: BaseException | None) -> BaseException | None:
        """End every task and return the exception to raise: usually ``error``, which the block was left by."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""

    async def sleep(self, seconds: float) -> object:
        """Wait."""

    async def turn(self) -> None:
        """Let other tasks run, and raise a cancellation. Raises as ``check``."""

    async def cancel_point(self) -> None:
        """Raise a cancellation that has come already, and do what ``give_way`` has left to do. Raises as ``check``."""

    async def give_way(self) -> None:
        """Let other tasks run, deaf to a cancellation; where a loop cannot do that, at the next ``cancel_point``."""

    def until(self, deadline: float) -> Scope:
        """A block that is left at ``deadline``, a moment of ``now``."""

    async def shielded(self, deadline: float, work: Callable[[], Awaitable[object]]) -> bool:
        """Do ``work``, deaf to a cancellation, which is raised afterwards; returns whether it ended by ``deadline``."""

    def event(self) -> Event:
        """An event that is not set."""

    def lock(self) -> AbstractAsyncContextManager[object]:
        """A lock, for ``async with``."""

    def current_task(self) -> object:
        """The task that runs."""

    def soon(self, call: Callable[[], object], /) -> object:
        """Call this in the loop soon; from any thread, and from the handler of a signal."""

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Do all at once, in tasks of the caller's, until all have ended."""

    def busy(self, message: str, /) -> Exception:
        """The error for a second task where one alone may wait."""


def first_of(errors: "list[BaseException]", cancelled: type[BaseException]) -> BaseException:
    """The exception to raise: an interrupt before an error before a cancellation; other errors become notes on it."""

    def urgency(error: BaseException) -> int:
        if isinstance(error, cancelled):
            return 2
        return 1 if isinstance(error, Exception | BaseExceptionGroup) else 0

    first, *others = sorted(errors, key=urgency)
    for other in others:
        if not isinstance(other, cancelled):
            first.add_note(f"seglog: there was another error: {other!r}")
    return first


def beside(error: BaseException, failure: BaseException | None, cancelled: type[BaseException]) -> BaseException:
    """The exception to raise by a block that was left by ``error``, when ``failure`` is that of its tasks."""
    if failure is None or isinstance(failure, cancelled):
        return error
    if isinstance(failure, Exception):
        error.add_note(f"seglog: a task of the client failed, too: {failure!r}")
        return error
    return failure
