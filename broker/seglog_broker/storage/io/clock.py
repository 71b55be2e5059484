"""Time as the storage engine sees it: a wall clock that is passed in, and limits on rates, kept by sleeping."""

import time
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

WINDOW_SECONDS: Final = 0.3
"""Bytes are counted for this long before they are compared with the rate."""

LATEST_MS: Final = (2**63 - 1) // 1_000_000
"""The last moment, in 2262, that fits 64 bits of nanoseconds."""

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On macOS, which has none, CLOCK_MONOTONIC goes on in suspend."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """A source of wall time; tests and simulations bring their own."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. May jump in either direction, as wall clocks do."""
        raise NotImplementedError


class SystemClock(Clock):
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, at most LATEST_MS: later, Python's clock raises OverflowError."""
        try:
            return time.time_ns() // 1_000_000
        except OverflowError:
            return LATEST_MS


def boottime_ns() -> int:
    """Nanoseconds since the machine was started, those included in which it was suspended. Nobody can set it.

    All processes of a machine read the same.
    """
    return time.clock_gettime_ns(_BOOTTIME)


class Pace:
    """One rate for many streams: the caller begins none before ``ready_at``, in seconds of the caller's clock.

    ``Throttle`` does not slow down a stream that takes less than ``WINDOW_SECONDS``. ``Pace`` counts such streams too.
    """

    def __init__(self) -> None:
        self.ready_at = 0.0

    def note(self, size: int, began: float, bytes_per_second: float) -> None:
        """Count a stream of ``size`` bytes that began at ``began``, and put ``ready_at`` off accordingly.

        ``bytes_per_second`` is the limit for all streams together.
        """
        self.ready_at = max(self.ready_at, began) + size / bytes_per_second


class Throttle:
    """Keeps one stream below ``bytes_per_second``: ``note`` sleeps when it was faster. None: it never sleeps.

    ``monotonic`` returns seconds, ``sleep`` waits for so many; ``total`` is the number of bytes counted. Within
    ``window_seconds`` bytes may come as fast as they do. After Kafka's Throttler.
    """

    def __init__(
        self,
        bytes_per_second: float | None,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        *,
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        self.total = 0
        self._window_seconds = window_seconds
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
        if elapsed >= self._window_seconds:
            wait = self._observed / self._bytes_per_second - elapsed
            if wait > 0:
                self._sleep(wait)
            self._began = self._monotonic()
            self._observed = 0
