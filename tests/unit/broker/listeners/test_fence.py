"""Without the lease no byte leaves a connection, whatever was asked, on either wire, with TLS and from files."""

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from pathlib import Path

import pytest
import trio

from seglog_broker.listeners.http import pages
from seglog_broker.listeners.tls_transport import TlsTransport
from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.fence import Fence, FenceError
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.testing.offload import InlineOffload
from tests.support import each_case
from tests.unit.broker.listeners.fake_broker import StoredFile, rest_of
from tests.unit.broker.listeners.test_tls_transport import encrypted, server_context
from tests.unit.broker.listeners.test_tls_transport import served as served_with_tls
from tests.unit.broker.listeners.wires import TOPIC, WireKit, WirePeer, WireServed, serving_wire

FLAGS = ("seglog.backup.to=/backup", "seglog.backup.lease.ms=3000")
FOR_EVER = 1 << 62


class Gate(InlineOffload):
    """Fsyncs that return when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for, self.opened = trio.Event(), trio.Event()

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        self.is_waited_for.set()
        await self.opened.wait()
        return await super().commit(fs, flushes)


@pytest.fixture
async def gate() -> Gate:
    return Gate()


@pytest.fixture
async def served(kit: WireKit, gate: Gate) -> AsyncIterator[WireServed]:
    async with serving_wire(kit, *FLAGS, offload=gate) as served:
        fence_of(served).hold(FOR_EVER)
        yield served


def fence_of(served: WireServed) -> Fence:
    assert served.broker.fence is not None
    return served.broker.fence


def log_end(served: WireServed) -> int:
    return served.broker.partitions[TOPIC, 0].log.log_end_offset


REQUESTS: dict[str, Callable[[WirePeer], bytes]] = {
    "append disk": lambda peer: peer.append("disk"),
    "append os": lambda peer: peer.append("os"),
    "append none": lambda peer: peer.append("none"),
    "fetch": lambda peer: peer.fetch(0),
    "query": lambda peer: peer.query(),
    "commit": lambda peer: peer.commit(0),
}


@each_case("kind", REQUESTS)
async def test_a_request_that_comes_after_the_lapse_is_neither_served_nor_answered(
    served: WireServed, gate: Gate, kind: str
) -> None:
    gate.opened.set()
    peer = await served.connect()
    await peer.send(peer.append())
    assert (await peer.receive()).value == log_end(served) - 1
    end = log_end(served)
    fence_of(served).until_ns = 0
    await peer.send(REQUESTS[kind](peer))
    assert await peer.rest() == b""
    assert log_end(served) == end
    fence_of(served).hold(FOR_EVER)


async def test_an_append_whose_fsync_ends_after_the_lapse_is_not_acknowledged(served: WireServed, gate: Gate) -> None:
    peer = await served.connect()
    await peer.send(peer.append(), peer.append())
    await gate.is_waited_for.wait()
    fence_of(served).until_ns = 0
    gate.opened.set()
    assert await peer.rest() == b""
    assert log_end(served) > 0
    fence_of(served).hold(FOR_EVER)
    again = await served.connect()
    await again.send(again.query())
    assert (await again.receive()).value == log_end(served)


async def test_what_waited_is_not_answered_after_the_lapse_also_at_a_stop(served: WireServed) -> None:
    peer = await served.connect()
    await peer.send(peer.fetch(0, wait_ms=60_000))
    await served.until_waiting(1)
    fence_of(served).until_ns = 0
    (await served.connection_of(peer)).stop()
    assert await peer.rest() == b""


async def test_a_new_connection_ends_without_a_word(served: WireServed) -> None:
    peer = await served.connect()
    fence_of(served).until_ns = 0
    async with await trio.open_tcp_stream(*peer.stream.socket.getpeername()[:2]) as stream:
        await stream.send_all(peer.query())
        assert await rest_of(stream) == b""


async def test_nobody_is_sent_to_a_broker_without_its_lease(served: WireServed) -> None:
    assert pages.ready(served.broker).status is HTTPStatus.OK
    fence_of(served).until_ns = 0
    assert pages.ready(served.broker).status is HTTPStatus.SERVICE_UNAVAILABLE
    assert served.broker.backup is not None
    assert any("does not hold its lease" in problem.sentence for problem in served.broker.backup.problems())


@pytest.fixture
def pair() -> tuple[Transport, socket.socket]:
    ours, its = socket.socketpair()
    ours.setblocking(False)
    its.setblocking(False)
    transport = Transport(ours)
    transport.fence = Fence(lambda: 0)
    transport.fence.hold(1)
    return transport, its


def test_a_transport_sends_and_receives_nothing_without_it_and_never_again(
    pair: tuple[Transport, socket.socket], tmp_path: Path
) -> None:
    transport, its = pair
    assert transport.fence is not None
    file, buffer = StoredFile(tmp_path, b"records"), memoryview(bytearray(9))
    its.send(b"a request")
    assert (transport.send(b"an answer"), transport.receive_into(buffer)) == (9, 9)
    assert transport.send_file(file, 0, 7) in {7, None}
    transport.fence.until_ns = 0
    for _ in range(2):
        with pytest.raises(FenceError):
            transport.send(b"an answer")
        with pytest.raises(FenceError):
            transport.send_file(file, 0, 7)
        with pytest.raises(FenceError):
            transport.receive_into(buffer)
        transport.fence.hold(1)  # what was cut short must not go on
    assert its.recv(100) in {b"an answerrecords", b"an answer"}
    with pytest.raises(BlockingIOError):
        its.recv(1)
    transport.close()
    its.close()
    file.close()


async def test_so_does_one_with_tls(pair: tuple[Transport, socket.socket]) -> None:
    plain, its = pair
    assert TlsTransport(plain, server_context(), Offload()).fence is plain.fence
    plain.close()
    its.close()
    received: list[bytes] = []

    def talk(tls: socket.socket) -> None:
        while data := tls.recv(100):
            received.append(data)

    with served_with_tls(encrypted(talk)) as transport:
        beginning = transport.begin()
        await beginning
        transport.fence = fence = Fence(lambda: 0)
        fence.hold(1)
        assert transport.send(b"an answer") == 9
        fence.until_ns = 0
        for _ in range(2):
            with pytest.raises(FenceError):
                transport.send(b"not this one")
            with pytest.raises(FenceError):
                transport.receive_into(memoryview(bytearray(9)))
            fence.hold(1)
    assert received == [b"an answer"]
