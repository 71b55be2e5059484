"""A broker with one topic behind each of the wires, and a connection to it."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.listeners.wires import WIRES, WireKit, WirePeer, WireServed, serving_wire


@pytest.fixture(params=WIRES, ids=[kit.name for kit in WIRES])
def kit(request: pytest.FixtureRequest) -> WireKit:
    wire: WireKit = request.param
    return wire


@pytest.fixture
async def served(kit: WireKit) -> AsyncIterator[WireServed]:
    async with serving_wire(kit) as served:
        yield served


@pytest.fixture
async def peer(served: WireServed) -> WirePeer:
    return await served.connect()
