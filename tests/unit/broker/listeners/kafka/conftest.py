"""A Kafka listener in front of a fresh broker, and a connection to it; groups that answer as a test has prepared."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.listeners.kafka.group_requests import FakeGroups
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, kafka


@pytest.fixture
async def served() -> AsyncIterator[KafkaServed]:
    async with kafka() as served:
        yield served


@pytest.fixture
async def peer(served: KafkaServed) -> KafkaPeer:
    return await served.connect()


@pytest.fixture
async def groups() -> FakeGroups:
    return FakeGroups()
