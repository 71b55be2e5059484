"""Histograms that cost a bisection and an addition for each value."""

from array import array
from bisect import bisect_left
from typing import Final

SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds for durations."""


class Histogram:
    """Counts of values by range."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        """``bounds`` are inclusive upper bounds, rising."""
        self.bounds = bounds
        self.counts = array("Q", bytes(8 * (len(bounds) + 1)))
        """Of each range alone; the last is of what is above all bounds."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_many(self, value: float, count: int) -> None:
        """Count a value so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count
