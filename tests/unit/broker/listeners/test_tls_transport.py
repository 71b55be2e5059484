"""TLS on a connection's own socket: bytes arrive whole, whatever the sizes; anything else ends it with a reason."""

import functools
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio
import trustme

from seglog_broker.listeners import hangup
from seglog_broker.listeners.session import Listener
from seglog_broker.listeners.tls_transport import (
    CIPHERTEXT_BYTES,
    SEND_BYTES_MAX,
    TlsTransport,
    why_failed,
)
from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.support import each_case
from tests.tls_records import RecordClient

SEED: Final = 0xC0FFEE


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("broker.example").configure_cert(context)
    return context


def client_context(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    context.maximum_version = version
    return context


def accepted(peer_sends: Callable[[socket.socket], None], **options: int) -> tuple[TlsTransport, threading.Thread]:
    """A transport, and the thread of its peer, which gets a connected socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setblocking(False)
    for option, value in options.items():
        ours.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
    transport = TlsTransport(Transport(ours), server_context(), Offload())

    def run() -> None:
        with peer, suppress(OSError):
            peer_sends(peer)

    thread = threading.Thread(target=run)
    thread.start()
    return transport, thread


@contextmanager
def served(peer_sends: Callable[[socket.socket], None], **options: int) -> Iterator[TlsTransport]:
    transport, thread = accepted(peer_sends, **options)
    try:
        yield transport
    finally:
        transport.close()
        thread.join()


def encrypted(
    talk: Callable[[ssl.SSLSocket], None], version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Callable[[socket.socket], None]:
    """A peer that shakes hands, and then talks."""

    def run(raw: socket.socket) -> None:
        with client_context(version).wrap_socket(raw, server_hostname="broker.example") as tls:
            talk(tls)

    return run


async def receive(transport: TlsTransport, size: int, step: int = 64 * 1024) -> bytes:
    """``size`` bytes, or what comes before the end."""
    got = bytearray()
    buffer = bytearray(step)
    while len(got) < size:
        try:
            count = transport.receive_into(memoryview(buffer))
        except BlockingIOError:
            await transport.wait_readable()
            continue
        if not count:
            break
        got += buffer[:count]
    return bytes(got)


async def send(transport: TlsTransport, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[transport.send(left) :]
        except BlockingIOError:
            await transport.wait_writable()


@each_case("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@each_case("step", [1, 100, 16 * 1024, 1024 * 1024])
async def test_what_is_sent_arrives_whole_in_both_directions(version: ssl.TLSVersion, step: int) -> None:
    data = random.Random(SEED).randbytes(min(300_000, 3_000 * step))

    def echo(tls: ssl.SSLSocket) -> None:
        got = bytearray()
        while len(got) < len(data):
            got += tls.recv(1 << 16)
        tls.sendall(got)
        tls.recv(1)

    with served(encrypted(echo, version), SO_SNDBUF=8_192) as transport:
        await transport.begin()
        await send(transport, data)
        assert await receive(transport, len(data), step) == data


async def test_bytes_that_are_decrypted_already_are_not_waited_for() -> None:
    def one_record(tls: ssl.SSLSocket) -> None:
        tls.sendall(b"0123456789")
        tls.recv(1)

    with served(encrypted(one_record)) as transport:
        await transport.begin()
        assert await receive(transport, 3, step=3) == b"012"
        assert transport.has_pending
        with trio.fail_after(5):
            await transport.wait_readable()
        assert await receive(transport, 7) == b"3456789"
        assert not transport.has_pending


@pytest.mark.parametrize("is_empty", [True, False], ids=["new keys", "single bytes"])
async def test_one_call_decrypts_few_records_however_little_they_carry(is_empty: bool) -> None:
    """Else a client without an account would hold the loop: OpenSSL alone goes on while new keys come."""
    count = 3_000
    sent = threading.Event()

    def small_records(raw: socket.socket) -> None:
        client = RecordClient(raw, client_context(), "broker.example")
        records = [client.key_update() if is_empty else client.record(b"x") for _ in range(count)]
        client.send(b"".join(records) + client.record(b"end"))
        sent.set()
        client.tls.recv(1)
        client.close()

    with served(small_records, SO_RCVBUF=1 << 20) as transport:
        await transport.begin()
        assert await trio.to_thread.run_sync(sent.wait, 60)
        got, calls = bytearray(), 0
        buffer = memoryview(bytearray(64 * 1024))
        while not got.endswith(b"end"):
            calls += 1
            try:
                got += buffer[: transport.receive_into(buffer)]
            except BlockingIOError:
                await transport.wait_readable()
        assert calls >= count * 22 // CIPHERTEXT_BYTES  # a record has 22 bytes at least
        assert len(got) == (0 if is_empty else count) + len(b"end")


async def test_one_send_encrypts_no_more_than_its_limit() -> None:
    def read_all(tls: ssl.SSLSocket) -> None:
        while tls.recv(1 << 20):
            pass

    with served(encrypted(read_all), SO_SNDBUF=1 << 22) as transport:
        await transport.begin()
        assert 0 < transport.send(bytes(8 << 20)) <= SEND_BYTES_MAX


async def test_a_file_is_sent_encrypted() -> None:
    content = random.Random(SEED).randbytes(100_000)
    fs = ForgetfulFileSystem()
    file = fs.open("log", create=True, writable=True)
    file.pwritev([content], 0)
    got = bytearray()

    def read_all(tls: ssl.SSLSocket) -> None:
        while data := tls.recv(1 << 16):
            got.extend(data)

    transport, thread = accepted(encrypted(read_all))
    await transport.begin()
    position = 10
    while position < len(content):
        count = transport.send_file(file, position, len(content) - position)
        assert count
        position += count
    await hangup.finish(transport)
    transport.close()
    thread.join()
    assert bytes(got) == content[10:]


async def test_the_end_that_a_peer_announces_is_the_end() -> None:
    def goodbye(tls: ssl.SSLSocket) -> None:
        tls.sendall(b"last words")
        tls.unwrap()

    with served(encrypted(goodbye)) as transport:
        await transport.begin()
        assert await receive(transport, 100) == b"last words"
        assert transport.receive_into(memoryview(bytearray(10))) == 0


async def test_a_peer_that_leaves_is_noticed_without_receiving() -> None:
    leaving = threading.Event()

    def wait(tls: ssl.SSLSocket) -> None:
        leaving.wait(10)

    with served(encrypted(wait)) as transport:
        await transport.begin()
        assert not transport.has_left()
        leaving.set()
        with trio.fail_after(5):
            while not transport.has_left():  # noqa: ASYNC110 - the other side is a thread
                await trio.sleep(0.01)


@each_case("first", [b"\0\0\0\x2b\0\x12\0\4", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x04\1", b"x"])
async def test_a_peer_without_tls_is_told_so_in_plain_words(first: bytes) -> None:
    got = bytearray()

    def plain(raw: socket.socket) -> None:
        raw.sendall(first)
        while data := raw.recv(100):
            got.extend(data)

    transport, thread = accepted(plain)
    with pytest.raises(match="this port speaks TLS"):
        await transport.begin()
    transport.send(b"connect with TLS")
    await hangup.finish(transport)
    transport.close()
    thread.join()
    assert bytes(got) == b"connect with TLS"


async def test_a_peer_that_leaves_before_its_handshake_costs_none() -> None:
    transport, thread = accepted(lambda peer: peer.sendall(b"\x16\x03\x01"))
    thread.join()
    with pytest.raises(ConnectionResetError, match="left before its handshake"):
        await transport.begin()
    assert "_tls" not in vars(transport), "some 50 KiB"
    transport.close()


async def test_one_that_leaves_before_it_is_accepted_is_no_connection() -> None:
    broker: Any = SimpleNamespace(metrics=Metrics(), offload=Offload())
    tls: Any = SimpleNamespace(context=server_context())
    ours, peer = socket.socketpair()
    peer.close()
    with ours, pytest.raises(ConnectionResetError):
        Listener("SSL", "SSL", tls=tls).transport(Transport(ours), broker)
    assert broker.metrics.tls_handshakes_failed == 1


async def test_a_handshake_of_any_bytes_ends_with_an_os_error() -> None:
    randomly = random.Random(SEED)
    hello = bytearray()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(incoming, outgoing, server_hostname="broker.example").do_handshake()
    hello += outgoing.read()
    for _ in range(300):
        mutated = bytearray(hello)
        for _ in range(randomly.randint(1, 8)):
            mutated[randomly.randrange(2, len(mutated))] = randomly.randrange(256)
        del mutated[randomly.randrange(3, len(mutated) + 1) :]

        def say(raw: socket.socket, data: bytes = bytes(mutated)) -> None:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass

        with served(say) as transport, trio.fail_after(10):
            with pytest.raises(OSError) as failed:
                await transport.begin()
            assert why_failed(failed.value)
