"""A forgetful disk for coordinators, in virtual time."""

import pytest

from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.unit.broker import mock_clock

pytest_itemcollected = mock_clock.pytest_itemcollected


@pytest.fixture
def fs() -> ForgetfulFileSystem:
    return ForgetfulFileSystem()
