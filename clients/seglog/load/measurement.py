"""What is counted and measured in a run; clocks are passed in."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hdrh.histogram import HdrHistogram

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

    def in_ms(self) -> dict[str, float]:
        """The percentiles, to three digits, the exact maximum and the mean, in milliseconds; 0 without durations."""
        histogram, is_empty = self._histogram, not self.count
        times = {f"p{p:g}": min(histogram.get_value_at_percentile(p), self._max_us) for p in PERCENTILES}
        times |= {"max": self._max_us, "mean": histogram.get_mean_value()}
        return {name: 0.0 if is_empty else round(us / 1000, 3) for name, us in times.items()}


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
