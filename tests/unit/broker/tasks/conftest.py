"""Tests of background tasks: time is that of trio's mock clock, which wall clock and disk follow."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.testing.offload import InlineOffload
from tests.unit.broker import mock_clock
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, living

pytest_itemcollected = mock_clock.pytest_itemcollected


@pytest.fixture
def clock() -> LoopClock:
    return LoopClock()


@pytest.fixture
def fs(clock: LoopClock) -> TimedDisk:
    return TimedDisk(clock)


@pytest.fixture
def offload() -> InlineOffload:
    return InlineOffload()


@pytest.fixture
async def empty(
    request: pytest.FixtureRequest, clock: LoopClock, fs: TimedDisk, offload: InlineOffload
) -> AsyncIterator[Broker]:
    """A broker without topics that has the FLAGS of the test's module and runs its tasks ONLY."""
    module: Any = request.module
    async with living(fs, clock, *getattr(module, "FLAGS", ()), offload=offload, tasks=module.ONLY) as broker:
        yield broker


@pytest.fixture
def broker(empty: Broker) -> Broker:
    """The same one; modules have it with a topic."""
    return empty
