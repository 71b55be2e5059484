"""Measures how long the loop works between two polls of the network."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, thread_time

import trio

from seglog_broker.runtime.metrics import LoopMetrics


class StallWatch(trio.abc.Instrument):
    """Measures how long the loop works between two polls of the network, during which all other clients wait.

    It measures wall time and processor time: the difference shows whether the loop had too much work or too little of
    the machine. It costs two calls per turn of the loop, whatever the number of tasks, so it is always on.
    """

    def __init__(self, loop: LoopMetrics, wall_seconds: Callable[[], float] = perf_counter) -> None:
        self._loop = loop
        self._wall_seconds = wall_seconds
        self._awake_since: float | None = None
        self._busy_since = 0.0

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's signature
        """The loop has polled the network and begins a turn."""
        self._awake_since = self._wall_seconds()
        self._busy_since = thread_time()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's signature
        """The turn is over."""
        if self._awake_since is not None:
            now = self._wall_seconds()
            self._loop.add_turn(thread_time() - self._busy_since, now - self._awake_since, now)


@contextmanager
def watch_stalls(loop: LoopMetrics, wall_seconds: Callable[[], float] = perf_counter) -> Iterator[None]:
    """Measure the loop's stalls within this block."""
    watch = StallWatch(loop, wall_seconds)
    trio.lowlevel.add_instrument(watch)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(watch)
