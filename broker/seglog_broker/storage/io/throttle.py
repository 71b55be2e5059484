"""Keeping a stream of bytes below a rate, by sleeping now and then. Source: Kafka's Throttler."""

from collections.abc import Callable
from typing import Final

WINDOW_SECONDS: Final = 0.3
"""How long bytes are counted before the rate is looked at."""


class Pace:
    """Keeps many streams, one after the other or side by side, below one rate: none begins before ``ready_at``.

    ``Throttle`` looks at its stream every ``WINDOW_SECONDS``, so what is shorter goes by it unseen. Here it counts.
    Times are seconds of one clock.
    """

    def __init__(self) -> None:
        self.ready_at = 0.0

    def note(self, size: int, began: float, bytes_per_second: float) -> None:
        """A stream that began at that time has moved so many bytes, and all together may move so many a second."""
        self.ready_at = max(self.ready_at, began) + size / bytes_per_second


class Throttle:
    """Counts bytes; ``note`` sleeps when more went by than ``bytes_per_second`` allows. None never sleeps.

    ``monotonic`` returns seconds, ``sleep`` waits some; ``total`` is all that was counted.
    """

    def __init__(
        self, bytes_per_second: float | None, monotonic: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self.total = 0
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._began = monotonic()
        self._observed = 0

    def note(self, size: int) -> None:
        """Count ``size`` bytes read or written, and sleep if they came too soon."""
        self.total += size
        if self._bytes_per_second is None:
            return
        self._observed += size
        elapsed = self._monotonic() - self._began
        if elapsed > WINDOW_SECONDS:
            wait = self._observed / self._bytes_per_second - elapsed
            if wait > 0:
                self._sleep(wait)
            self._began = self._monotonic()
            self._observed = 0
