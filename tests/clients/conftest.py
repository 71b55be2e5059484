"""What tests of the client share."""

import pytest

from tests.clients.faces import FACES, Face


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    """Each face of the client; a test that asks for it runs with both."""
    return FACES[request.param]
