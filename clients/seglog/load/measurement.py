"""What is counted while a run goes on; clock and CPU time are handed in."""

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from hdrh.histogram import HdrHistogram

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)

_LATENCY_US_MAX: Final = 3_600_000_000
"""An hour; what takes longer counts as that long."""
_DIGITS: Final = 3


def process_cpu_seconds() -> float:
    """CPU time of this process and its threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Latencies:
    """An HDR histogram of durations: microseconds to an hour, three digits kept at every size."""

    def __init__(self) -> None:
        self._histogram: Any = HdrHistogram(1, _LATENCY_US_MAX, _DIGITS)
        self._max_us = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """``count`` things took so long; below a microsecond, and below zero, is a microsecond."""
        microseconds = min(max(1, round(seconds * 1e6)), _LATENCY_US_MAX)
        self._histogram.record_value(microseconds, count)
        self._max_us = max(self._max_us, microseconds)

    @property
    def count(self) -> int:
        """How many were added."""
        return int(self._histogram.get_total_count())

    def percentile(self, percentile: float) -> float:
        """Seconds within which so many per cent were done, to three digits and never above ``max``; 0 for none."""
        return min(int(self._histogram.get_value_at_percentile(percentile)), self._max_us) / 1e6 if self.count else 0.0

    @property
    def max(self) -> float:
        """The longest, seconds, exactly; 0 for none."""
        return self._max_us / 1e6

    @property
    def mean(self) -> float:
        """The mean, seconds; 0 for none."""
        return float(self._histogram.get_mean_value()) / 1e6 if self.count else 0.0


@dataclass(slots=True)
class Tally:
    """Records, bytes of their batches as they travel, and requests."""

    records: int = 0
    bytes: int = 0
    requests: int = 0

    def add(self, records: int, size: int, requests: int = 1) -> None:
        """One more request, or more."""
        self.records += records
        self.bytes += size
        self.requests += requests


@dataclass(slots=True)
class Measurement:
    """The counts of one run. ``begin`` when the warm-up is over, ``touch`` whenever something counted was done."""

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
        """Measuring begins, or has begun at ``at``; only the first call counts."""
        if self.began_at is None:
            now = self.clock()
            self.began_at = self.touched_at = now if at is None else at
            self._cpu_from = (now, self.cpu_seconds())

    def touch(self) -> None:
        """Something that counts was done just now."""
        self.touched_at = self.clock()

    def end(self) -> None:
        """Nothing more will be measured."""
        self._cpu_to = (self.clock(), self.cpu_seconds())

    def took(self, what: str, seconds: float, count: int = 1) -> None:
        """``count`` times ``what`` took so long."""
        latencies = self.latencies.get(what)
        if latencies is None:
            latencies = self.latencies[what] = Latencies()
        latencies.add(seconds, count)

    def took_all(self, what: str, microseconds: Iterable[int]) -> None:
        """As ``took`` for many: equal ones are counted before they cost a call each."""
        for value, count in Counter(microseconds).items():
            self.took(what, value / 1e6, count)

    @property
    def seconds(self) -> float:
        """From the beginning to what was done last."""
        return 0.0 if self.began_at is None else max(0.0, self.touched_at - self.began_at)

    @property
    def cpu_share(self) -> float:
        """CPU time of this process, as a share of one core, since measuring began."""
        if self.began_at is None:
            return 0.0
        began, cpu_began = self._cpu_from
        ended, cpu_ended = self._cpu_to or (self.clock(), self.cpu_seconds())
        return (cpu_ended - cpu_began) / (ended - began) if ended > began else 0.0
