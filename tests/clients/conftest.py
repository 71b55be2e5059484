"""What tests of the client share."""

import pytest

from tests.clients.faces import CLIENTS, FACES, Connect, Face


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    """Each face of the client; a test that asks for it runs with both."""
    return FACES[request.param]


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest) -> Connect:
    """As ``face``, for a broker that is there: a client of its address."""
    return CLIENTS[request.param]
