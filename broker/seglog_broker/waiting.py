"""Fetches that wait for records: what each is, and the one task that answers them.

One append may wake a hundred of them, and a thousand idle consumers do nothing but wait. So a waiter is less than an
Event, its deadline is a place in a heap instead of a CancelScope, and what one append wakes is answered in a row,
before any of the tasks that waited goes on.
"""

import heapq
import math
from collections.abc import Callable
from typing import Final

import trio

ENTRIES_MIN: Final = 1_000
"""Deadlines that nobody waits for any more are thrown out when they are more than this, and than half of all."""

ANSWERS_A_TURN: Final = 128
"""Answered before the loop serves others."""


class Waiter:
    """A fetch that waits until ``bytes_wanted`` more bytes have been appended, to any of its partitions.

    ``answer``, if there is one, may give the answer in place of the task that waits: it returns whether it has.
    """

    __slots__ = ("_is_awake", "_room", "_task", "answer", "bytes_wanted", "is_answered", "is_ended")

    def __init__(self, answer: Callable[[], bool] | None = None) -> None:
        self.answer = answer
        self.bytes_wanted = 0
        self.is_answered = False
        self.is_ended = False  # its asker wants the records no more
        self._is_awake = False
        self._room: WaitingRoom | None = None  # where it waits
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a task waits and has not been woken."""
        return self._task is not None

    def serve(self) -> None:
        """There is enough: answer in a moment, or wake whoever waits."""
        if self._room is None or self.answer is None:
            self.wake()
        elif not self._is_awake:
            self._is_awake = True
            self._room.serve(self)

    def wake(self) -> None:
        """Whoever waits is to look again."""
        self._is_awake = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def end(self) -> None:
        """Nobody wants the records any more: it waits for nothing, now and later."""
        self.is_ended = True
        self.wake()

    async def wait(self, room: "WaitingRoom | None" = None) -> None:
        """Return when woken since the last call, or ended. One task at a time."""
        if not self._is_awake and not self.is_ended:
            self._room = room
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._is_awake = False

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class WaitingRoom:
    """Answers waiters, and wakes those whose time is over, as long as ``run`` runs. Times are seconds on trio's clock.

    Where it does not run each waits by itself, with the same outcome.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Waiter]] = []  # deadlines, a heap
        self._added = 0  # breaks ties: waiters have no order
        self._waiting = 0
        self._served: list[Waiter] = []  # to be answered now
        self._sleep: trio.CancelScope | None = None  # of the task; its deadline is the first of all
        self._alarm = Waiter()

    async def wait(self, waiter: Waiter, deadline: float) -> None:
        """Return when ``waiter`` is woken, at ``deadline``, or, and then it says so, when it has been answered."""
        if self._sleep is None:
            with trio.CancelScope(deadline=deadline):
                await waiter.wait()
            return
        self._added += 1
        heapq.heappush(self._entries, (deadline, self._added, waiter))
        if self._entries[0][2] is waiter:
            self._sleep.deadline = deadline
        self._waiting += 1
        try:
            await waiter.wait(self)
        finally:
            self._waiting -= 1
            if len(self._entries) > 2 * self._waiting + ENTRIES_MIN:
                self._entries = [entry for entry in self._entries if entry[2].is_waiting]
                heapq.heapify(self._entries)

    def serve(self, waiter: Waiter) -> None:
        """Answer ``waiter`` in a moment."""
        self._served.append(waiter)
        self._alarm.wake()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sleep until somebody is to be served, or has waited long enough; until cancelled."""
        try:
            while True:
                if self._served:
                    await trio.lowlevel.checkpoint()
                else:
                    first = self._entries[0][0] if self._entries else math.inf
                    with trio.CancelScope(deadline=first) as self._sleep:
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
                        await self._alarm.wait()
                self._serve_turn()
                now = trio.current_time()
                while self._entries and self._entries[0][0] <= now:
                    heapq.heappop(self._entries)[2].wake()
        finally:
            self._sleep = None
            for waiter in self._served:
                waiter.wake()

    def _serve_turn(self) -> None:
        turn, self._served = self._served[:ANSWERS_A_TURN], self._served[ANSWERS_A_TURN:]
        for waiter in turn:
            if waiter.is_waiting and waiter.answer is not None:
                waiter.is_answered = waiter.answer()
        for waiter in turn:
            waiter.wake()
