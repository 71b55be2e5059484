"""How much of something a client uses in a time, as Kafka counts it, and how long it is to wait for using less.

The arithmetic alone: moments are seconds of a clock that never goes back, and are passed in.
"""

import math
from typing import Final, NamedTuple

WAIT_SECONDS_MAX: Final = (2**31 - 1) / 1000
"""The longest wait: an answer tells it as milliseconds in 32 bits."""

_SECONDS_LEAST: Final = 0.001  # that an amount is divided by


class Windows(NamedTuple):
    """The time that is looked back at: ``number`` windows of so many seconds, of which the last is not over."""

    number: int
    seconds: float


class _Window:
    __slots__ = ("amount", "began", "latest")

    def __init__(self, now: float) -> None:
        self.begin(now)

    def begin(self, now: float) -> None:
        self.began = self.latest = now
        self.amount = 0.0


class Rate:
    """An amount a second. The number of windows stays the same; there is one more of them than are looked back at."""

    __slots__ = ("_current", "_windows")

    def __init__(self) -> None:
        self._windows: list[_Window] = []
        self._current = 0

    def add(self, amount: float, now: float, windows: Windows) -> None:
        """Count an amount; one below 0 takes back what was counted."""
        if not self._windows:
            self._windows.append(_Window(now))
        window = self._windows[self._current]
        if now - window.began >= windows.seconds:
            self._current = (self._current + 1) % (windows.number + 1)
            if self._current == len(self._windows):
                self._windows.append(_Window(now))
            window = self._windows[self._current]
            window.begin(now)
        window.amount += amount
        window.latest = now

    def measure(self, now: float, windows: Windows) -> tuple[float, float]:
        """The amount a second, and the seconds that it is the average of.

        These are at least those of all windows but the one that is not over: a client that has begun just now may use
        at once what it may use in that time.
        """
        oldest, amount = now, 0.0
        for window in self._windows:
            if now - window.latest >= windows.number * windows.seconds:
                window.begin(now)
            oldest = min(oldest, window.began)
            amount += window.amount
        seconds = now - oldest
        missing = windows.number - 1 - int(seconds / windows.seconds)
        if missing > 0:
            seconds += missing * windows.seconds
        seconds = max(seconds, _SECONDS_LEAST)
        return amount / seconds, seconds

    def wait(self, limit: float, now: float, windows: Windows) -> float:
        """The seconds in which nothing may be used, so that it is ``limit`` a second again; 0 if it is no more."""
        rate, seconds = self.measure(now, windows)
        return min((rate - limit) / limit * seconds, WAIT_SECONDS_MAX) if rate > limit else 0.0


class TokenBucket:
    """Tokens of which ``limit`` come each second. At first, and at most, there are those of all windows."""

    __slots__ = ("_latest", "_tokens")

    def __init__(self) -> None:
        self._tokens = math.inf
        self._latest = 0.0

    def tokens(self, limit: float, now: float, windows: Windows) -> float:
        """How many there are; below 0 some are missing."""
        most = limit * windows.number * windows.seconds
        self._tokens = min(most, self._tokens + limit * max(0.0, now - self._latest))
        self._latest = now
        return self._tokens

    def take(self, amount: float, limit: float, now: float, windows: Windows) -> None:
        """Take some, whether there are so many or not."""
        self._tokens = self.tokens(limit, now, windows) - amount

    def wait(self, limit: float, now: float, windows: Windows) -> float:
        """The seconds until none is missing."""
        return min(max(0.0, -self.tokens(limit, now, windows) / limit), WAIT_SECONDS_MAX)
