"""The schedule of retention checks, and jumps of the wall clock."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from seglog_broker.storage.io.clock import Clock

CLOCK_JUMP_MS_MAX: Final = 60_000
"""By how much the wall clock may run ahead of the loop's clock between two checks. After a larger jump nothing expires
by age at that check, so that no data is lost if the clock is corrected meanwhile."""


class RetentionSchedule:
    """The times of retention checks, for the task and for explanations.

    ``next_check`` is loop time, infinite until the task has begun.
    """

    def __init__(self, *, interval_ms: int, first_ms: int) -> None:
        """The first check is ``first_ms`` after ``begin``, the others every ``interval_ms``."""
        self.interval_ms = interval_ms
        self.next_check = math.inf
        self._first_ms = first_ms
        self._is_checking = False
        self._watch: ClockWatch | None = None

    def begin(self, watch: "ClockWatch") -> None:
        """Start the schedule now; ``watch`` is the task's."""
        self._watch = watch
        self.next_check = trio.current_time() + self._first_ms / 1000

    def reconfigure(self, interval_ms: int) -> None:
        """Change the interval. The next check is not later than it was."""
        self.interval_ms = interval_ms
        if self._watch is not None:
            self.next_check = min(self.next_check, trio.current_time() + interval_ms / 1000)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Mark a check. The next ones stay at fixed times however long it takes, which predictions rely on."""
        self._is_checking = True
        try:
            yield
        finally:
            self._is_checking = False
            while self.next_check <= trio.current_time():
                self.next_check += self.interval_ms / 1000

    @property
    def ms_to_next(self) -> tuple[int, int]:
        """(earliest, latest) time in ms until a partition is checked next; they differ while a check is running."""
        if self._watch is None:
            return self._first_ms, self._first_ms
        left = round((self.next_check - trio.current_time()) * 1000)
        return max(0, left), max(0, left) + (self.interval_ms if self._is_checking else 0)

    @property
    def jump_ms(self) -> int:
        """Milliseconds by which the wall clock ran ahead since the last check; negative if it fell behind."""
        return 0 if self._watch is None else self._watch.jump_so_far_ms()


class ClockWatch:
    """Compares the wall clock with the loop's clock, which cannot be set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = self._clock.now_ms()
        self._loop = trio.current_time()

    def jump_ms(self) -> int:
        """Milliseconds by which the wall clock ran ahead since the last call; negative if it fell behind."""
        jump = self.jump_so_far_ms()
        self._wall_ms, self._loop = self._clock.now_ms(), trio.current_time()
        return jump

    def jump_so_far_ms(self) -> int:
        """The same, without counting as a call: ``jump_ms`` still counts from its last call."""
        return self._clock.now_ms() - self._wall_ms - round((trio.current_time() - self._loop) * 1000)
