"""Fetches that wait for records.

One append may wake a hundred of them, and a thousand idle consumers do nothing but wait. So nearly all of them wait
without a task: each is an entry in a heap of deadlines and in its partitions' watch lists, and the purgatory's one task
(``waiting_fetches``) answers, in a row, those that have enough bytes and those whose deadline is reached.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Final

import trio

from seglog_broker.runtime import budget

ENTRIES_MIN: Final = 1_000
"""Outdated deadlines are removed from the heap when they are more than this, and more than half of all."""

ANSWER_COST: Final = 12.5
"""Microseconds to answer a fetch, without looking at its partitions."""

WATCHED_COST: Final = 2
"""To look at a partition that a fetch waits for."""


class Watching:
    """The entries in watch lists of all fetches that wait, parked or in tasks."""

    count = 0


class Waiter:
    """A fetch that waits until ``bytes_wanted`` more bytes have been appended, to any of its partitions.

    It waits in a purgatory, which calls ``retry`` with it, once, when there may be an answer; or a task waits.
    """

    __slots__ = (
        "_is_awake",
        "_purgatory",
        "_retry",
        "_task",
        "_watch_lists",
        "_watching",
        "bytes_wanted",
        "deadline",
        "is_ended",
    )

    def __init__(self, retry: "Callable[[Waiter], None] | None" = None) -> None:
        self.bytes_wanted = 0
        self.deadline = math.inf  # on trio's clock
        self.is_ended = False  # the client wants the records no more
        self._retry = retry
        self._is_awake = False
        self._watch_lists: list[set[Waiter]] = []
        self._watching: Watching | None = None
        self._purgatory: FetchPurgatory | None = None  # where it is parked
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it is parked, or a task waits and has not been woken."""
        return self._task is not None or self._purgatory is not None

    @property
    def watch_lists_count(self) -> int:
        """The number of watch lists that have it."""
        return len(self._watch_lists)

    def watch(self, watch_lists: Sequence["set[Waiter]"], watching: Watching | None = None) -> None:
        """Add itself to the lists of its partitions, where appends look for waiters, until ``unwatch``.

        Meanwhile it counts in ``watching``, which is the same in all calls.
        """
        self._watch_lists += watch_lists
        self._watching = watching
        if watching is not None:
            watching.count += len(watch_lists)
        for watch_list in watch_lists:
            watch_list.add(self)

    def unwatch(self) -> None:
        """Remove itself from all lists, and from its purgatory."""
        for watch_list in self._watch_lists:
            watch_list.discard(self)
        if self._watching is not None:
            self._watching.count -= len(self._watch_lists)
        self._watch_lists = []
        if self._purgatory is not None:
            self._purgatory.note_removed()
            self._purgatory = None

    def note_parked(self, purgatory: "FetchPurgatory") -> None:
        """It waits in ``purgatory`` from now on, without a task."""
        self._is_awake = False
        self._purgatory = purgatory

    def retry(self) -> None:
        """Stop waiting, and call ``retry``; nothing if it does not wait in a purgatory."""
        if self._purgatory is not None and self._retry is not None:
            self.unwatch()
            self._retry(self)

    def wake(self) -> None:
        """There may be an answer: have it retried."""
        if self._purgatory is not None:
            if not self._is_awake:
                self._purgatory.retry_soon(self)
        elif self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        self._is_awake = True

    def end(self) -> None:
        """The records are not wanted any more: it does not wait, now and later."""
        self.is_ended = True
        if self._purgatory is not None:
            self.retry()
        else:
            self.wake()

    def sleep(self, task: trio.lowlevel.Task) -> bool:
        """Have ``task``, which will sleep, rescheduled when it is woken; False if it was woken since, or ended."""
        may_sleep = not self._is_awake and not self.is_ended
        self._task = task if may_sleep else None
        return may_sleep

    def rise(self) -> None:
        """The task does not sleep any more, and knows what it was woken for."""
        self._task = None
        self._is_awake = False


class FetchPurgatory:
    """Holds waiters until there may be an answer or their deadline is reached, as long as ``run_purgatory`` runs.

    Times are seconds on trio's clock. Source: Kafka's DelayedOperationPurgatory.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Waiter]] = []  # deadlines, a heap
        self._added = 0  # breaks ties: waiters have no order
        self._parked = 0
        self._retries: list[Waiter] = []  # to be retried now
        self._sleep: trio.CancelScope | None = None  # of the task; its deadline is the first of all
        self.alarm = Waiter()  # wakes its task

    @property
    def is_open(self) -> bool:
        """Whether waiters may be parked."""
        return self._sleep is not None

    def park(self, waiter: Waiter) -> None:
        """Hold ``waiter``, to be retried when it is woken or ended, or at its deadline."""
        assert self._sleep is not None, "the purgatory is closed"
        self._added += 1
        heapq.heappush(self._entries, (waiter.deadline, self._added, waiter))
        if self._entries[0][2] is waiter:
            self._sleep.deadline = waiter.deadline
        self._parked += 1
        waiter.note_parked(self)

    def note_removed(self) -> None:
        """One that was parked does not wait here any more."""
        self._parked -= 1
        if len(self._entries) > 2 * self._parked + ENTRIES_MIN:
            self._entries = [entry for entry in self._entries if entry[2].is_waiting]
            heapq.heapify(self._entries)

    def retry_soon(self, waiter: Waiter) -> None:
        """Have its task retry ``waiter``."""
        self._retries.append(waiter)
        self.alarm.wake()

    def begin_sleep(self) -> trio.CancelScope:
        """The scope in which its task sleeps until the first deadline, or until ``alarm`` wakes it. It is open now."""
        self._sleep = trio.CancelScope(deadline=self._entries[0][0] if self._entries else math.inf)
        return self._sleep

    def retry_due(self, now: float) -> bool:
        """Retry waiters that were woken or whose deadline is reached; whether some are left for another turn."""
        while self._entries and self._entries[0][0] <= now:
            heapq.heappop(self._entries)[2].wake()
        spent, count = 0.0, 0
        while count < len(self._retries) and spent < budget.TURN:
            spent += ANSWER_COST + self._retries[count].watch_lists_count * WATCHED_COST
            count += 1
        turn, self._retries = self._retries[:count], self._retries[count:]
        for waiter in turn:
            waiter.retry()
        return bool(self._retries)

    def close(self) -> None:
        """Retry all that are left, which find it closed: each gets a task of its own."""
        self._sleep = None
        for waiter in self._retries + [waiter for _, _, waiter in self._entries]:
            waiter.retry()
