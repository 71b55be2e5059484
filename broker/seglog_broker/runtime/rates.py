"""How much of something a client uses in a time, as Kafka counts it, and how long it is to wait for using less.

The arithmetic alone: moments are seconds of a clock that never goes back, and are passed in.
"""

import math
from typing import Final, NamedTuple

_SECONDS_LEAST: Final = 0.001  # that an amount is divided by


class Windows(NamedTuple):
    """The time that is looked back at: ``number`` windows of so many seconds, of which the last is not over."""

    number: int
    seconds: float
    wait_seconds_max: float
    """The longest wait."""


class Meter:
    """The use of what there is ``limit`` of a second."""

    __slots__ = ("_windows", "limit")

    def __init__(self, windows: Windows, limit: float) -> None:
        self._windows = windows
        self.limit = limit

    def add(self, amount: float, now: float) -> None:
        """Count an amount, whatever the limit; one below 0 takes back what was counted."""
        raise NotImplementedError

    def wait(self, now: float) -> float:
        """The seconds in which nothing may be used, so that it is within the limit again; 0 if it is."""
        return min(max(0.0, self._excess(now)), self._windows.wait_seconds_max)

    def _excess(self, now: float) -> float:
        raise NotImplementedError

    @property
    def at_once(self) -> float:
        """The amount that the limit gives in the windows that are over."""
        return self.limit * (self._windows.number - 1) * self._windows.seconds


class _Window:
    __slots__ = ("amount", "began", "latest")

    def __init__(self, now: float) -> None:
        self.begin(now)

    def begin(self, now: float) -> None:
        self.began = self.latest = now
        self.amount = 0.0


class Rate(Meter):
    """An amount a second. There is one window more than are looked back at."""

    __slots__ = ("_current", "_kept")

    def __init__(self, windows: Windows, limit: float) -> None:
        super().__init__(windows, limit)
        self._kept: list[_Window] = []
        self._current = 0

    def add(self, amount: float, now: float) -> None:
        """Count an amount in the window of now."""
        kept = self._kept
        if not kept:
            kept.append(_Window(now))
        elif now - kept[self._current].began >= self._windows.seconds:
            self._current = (self._current + 1) % (self._windows.number + 1)
            if self._current == len(kept):
                kept.append(_Window(now))
            kept[self._current].begin(now)
        window = kept[self._current]
        window.amount += amount
        window.latest = now

    def _excess(self, now: float) -> float:
        """The seconds for which the amount would do at the limit, beyond those that it is the use of.

        These are at least those of all windows but the one that is not over: a client that has begun just now may use
        at once what it may use in that time.
        """
        number, length, _ = self._windows
        oldest, amount = now, 0.0
        for window in self._kept:
            if now - window.latest >= number * length:
                window.begin(now)
            oldest = min(oldest, window.began)
            amount += window.amount
        seconds = now - oldest
        seconds += max(0, number - 1 - int(seconds / length)) * length
        return amount / self.limit - max(seconds, _SECONDS_LEAST)


class TokenBucket(Meter):
    """Tokens of which ``limit`` come each second. At first, and at most, there are those of all windows."""

    __slots__ = ("_latest", "_tokens")

    def __init__(self, windows: Windows, limit: float) -> None:
        super().__init__(windows, limit)
        self._tokens = math.inf
        self._latest = 0.0

    def add(self, amount: float, now: float) -> None:
        """Take tokens, whether there are so many or not."""
        self._excess(now)
        self._tokens -= amount

    def _excess(self, now: float) -> float:
        """The seconds until no token is missing."""
        most = self.limit * self._windows.number * self._windows.seconds
        self._tokens = min(most, self._tokens + self.limit * max(0.0, now - self._latest))
        self._latest = now
        return -self._tokens / self.limit
