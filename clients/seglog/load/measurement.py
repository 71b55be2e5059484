"""Counters and latencies of a run; clock and CPU time are passed in."""

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from hdrh.histogram import HdrHistogram

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)

_LATENCY_US_MAX: Final = 3_600_000_000
"""An hour; longer durations count as an hour."""
_DIGITS: Final = 3


def process_cpu_seconds() -> float:
    """CPU time of this process and its threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


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
    """The measurements of one run. Call ``begin`` after the warm-up, and ``touch`` after every counted event."""

    clock: Callable[[], float] = time.monotonic
    cpu_seconds: Callable[[], float] = process_cpu_seconds
    sent: Tally = field(default_factory=Tally)
    received: Tally = field(default_factory=Tally)
    errors: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    latencies: dict[str, Latencies] = field(default_factory=dict)
    began_at: float | None = None
    touched_at: float = 0.0
    _cpu_from: tuple[float, float] = (0.0, 0.0)
    _cpu_to: tuple[float, float] | None = None

    def begin(self, at: float | None = None) -> None:
        """Begin measuring, now or as of ``at``; only the first call counts."""
        if self.began_at is None:
            now = self.clock()
            self.began_at = self.touched_at = now if at is None else at
            self._cpu_from = (now, self.cpu_seconds())

    def touch(self) -> None:
        """Note the time of a counted event."""
        self.touched_at = self.clock()

    def end(self) -> None:
        """End measuring."""
        self._cpu_to = (self.clock(), self.cpu_seconds())

    def took(self, what: str, seconds: float, count: int = 1) -> None:
        """Add a duration of ``what``, ``count`` times."""
        latencies = self.latencies.get(what)
        if latencies is None:
            latencies = self.latencies[what] = Latencies()
        latencies.add(seconds, count)

    def took_all(self, what: str, microseconds: Iterable[int]) -> None:
        """``took`` for many durations; equal ones are added by one call."""
        for value, count in Counter(microseconds).items():
            self.took(what, value / 1e6, count)

    @property
    def seconds(self) -> float:
        """Seconds from the beginning to the last counted event."""
        return 0.0 if self.began_at is None else max(0.0, self.touched_at - self.began_at)

    @property
    def cpu_share(self) -> float:
        """CPU time of this process, as a share of one core, since measuring began."""
        if self.began_at is None:
            return 0.0
        began, cpu_began = self._cpu_from
        ended, cpu_ended = self._cpu_to or (self.clock(), self.cpu_seconds())
        return (cpu_ended - cpu_began) / (ended - began) if ended > began else 0.0
