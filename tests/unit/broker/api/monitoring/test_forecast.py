"""When the disk will be full, by the line through an hour of free space."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.measurements import (
    POINTS,
    SPAN_SECONDS_MIN,
    WINDOW_SECONDS,
    DiskForecast,
    Point,
    seconds_until,
)

GIB = 1024**3
STEP = WINDOW_SECONDS / POINTS


@given(
    rate=st.integers(1, 10**9),
    free=st.integers(0, 2**50),
    mark=st.integers(0, 2**30),
    begins=st.floats(0, 1e6),
    count=st.integers(11, POINTS),
)
def test_what_shrinks_evenly_is_full_when_it_has_shrunk_so_far(
    rate: int, free: int, mark: int, begins: float, count: int
) -> None:
    points = [Point(begins + n * STEP, free + round((count - 1 - n) * STEP * rate)) for n in range(count)]
    assert seconds_until(points, mark) == pytest.approx(max(0, free - mark) / rate, rel=1e-3, abs=1e-3)


def test_what_grows_or_stays_is_never_full() -> None:
    assert seconds_until([Point(n * STEP, GIB) for n in range(60)], 0) == math.inf
    assert seconds_until([Point(n * STEP, GIB + n) for n in range(60)], 0) == math.inf


def test_a_short_time_and_no_time_give_no_forecast() -> None:
    assert seconds_until([], 0) == math.inf
    points = [Point(0, GIB), Point(SPAN_SECONDS_MIN - 1, GIB // 2)]
    assert seconds_until(points, 0) == math.inf
    assert seconds_until([*points, Point(SPAN_SECONDS_MIN, GIB // 2)], 0) < math.inf


def test_a_leap_of_retention_does_not_undo_the_trend() -> None:
    """Free space falls by 6 GiB and comes back by 2 GiB: it still falls."""
    points = [Point(n * STEP, (100 - n) * GIB // 10 + (2 * GIB if n > 30 else 0)) for n in range(60)]
    assert 0 < seconds_until(points, 0) < math.inf


async def test_the_forecast_goes_on_from_the_last_look_and_is_zero_on_a_full_disk(broker: Broker) -> None:
    space = broker.directory.space
    forecast = DiskForecast(space)
    for number in range(31):
        space.free = space.marks.hard + (100 - number) * 1000
        forecast.note(number * 30.0)
    assert forecast.full_in_seconds(900.0) == pytest.approx(70 * 30, rel=1e-6)
    assert forecast.full_in_seconds(910.0) == pytest.approx(70 * 30 - 10, rel=1e-6)
    space.update(0)
    assert forecast.full_in_seconds(910.0) == 0
    space.update(10**15)


async def test_an_hour_is_remembered(broker: Broker) -> None:
    space = broker.directory.space
    forecast = DiskForecast(space)
    for number in range(1000):  # it fell long ago, and has been the same for an hour
        space.free = 10**12 - min(number, 800) * 10**6
        forecast.note(number * STEP)
    assert forecast.full_in_seconds(999 * STEP) == math.inf
