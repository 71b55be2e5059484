"""When retention checks next, and whether the wall clock can be believed then."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from seglog_broker.storage.io.clock import Clock

CLOCK_LEAP_MS_MAX: Final = 60_000
"""By how much the wall clock may run ahead of the loop's between two checks. If it leapt further, nothing expires by
age at that check: a clock that is put right again meanwhile has then cost no data."""


class RetentionSchedule:
    """When retention checks: for the task that does it, and for explanations of what it will do.

    ``next_check`` is a time of the loop, infinite until the task has begun.
    """

    def __init__(self, *, interval_ms: int, first_ms: int) -> None:
        """``first_ms`` is how long the first check comes after the task has begun."""
        self.interval_ms = interval_ms
        self.next_check = math.inf
        self._first_ms = first_ms
        self._is_checking = False
        self._watch: ClockWatch | None = None

    def begin(self, watch: "ClockWatch") -> None:
        """The task begins now."""
        self._watch = watch
        self.next_check = trio.current_time() + self._first_ms / 1000

    def reconfigure(self, interval_ms: int) -> None:
        """Check so often from now on; the next time when that was to be, or sooner."""
        self.interval_ms = interval_ms
        if self._watch is not None:
            self.next_check = min(self.next_check, trio.current_time() + interval_ms / 1000)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """A check is under way; what follows keeps the rhythm, however long it took: explain counts on that."""
        self._is_checking = True
        try:
            yield
        finally:
            self._is_checking = False
            while self.next_check <= trio.current_time():
                self.next_check += self.interval_ms / 1000

    @property
    def ms_to_next(self) -> tuple[int, int]:
        """In how many ms a partition is looked at next: at the earliest, and at the latest if a check is under way."""
        if self._watch is None:
            return self._first_ms, self._first_ms
        left = round((self.next_check - trio.current_time()) * 1000)
        return max(0, left), max(0, left) + (self.interval_ms if self._is_checking else 0)

    @property
    def leap_ms(self) -> int:
        """By how much the wall clock has run ahead of the loop's since the last check; negative when it fell behind."""
        return 0 if self._watch is None else self._watch.leap_so_far_ms()


class ClockWatch:
    """Compares the wall clock with the loop's, which cannot be set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = self._clock.now_ms()
        self._loop = trio.current_time()

    def leap_ms(self) -> int:
        """Milliseconds by which the wall clock ran ahead since the last call; negative when it fell behind."""
        leap = self.leap_so_far_ms()
        self._wall_ms, self._loop = self._clock.now_ms(), trio.current_time()
        return leap

    def leap_so_far_ms(self) -> int:
        """What ``leap_ms`` would say, which then counts from the same moment as before."""
        return self._clock.now_ms() - self._wall_ms - round((trio.current_time() - self._loop) * 1000)
