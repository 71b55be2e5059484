"""A loop of asyncio, or one with its interface such as uvloop's, for a client: its clock, its waits and its tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final, Self

from seglog.asynchronous.loop import beside, first_of
from seglog_protocol.errors import ClientClosedError, ClientError

ELSEWHERE: Final = (
    "this client belongs to the asyncio loop in which its block was entered: another loop or thread connects its own, "
    "or hands its calls over by asyncio.run_coroutine_threadsafe; after a fork call connect() again"
)


class Deadline:
    """As ``seglog.asynchronous.loop.Scope``: cancels the task that is in the block when the moment has come.

    As ``asyncio.timeout`` it tells its own cancellation from others by their number, and lets those pass.
    """

    def __init__(self, moment: float) -> None:
        self.cancelled_caught = False
        self._moment = moment
        self._task: asyncio.Task[Any] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._cancelled_before = 0
        self._has_passed = False

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task()
        assert task is not None
        self._cancelled_before = task.cancelling()
        if self._moment != inf:
            wait = max(0.0, self._moment - time.monotonic())
            self._handle = asyncio.get_running_loop().call_later(wait, self._pass)
        return self

    def _pass(self) -> None:
        """Cancel the task, which waits within the block: this is called by the loop itself."""
        assert self._task is not None
        self._has_passed = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if self._handle is not None:
            self._handle.cancel()
        if not self._has_passed:
            return False
        assert self._task is not None
        is_ours = self._task.uncancel() <= self._cancelled_before
        self.cancelled_caught = is_ours and kind is not None and issubclass(kind, asyncio.CancelledError)
        return self.cancelled_caught


class AsyncioLoop:
    """As ``seglog.asynchronous.loop.Loop``. A failed task cancels the one that entered the client's block."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)
    until = Deadline
    event = asyncio.Event
    lock = asyncio.Lock
    current_task = staticmethod(asyncio.current_task)
    busy = ClientError

    def __init__(self) -> None:
        self.is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._cancelled_before = 0  # how often the owner had been cancelled when the block was entered
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._owes_turn = False

    async def open(self) -> None:
        """As in Loop. Raises ClientError where asyncio does not run, as on trio."""
        try:
            self._loop, self._owner = asyncio.get_running_loop(), asyncio.current_task()
        except RuntimeError as error:
            raise ClientError(
                "seglog.asyncio runs on asyncio alone, as by asyncio.run: on trio use seglog.trio.connect()"
            ) from error
        if self._owner is not None:
            self._cancelled_before = self._owner.cancelling()
        self.is_open = True

    def check(self) -> None:
        """As in Loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError as error:
            raise ClientError(ELSEWHERE) from error
        if running is not self._loop and self._loop is not None:
            raise ClientError(ELSEWHERE)

    async def turn(self) -> None:
        """As in Loop."""
        self.check()
        self._owes_turn = False
        await asyncio.sleep(0)

    async def cancel_point(self) -> None:
        """As in Loop."""
        self.check()
        if self._owes_turn:
            self._owes_turn = False
            await asyncio.sleep(0)

    async def give_way(self) -> None:
        """As in Loop: a task of asyncio cannot wait and be deaf to its cancellation."""
        self._owes_turn = True

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """As in Loop. Who ends all tasks of the loop, as ``asyncio.run`` does in the end, ends these, too."""
        if not self.is_open:
            raise ClientClosedError("the client is closed")
        assert self._loop is not None
        task = self._loop.create_task(_awaited(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (failure := task.exception()) is None:
            return
        self._failures.append(failure)
        if self.is_open and len(self._failures) == 1 and self._owner is not None:
            self._owner.cancel("a task of the client of seglog has failed")

    async def end(self, error: BaseException | None) -> BaseException | None:
        """As in Loop."""
        has_crashed = bool(self._failures)
        self.is_open = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        cancelled = await _all_done(tasks)
        await asyncio.sleep(0)  # their endings are noted by callbacks of the loop
        if has_crashed and self._owner is not None:
            left = self._owner.uncancel()
            if isinstance(error, asyncio.CancelledError) and left <= self._cancelled_before:
                error = None  # it was this loop's own
        failure = first_of(self._failures, asyncio.CancelledError) if self._failures else None
        if error is None:
            return failure or cancelled
        return beside(error, failure, asyncio.CancelledError)

    def soon(self, call: Callable[[], object]) -> None:
        """Call it soon, as in Loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call)

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Do them in tasks of the caller, as in Loop."""
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(_awaited(work))

    async def shielded(self, deadline: float, work: Callable[[], Awaitable[object]]) -> bool:
        """As in Loop, in a task of its own."""

        async def limited() -> bool:
            with self.until(deadline) as scope:
                await work()
            return not scope.cancelled_caught

        task = asyncio.get_running_loop().create_task(limited())
        cancelled = await _all_done([task])
        if cancelled is not None:
            raise cancelled from None if task.cancelled() else task.exception()
        return not task.cancelled() and task.result()


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _all_done(tasks: "list[asyncio.Task[Any]]") -> asyncio.CancelledError | None:
    """Wait for tasks, deaf to a cancellation, which is returned."""
    cancelled = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
