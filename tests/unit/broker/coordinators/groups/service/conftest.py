"""A broker with its groups on a forgetful disk, in virtual time."""

from collections.abc import AsyncIterator

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.unit.broker import mock_clock
from tests.unit.broker.coordinators.groups.service.running import running, with_topic

pytest_itemcollected = mock_clock.pytest_itemcollected


@pytest.fixture
def fs() -> ForgetfulFileSystem:
    return ForgetfulFileSystem()


@pytest.fixture
async def broker(fs: ForgetfulFileSystem) -> AsyncIterator[Broker]:
    """One with the topic ``t``."""
    async with running(fs) as broker:
        await with_topic(broker)
        yield broker
