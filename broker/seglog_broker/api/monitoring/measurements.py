"""The task that measures what a scrape may not take the time for, and the forecast of when the disk will be full."""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import trio

from seglog_broker.logger import get_logger
from seglog_broker.storage.io.free_space import FreeSpace

START_SECONDS: Final = 1.0
"""After the start, which has more urgent things to do."""

REST_SECONDS: Final = 10.0
"""Least time between two rounds."""

REST_SHARE: Final = 9.0
"""A round that took long is followed by so many times its own time without one."""

log = get_logger()


class Measurements:
    """Measures, again and again, in turns with everything else."""

    def __init__(self, measures: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """``measures`` are called one after the other."""
        self._measures = measures
        self._failed: set[int] = set()

    async def run(self) -> None:
        """Measure until cancelled."""
        await trio.sleep(START_SECONDS)
        while True:
            began = trio.current_time()
            await self.measure()
            await trio.sleep(max(REST_SECONDS, REST_SHARE * (trio.current_time() - began)))

    async def measure(self) -> None:
        """One round. A bug in it is logged once, and costs its numbers alone."""
        for number, measure in enumerate(self._measures):
            try:
                await measure()
            except Exception:
                if number not in self._failed:
                    log.exception("measurement_failed", consequence="some metrics are old or missing")
                self._failed.add(number)


WINDOW_SECONDS: Final = 3600.0
POINTS: Final = 120
"""Points in it: one every half minute."""

SPAN_SECONDS_MIN: Final = 300.0
"""The least time that points span for a forecast: a short burst says nothing of the hours to come."""


class Point(NamedTuple):
    """Free bytes at a moment, in seconds of a clock that never goes back."""

    seconds: float
    free: int


def seconds_until(points: Sequence[Point], mark: int) -> float:
    """How long after the last point free space is down to ``mark``, by the line through all of them; infinite if never.

    The line is that of least squares. It starts at the last point: what is free now is known.
    """
    if not points or points[-1].seconds - points[0].seconds < SPAN_SECONDS_MIN:
        return math.inf
    count = len(points)
    seconds = sum(point.seconds for point in points) / count
    free = sum(point.free for point in points) / count
    spread = sum((point.seconds - seconds) ** 2 for point in points)
    slope = sum((point.seconds - seconds) * (point.free - free) for point in points) / spread
    if slope >= 0:
        return math.inf
    return max(0.0, (points[-1].free - mark) / -slope)


class DiskForecast:
    """Notes the free space of a log directory."""

    def __init__(self, space: FreeSpace) -> None:
        self._space = space
        self._points: deque[Point] = deque(maxlen=POINTS + 1)

    async def run(self) -> None:
        """Note it until cancelled; another task measures it."""
        while True:
            self.note(trio.current_time())
            await trio.sleep(WINDOW_SECONDS / POINTS)

    def note(self, now: float) -> None:
        """Note what is free at this moment."""
        self._points.append(Point(now, self._space.free))

    def full_in_seconds(self, now: float) -> float:
        """Seconds from ``now`` until appends are refused; 0 while they are."""
        if self._space.is_full:
            return 0.0
        until = seconds_until(self._points, self._space.marks.hard)
        return max(0.0, until - (now - self._points[-1].seconds)) if until < math.inf else math.inf
