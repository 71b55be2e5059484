"""Fixtures of background task tests: a clock that follows the loop, and a disk that follows the clock."""

import pytest

from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def fs(clock: LoopClock) -> TimedDisk:
    return TimedDisk(clock)
