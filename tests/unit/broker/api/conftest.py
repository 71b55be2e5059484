"""Brokers with a topic ``t`` on the forgetful disk, of which no file is left open."""

from collections.abc import AsyncIterator

import pytest

from seglog_broker.api.broker import Broker
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.messages import CreateTopicRequest
from tests.unit.broker.api.scene import Scene, made
from tests.unit.broker.brokers import open_broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = open_broker()
    await broker.create_topic(CreateTopicRequest("t", 2))
    yield broker
    broker.close()
    assert isinstance(broker.fs, ForgetfulFileSystem)
    assert broker.fs.open_files == []


@pytest.fixture
def fs(broker: Broker) -> ForgetfulFileSystem:
    """The disk of the broker."""
    assert isinstance(broker.fs, ForgetfulFileSystem)
    return broker.fs


@pytest.fixture
async def scene() -> Scene:
    return await made()
