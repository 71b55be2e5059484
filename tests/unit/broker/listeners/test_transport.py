"""What a transport tells of its peer, and the buffers that the system gives it."""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.listeners.acceptor import Acceptor, no_refusal
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.transport import Transport, shown_host
from tests.support import each_case
from tests.unit.broker.listeners.fake_broker import FakeBroker


@each_case(
    ("host", "shown"),
    [
        ("192.0.2.7", "/192.0.2.7"),
        ("::1", "/0:0:0:0:0:0:0:1"),
        ("2001:db8::a:0", "/2001:db8:0:0:0:0:a:0"),
        ("fe80::1%eth0", "/fe80:0:0:0:0:0:0:1%eth0"),
        ("::ffff:192.0.2.7", "/192.0.2.7"),
        ("gone", "/gone"),
    ],
)
def test_addresses_are_shown_as_java_shows_them(host: str, shown: str) -> None:
    assert shown_host(host) == shown


# --- Buffers ----------------------------------------------------------------------------------------------------------

DOUBLED = 2 if sys.platform == "linux" else 1
"""Linux gives twice what is asked for: half is for its own bookkeeping."""

_MAX = Path("/proc/sys/net/core/wmem_max")
SEND_BYTES_MAX = int(_MAX.read_text()) if _MAX.exists() else 1 << 30


class EnoughError(Exception):
    """Ends the acceptor."""


async def buffers_with(config: BrokerConfig) -> tuple[int, int]:
    """The sizes of the send and the receive buffer of a connection that is accepted."""
    sizes: list[int] = []

    def connect(transport: Transport) -> Connection:
        with socket.socket(fileno=os.dup(transport.fileno())) as sock:
            sizes.extend(sock.getsockopt(socket.SOL_SOCKET, kind) for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF))
        transport.close()
        raise EnoughError

    broker: Any = FakeBroker()
    broker.config = config
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with pytest.RaisesGroup(EnoughError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            [address] = await nursery.start(Acceptor(broker, connect, no_refusal).run, listeners)
            host, _, port = address.rpartition(":")
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.receive_some()
    await stream.aclose()
    send, receive = sizes
    return send, receive


async def test_buffers_have_the_configured_sizes_and_at_minus_one_those_of_the_system() -> None:
    given = await buffers_with(BrokerConfig(socket_send_buffer_bytes=30_000, socket_receive_buffer_bytes=40_000))
    assert given == (30_000 * DOUBLED, 40_000 * DOUBLED)
    chosen = await buffers_with(BrokerConfig(socket_send_buffer_bytes=-1, socket_receive_buffer_bytes=-1))
    assert all(size > small for size, small in zip(chosen, given, strict=True))
    send, _ = await buffers_with(BrokerConfig())
    assert send == DOUBLED * min(262_144, SEND_BYTES_MAX)


async def test_what_a_peer_sent_is_received_after_a_send_that_it_does_not_take() -> None:
    """One that wants no answers, and left without reading those that it got, has sent records all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    transport = Transport(ours)
    peer.sendall(b"records")
    transport.send(b"an answer")
    peer.recv(1, socket.MSG_PEEK)
    peer.close()  # a reset, as it has not read the answer
    await transport.wait_readable()
    while not transport.has_left():
        await trio.lowlevel.checkpoint()
    assert [transport.send(b"more") for _ in range(3)] == [4, 4, 4]
    buffer = memoryview(bytearray(100))
    assert bytes(buffer[: transport.receive_into(buffer)]) == b"records"
    with contextlib.suppress(ConnectionError):
        assert transport.receive_into(buffer) == 0, "the end, or an error that says so"
    transport.close()
