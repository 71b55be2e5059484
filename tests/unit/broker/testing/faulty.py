"""A wire with faults, for raw peers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from seglog_broker.testing.request_faults import RequestFaults
from tests.unit.broker.listeners.wires import WireKit, WireServed, serving_wire


@asynccontextmanager
async def faulty_wire(kit: WireKit, *flags: str) -> AsyncIterator[tuple[WireServed, RequestFaults]]:
    """As ``serving_wire``, with faults."""
    faults = RequestFaults()
    async with serving_wire(kit._replace(serve=partial(kit.serve, faults=faults)), *flags) as served:
        faults.begin(served.broker)
        yield served, faults
