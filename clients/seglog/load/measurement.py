"""The shared state of a run: connections, topic, counters, latencies, its early end; clocks are passed in."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio
from hdrh.histogram import HdrHistogram

from seglog.core.retries import backoff_seconds
from seglog.load.plan import Ended, Plan
from seglog.trio import Client
from seglog_protocol.errors import ClientError, ClientTimeoutError, DiskFullError, NotReachableError, SeglogError
from seglog_protocol.messages import TopicDescription

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)

_LATENCY_US_MAX: Final = 3_600_000_000
"""An hour; longer durations count as an hour."""
_DIGITS: Final = 3


class Latencies:
    """An HDR histogram of durations: microseconds to an hour, with three significant digits."""

    def __init__(self) -> None:
        self._histogram: Any = HdrHistogram(1, _LATENCY_US_MAX, _DIGITS)
        self._max_us = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add a duration ``count`` times; less than a microsecond, or negative, counts as a microsecond."""
        microseconds = min(max(1, round(seconds * 1e6)), _LATENCY_US_MAX)
        self._histogram.record_value(microseconds, count)
        self._max_us = max(self._max_us, microseconds)

    @property
    def count(self) -> int:
        """Number of durations."""
        return int(self._histogram.get_total_count())

    def percentile(self, percentile: float) -> float:
        """The percentile in seconds, to three digits and never above ``max``; 0 without durations."""
        return min(int(self._histogram.get_value_at_percentile(percentile)), self._max_us) / 1e6 if self.count else 0.0

    @property
    def max(self) -> float:
        """The longest duration in seconds, exact; 0 without durations."""
        return self._max_us / 1e6

    @property
    def mean(self) -> float:
        """The mean in seconds; 0 without durations."""
        return float(self._histogram.get_mean_value()) / 1e6 if self.count else 0.0


@dataclass(slots=True)
class Tally:
    """Counts of records, bytes of their batches on the wire, and requests."""

    records: int = 0
    bytes: int = 0
    requests: int = 0

    def add(self, records: int, size: int, requests: int = 1) -> None:
        """Add the records and bytes of ``requests`` requests."""
        self.records += records
        self.bytes += size
        self.requests += requests


@dataclass(slots=True)
class Measurement:
    """The measurements of one run. Call ``begin`` once, and ``touch`` after every counted event."""

    clock: Callable[[], float] = time.monotonic
    cpu_seconds: Callable[[], float] = time.process_time
    sent: Tally = field(default_factory=Tally)
    received: Tally = field(default_factory=Tally)
    errors: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0
    """From the beginning to the last counted event."""
    cpu_share: float = 0.0
    """CPU time of this process, as a share of one core, from the beginning to the end."""
    _began: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> None:
        """Begin measuring."""
        self._began = (self.clock(), self.cpu_seconds())

    def touch(self) -> None:
        """Note the time of a counted event."""
        self.seconds = self.clock() - self._began[0]

    def end(self) -> None:
        """End measuring."""
        elapsed, used = self.clock() - self._began[0], self.cpu_seconds() - self._began[1]
        self.cpu_share = used / elapsed if elapsed > 0 else 0.0


INTERRUPT_WAIT_SECONDS: Final = 1.0
"""How long to wait, after an interrupt, for requests in flight."""


class Control:
    """The end of a run, and its reason. ``scope`` encloses the whole run, ``answers`` what is measured."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.answers = trio.CancelScope()
        self.ended_by: Ended | None = None
        self.is_measuring = False
        self._ended = trio.Event()

    def end(self, why: Ended) -> None:
        """Start no new request; the first reason counts."""
        self.ended_by = self.ended_by or why
        self._ended.set()

    async def ended(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    def interrupt(self) -> None:
        """End cleanly while measuring; cancel at once before that, or at the second interrupt."""
        if not self.is_measuring or self.ended_by == "interrupt":
            self.scope.cancel()
        self.answers.deadline = min(self.answers.deadline, trio.current_time() + INTERRUPT_WAIT_SECONDS)
        self.ended_by = "interrupt"  # also when the run only waits for answers
        self._ended.set()

    async def watch(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task that handles Ctrl-C and SIGTERM; it ends at once outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            return
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.interrupt()


@dataclass(slots=True)
class Session:
    """A running load test."""

    plan: Plan
    clients: list[Client]
    topic: TopicDescription
    control: Control
    measurement: Measurement

    async def failed(self, error: SeglogError, attempts: int) -> bool:
        """Count an error. Returns False when it ends the run; else True, after a backoff for ``attempts``."""
        self.count(error)
        is_full = isinstance(error, DiskFullError)  # nobody frees it while a load waits
        if is_full or not (error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)):
            self.control.end("error")
            return False
        await trio.sleep(backoff_seconds(attempts))
        return True

    def count(self, error: SeglogError) -> None:
        """Count an error, and its time as part of the run."""
        name = type(error).__name__ if isinstance(error, ClientError) else error.code
        self.measurement.errors[name] += 1
        self.measurement.touch()
