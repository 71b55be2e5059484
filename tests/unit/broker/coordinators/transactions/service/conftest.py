"""A broker that coordinates transactions on a forgetful disk, in virtual time."""

from collections.abc import AsyncIterator

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.unit.broker.coordinators.transactions.service.running import coordinating, with_orders


@pytest.fixture
async def broker(fs: ForgetfulFileSystem) -> AsyncIterator[Broker]:
    """One with the topic ``orders``."""
    async with coordinating(fs) as broker:
        await with_orders(broker)
        yield broker
