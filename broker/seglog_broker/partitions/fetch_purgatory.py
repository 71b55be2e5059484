"""Fetches that wait for records: what each is, and the one task that answers them.

One append may wake a hundred of them, and a thousand idle consumers do nothing but wait. So nearly all of them wait
without a task: each is an entry in a heap of deadlines and in its partitions' sets, and the room's one task answers, in
a row, those for whom there is enough and those whose time is over.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Final

import trio

ENTRIES_MIN: Final = 1_000
"""Outdated deadlines are removed from the heap when they are more than this, and more than half of all."""

ANSWERS_A_TURN: Final = 128
"""Answered before the loop serves others, or fewer: one that waits in many places counts for more."""

PLACES_AN_ANSWER: Final = 8
"""Partitions that are looked at in the time that it takes to answer."""


class Waiter:
    """A fetch that waits until ``bytes_wanted`` more bytes have been appended, to any of its partitions.

    It is parked in a purgatory, which calls ``due`` with it, once, when it should look again; or a task waits.
    """

    __slots__ = ("_due", "_is_awake", "_places", "_room", "_task", "bytes_wanted", "deadline", "is_ended")

    def __init__(self, due: "Callable[[Waiter], None] | None" = None) -> None:
        self.bytes_wanted = 0
        self.deadline = math.inf  # on trio's clock
        self.is_ended = False  # its asker wants the records no more
        self._due = due
        self._is_awake = False
        self._places: Sequence[set[Waiter]] = ()  # where appends look for it
        self._room: FetchPurgatory | None = None  # where it is parked
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it is parked, or a task waits and has not been woken."""
        return self._task is not None or self._room is not None

    @property
    def places_count(self) -> int:
        """In how many places it is found."""
        return len(self._places)

    def arrive(self, places: Sequence["set[Waiter]"]) -> None:
        """Be found in ``places`` until ``leave``."""
        self._places = places
        for place in places:
            place.add(self)

    def leave(self) -> None:
        """Be found nowhere any more, and sit nowhere."""
        for place in self._places:
            place.discard(self)
        self._places = ()
        if self._room is not None:
            self._room.left()
            self._room = None

    def sit(self, room: "FetchPurgatory") -> None:
        """Wait in ``room``, without a task."""
        self._is_awake = False
        self._room = room

    def look(self) -> None:
        """Leave, and have it looked whether there is an answer now; nothing where it has left already."""
        if self._room is not None and self._due is not None:
            self.leave()
            self._due(self)

    def wake(self) -> None:
        """There is enough, or nothing to wait for: it is to look again."""
        if self._room is not None:
            if not self._is_awake:
                self._room.serve(self)
        elif self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        self._is_awake = True

    def end(self) -> None:
        """The records are not wanted any more: it does not wait, now and later."""
        self.is_ended = True
        if self._room is not None:
            self.look()
        else:
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


class FetchPurgatory:
    """Waiters sit here until there is enough for them or their time is over, as long as ``run`` runs.

    Times are seconds on trio's clock.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Waiter]] = []  # deadlines, a heap
        self._added = 0  # breaks ties: waiters have no order
        self._sitting = 0
        self._served: list[Waiter] = []  # to look now
        self._sleep: trio.CancelScope | None = None  # of the task; its deadline is the first of all
        self._alarm = Waiter()

    @property
    def is_open(self) -> bool:
        """Whether anybody may be seated."""
        return self._sleep is not None

    def park(self, waiter: Waiter) -> None:
        """Have ``waiter`` look when it is woken or ended, or at its deadline."""
        assert self._sleep is not None, "the room is closed"
        self._added += 1
        heapq.heappush(self._entries, (waiter.deadline, self._added, waiter))
        if self._entries[0][2] is waiter:
            self._sleep.deadline = waiter.deadline
        self._sitting += 1
        waiter.sit(self)

    def left(self) -> None:
        """One who sat has left."""
        self._sitting -= 1
        if len(self._entries) > 2 * self._sitting + ENTRIES_MIN:
            self._entries = [entry for entry in self._entries if entry[2].is_waiting]
            heapq.heapify(self._entries)

    def serve(self, waiter: Waiter) -> None:
        """Have ``waiter`` look in a moment."""
        self._served.append(waiter)
        self._alarm.wake()

    def _serve_some(self) -> None:
        effort = count = 0
        while count < len(self._served) and effort < ANSWERS_A_TURN:
            effort += 1 + self._served[count].places_count // PLACES_AN_ANSWER
            count += 1
        turn, self._served = self._served[:count], self._served[count:]
        for waiter in turn:
            waiter.look()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sleep until a fetch is to be answered or its time is over; until cancelled."""
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
                now = trio.current_time()
                while self._entries and self._entries[0][0] <= now:
                    heapq.heappop(self._entries)[2].wake()
                self._serve_some()
        finally:
            self._sleep = None
            left = self._served + [waiter for _, _, waiter in self._entries]
            for waiter in left:  # waits by a task of its own from now on
                waiter.look()
