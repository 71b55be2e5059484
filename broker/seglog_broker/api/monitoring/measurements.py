"""The task that measures what a scrape may not take the time for: sizes, dirty ratios, what groups read next."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from seglog_broker.logger import get_logger

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
