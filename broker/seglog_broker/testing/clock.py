"""Time that can be moved: the wall clock and the loop's clock of a broker, without waiting."""

import time

import trio

from seglog_broker.storage.io.clock import Clock, SystemClock


class MovableClock(Clock):
    """The machine's wall clock, moved by ``ahead_ms``; 0 at first."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._system = SystemClock()

    def now_ms(self) -> int:
        """See Clock."""
        return self._system.now_ms() + self.ahead_ms


class MovableLoopClock(trio.abc.Clock):
    """A clock for ``trio.run``: the machine's, moved by ``ahead_seconds``, so that what is due by then runs at once."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def start_clock(self) -> None:
        """See trio."""

    def current_time(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic() + self.ahead_seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Real seconds until ``deadline``."""
        return deadline - self.current_time()
