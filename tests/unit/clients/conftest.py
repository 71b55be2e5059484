"""What tests of the client share."""

from collections.abc import Iterator

import pytest

import seglog
from seglog.testing import Broker
from tests.unit.clients.faces import CLIENTS, FACES, Connect, Face
from tests.unit.clients.fake_broker import FakeBroker, fake_broker


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    """The blocking face and the one on trio; a test that asks for it runs with both."""
    return FACES[request.param]


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """As ``face``, for a broker that is there: a client of its address."""
    return CLIENTS[request.param]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker of the test's own, with the topic t."""
    with fake_broker() as running:
        yield running


@pytest.fixture(scope="module")
def _group_broker() -> Iterator[Broker]:
    with Broker(group_min_session_timeout_ms=6000) as started:  # as in a daemon: some are refused
        yield started


@pytest.fixture
def group_broker(_group_broker: Broker) -> Iterator[Broker]:
    """The broker of the module, without topics and without groups, but for members that a test has left in one."""
    yield _group_broker
    with seglog.connect(_group_broker.address) as client:
        for topic in client.topics():
            if not topic.name.startswith("__"):
                client.delete_topic(topic.name)
        client.delete_groups([listed.group for listed in client.groups()])
