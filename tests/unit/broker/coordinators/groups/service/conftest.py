"""A broker with its groups on a forgetful disk, in virtual time."""

from collections.abc import AsyncIterator

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.unit.broker.coordinators.groups.service.running import running, with_topic


@pytest.fixture
async def broker(fs: ForgetfulFileSystem) -> AsyncIterator[Broker]:
    """One with the topic ``t``."""
    async with running(fs) as broker:
        await with_topic(broker)
        yield broker
