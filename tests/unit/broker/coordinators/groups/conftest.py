"""Groups in virtual time, one for each test."""

import pytest

from tests.unit.broker.coordinators.groups.classic_coordinator import Coordinator


@pytest.fixture
def run() -> Coordinator:
    """A classic group without members."""
    return Coordinator()
