"""What is counted of connections, on each wire: by listener, and of those that it did not take or that failed."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.unit.broker.listeners.wires import BATCH, WireKit, WirePeer, WireServed, serving_wire

LABELS = {"native": "native", "kafka": "PLAINTEXT"}


async def test_connections_are_counted_by_listener(kit: WireKit, served: WireServed) -> None:
    first, second = await served.connect(), await served.connect()
    for peer in (first, second):
        await peer.send(peer.query())
        await peer.receive()
    counts = served.broker.metrics.listeners[LABELS[kit.name]]
    assert (counts.connections, counts.connections_accepted) == (2, 2)
    await first.stream.aclose()
    await served.until_closed(1)
    assert (counts.connections, counts.connections_accepted) == (1, 2)
    assert list(served.broker.metrics.listeners) == [LABELS[kit.name]]
    assert not served.broker.metrics.connections_ended, "its peer has left"


async def test_an_append_without_an_answer_that_fails_is_a_reason(served: WireServed, peer: WirePeer) -> None:
    await peer.send(peer.append("none", BATCH[:-1] + bytes([BATCH[-1] ^ 1])))
    await peer.rest()
    await served.until_closed()
    assert served.broker.metrics.connections_ended == {"append_failed": 1}


async def ask_anew(served: WireServed) -> None:
    """One request on a connection of its own."""
    peer = await served.connect()
    await peer.send(peer.query())
    await peer.receive()


async def test_one_connection_too_many_is_a_reason(kit: WireKit) -> None:
    async with serving_wire(kit, "seglog.connections.max=1") as served:
        peer = await served.connect()
        await peer.send(peer.query())
        await peer.receive()
        with pytest.raises((AssertionError, KeyError, trio.BrokenResourceError)):  # each wire says it in its own way
            await ask_anew(served)
        await wait_all_tasks_blocked()
        counts = served.broker.metrics.listeners[LABELS[kit.name]]
        assert served.broker.metrics.connections_ended == {"too_many_connections": 1}
        assert (counts.connections, counts.connections_accepted) == (1, 1)
