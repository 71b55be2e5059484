"""Fetches that wait for records: what each is, and one sleeping task that knows when they have waited long enough.

One append may wake a hundred of them, and a thousand idle consumers do nothing but wait. So a waiter is less than an
Event, and its deadline is a place in a heap: a CancelScope for each would cost more than all the rest of its waiting.
"""

import heapq
import math
from typing import Final

import trio

ENTRIES_MIN: Final = 1_000
"""Deadlines that nobody waits for any more are thrown out when they are more than this, and than half of all."""


class Waiter:
    """A fetch that waits until ``bytes_wanted`` more bytes have been appended, to any of its partitions."""

    __slots__ = ("_is_awake", "_task", "bytes_wanted", "is_ended")

    def __init__(self) -> None:
        self.bytes_wanted = 0
        self.is_ended = False  # its asker wants the records no more
        self._is_awake = False
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a task waits and has not been woken."""
        return self._task is not None

    def wake(self) -> None:
        """There may be enough now, or it is too late."""
        self._is_awake = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def end(self) -> None:
        """Nobody wants the records any more: it waits for nothing, now and later."""
        self.is_ended = True
        self.wake()

    async def wait(self) -> None:
        """Return when woken since the last call, or ended. One task at a time."""
        if not self._is_awake and not self.is_ended:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._is_awake = False

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Deadlines:
    """Wakes waiters whose time is over, as long as ``run`` runs. Times are seconds on trio's clock."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Waiter]] = []  # a heap
        self._added = 0  # breaks ties: waiters have no order
        self._waiting = 0
        self._sleep: trio.CancelScope | None = None  # of the task; its deadline is the first of all

    async def wait(self, waiter: Waiter, deadline: float) -> None:
        """Return when ``waiter`` is woken, or at ``deadline``."""
        if self._sleep is None:  # nobody would wake it
            with trio.CancelScope(deadline=deadline):
                await waiter.wait()
            return
        self._added += 1
        heapq.heappush(self._entries, (deadline, self._added, waiter))
        if self._entries[0][2] is waiter:
            self._sleep.deadline = deadline
        self._waiting += 1
        try:
            await waiter.wait()
        finally:
            self._waiting -= 1
            if len(self._entries) > 2 * self._waiting + ENTRIES_MIN:
                self._entries = [entry for entry in self._entries if entry[2].is_waiting]
                heapq.heapify(self._entries)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sleep from deadline to deadline, until cancelled."""
        try:
            while True:
                first = self._entries[0][0] if self._entries else math.inf
                with trio.CancelScope(deadline=first) as self._sleep:
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    await trio.sleep_forever()
                now = trio.current_time()
                while self._entries and self._entries[0][0] <= now:
                    heapq.heappop(self._entries)[2].wake()
        finally:
            self._sleep = None
