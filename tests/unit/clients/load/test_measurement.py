"""What is counted, with a clock and a CPU meter of the test's own."""

import random

import pytest

from seglog.load.measurement import Latencies, Measurement, process_cpu_seconds


class Meter:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self) -> float:
        return self.value


def test_percentiles_are_those_of_the_values_to_three_digits() -> None:
    source = random.Random(7)
    values = [source.lognormvariate(-7, 1.5) for _ in range(20_000)]
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    values.sort()
    for percentile in (50, 90, 99, 99.9):
        exact = values[int(len(values) * percentile / 100) - 1]
        assert latencies.percentile(percentile) == pytest.approx(exact, rel=2e-3, abs=2e-6)
    assert latencies.max == pytest.approx(values[-1], abs=1e-6)
    assert latencies.mean == pytest.approx(sum(values) / len(values), rel=1e-2)
    assert latencies.count == 20_000


def test_nothing_measured_is_zero_and_what_is_out_of_range_counts_as_its_edge() -> None:
    latencies = Latencies()
    assert (latencies.percentile(99), latencies.max, latencies.mean) == (0.0, 0.0, 0.0)
    latencies.add(-5.0)
    latencies.add(1e9)
    assert latencies.count == 2
    assert (latencies.percentile(50), latencies.max) == (1e-6, 3600.0)


def test_no_percentile_is_above_the_maximum() -> None:
    latencies = Latencies()
    latencies.add(0.123457)
    assert latencies.percentile(50) == latencies.percentile(99.9) == latencies.max == 0.123457


def test_a_run_lasts_until_what_was_done_last_and_its_cpu_share_until_its_end() -> None:
    clock, cpu = Meter(10.0), Meter(1.0)
    measurement = Measurement(clock, cpu)
    assert (measurement.seconds, measurement.cpu_share) == (0.0, 0.0)
    measurement.begin()
    clock.value = 12.5
    measurement.touch()
    clock.value, cpu.value = 14.0, 4.6
    measurement.end()
    clock.value, cpu.value = 100.0, 100.0
    assert measurement.seconds == 2.5
    assert measurement.cpu_share == pytest.approx(0.9)


def test_the_cpu_time_of_the_process_only_rises() -> None:
    before = process_cpu_seconds()
    assert sum(range(100_000)) > 0
    assert process_cpu_seconds() >= before > 0
