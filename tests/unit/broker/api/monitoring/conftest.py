"""A broker without topics."""

from collections.abc import Iterator

import pytest

from seglog_broker.api.broker import Broker
from tests.unit.broker.brokers import open_broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = open_broker()
    yield broker
    broker.close()
