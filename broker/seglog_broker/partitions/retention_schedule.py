"""The schedule of retention checks."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio


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
        self._has_begun = False

    def begin(self) -> None:
        """Start the schedule now."""
        self._has_begun = True
        self.next_check = trio.current_time() + self._first_ms / 1000

    def reconfigure(self, interval_ms: int) -> None:
        """Change the interval. The next check is not later than it was."""
        self.interval_ms = interval_ms
        if self._has_begun:
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
        if not self._has_begun:
            return self._first_ms, self._first_ms
        left = round((self.next_check - trio.current_time()) * 1000)
        return max(0, left), max(0, left) + (self.interval_ms if self._is_checking else 0)
