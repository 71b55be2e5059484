"""Groups in virtual time, one for each test."""

import pytest

from seglog_broker.coordinators.groups import consumer_core
from seglog_protocol import steps
from tests.unit.broker.coordinators.groups.classic_coordinator import Coordinator


@pytest.fixture
def run() -> Coordinator:
    """A classic group without members."""
    return Coordinator()


@pytest.fixture
def single(run: Coordinator) -> Coordinator:
    """One with a dynamic member, ``app-1``."""
    run.stable(None)
    return run


@pytest.fixture
def pair(run: Coordinator) -> Coordinator:
    """One with two of them, of which ``app-1`` leads."""
    run.stable(None, None)
    return run


@pytest.fixture
def statics(run: Coordinator) -> Coordinator:
    """One with the static members ``blue-1``, which leads, and ``green-2``."""
    run.stable("blue", "green")
    return run


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests pause wherever they can."""
    monkeypatch.setattr(steps, "ITEMS_A_STEP", 1)
    monkeypatch.setattr(consumer_core, "ITEMS_A_STEP", 1)
