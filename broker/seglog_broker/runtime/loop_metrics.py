"""What is counted of the event loop: turns, what they cost, and the longest of them."""

from typing import Final

SLOT_SECONDS: Final = 5.0
SLOTS: Final = 12
"""A minute, beside the one that is being filled."""


class RecentMax:
    """The largest of the values of the last minute, and of up to SLOT_SECONDS before."""

    __slots__ = ("_current", "_ends_at", "_maxima")

    def __init__(self) -> None:
        self._maxima = [0.0] * SLOTS
        self._current = 0.0  # of the slot that is being filled
        self._ends_at = 0.0

    def add(self, value: float, now: float) -> None:
        """Note a value, not below 0, at a moment in seconds of a clock that never goes back."""
        if now >= self._ends_at:
            self._begin_slot(now)
        self._current = max(self._current, value)

    def at(self, now: float) -> float:
        """The largest value; 0 if there was none."""
        if now >= self._ends_at:
            self._begin_slot(now)
        return max(self._current, *self._maxima)

    def _begin_slot(self, now: float) -> None:
        passed = 1 + int((now - self._ends_at) / SLOT_SECONDS)
        self._maxima = [*self._maxima, self._current, *[0.0] * min(passed - 1, SLOTS)][-SLOTS:]
        self._current = 0.0
        self._ends_at += passed * SLOT_SECONDS


class LoopMetrics:
    """Counts of the loop since the start. A turn is what it does between two looks at the network."""

    def __init__(self) -> None:
        self.turns = 0
        self.busy_seconds = 0.0
        """Processor time of all turns."""
        self.busy_seconds_max = 0.0
        """Processor time of the longest turn since the start."""
        self.stall_seconds_max = 0.0
        """The longest time between two looks since the start."""
        self.longest_turn = RecentMax()
        """Processor time of a turn, in seconds, by ``time.perf_counter``."""
        self.longest_stall = RecentMax()
        """Time of a turn, in seconds, by ``time.perf_counter``."""

    def add_turn(self, busy_seconds: float, stall_seconds: float, now: float) -> None:
        """Count a turn that ended at ``now``: its processor time, and its time by the clock."""
        self.turns += 1
        self.busy_seconds += busy_seconds
        self.busy_seconds_max = max(self.busy_seconds_max, busy_seconds)
        self.stall_seconds_max = max(self.stall_seconds_max, stall_seconds)
        self.longest_turn.add(busy_seconds, now)
        self.longest_stall.add(stall_seconds, now)
