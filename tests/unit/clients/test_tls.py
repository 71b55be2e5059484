"""TLS of both faces: what is trusted, what each mistake is called, and that bytes come through in any pieces."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import seglog
from seglog_protocol.errors import NotReachableError, RemoteProtocolError, TlsError
from tests.unit.clients.faces import Connect
from tests.unit.clients.secure_broker import Authority, SecureBroker, secure_broker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def asked(connect: Connect, broker: SecureBroker, **options: Any) -> str:
    """The version of TLS by which a client has said hello and asked for topics."""
    async with connect(broker.address, connect_timeout=20, **options) as client:
        assert [topic.name for topic in await client.topics()] == ["t"]
        assert client.broker.broker == "fake/1"
        version: str = client.tls_version
        return version


async def test_an_authority_is_named_by_its_file_or_a_context(connect: Connect, authority: Authority) -> None:
    with secure_broker(context=authority.context()) as broker:
        trusting = ssl.create_default_context(cafile=authority.file)
        for tls in (authority.file, Path(authority.file), seglog.Tls(ca=authority.file), trusting):
            assert await asked(connect, broker, tls=tls) == "TLSv1.3"
        broker_of_the_url = f"seglogs://{broker.address}"
        async with connect(broker_of_the_url, tls=authority.file) as client:
            assert client.server == broker.address


async def test_the_host_may_be_a_name(connect: Connect, authority: Authority) -> None:
    with secure_broker(context=authority.context("localhost")) as broker:
        port = broker.address.partition(":")[2]
        async with connect(f"seglogs://localhost:{port}", tls=authority.file) as client:
            assert client.tls_version


async def test_records_of_any_size_come_through(connect: Connect, authority: Authority) -> None:
    values = [b"a" * 10, bytes(range(256)) * 4000, b"b", b"c" * 900_000]
    with secure_broker(context=authority.context()) as broker:
        async with connect(broker.address, tls=authority.file) as client:
            async with client.producer("t") as producer:
                for value in values:
                    await producer.send(value)
            async with client.consumer("t", start="earliest") as consumer:
                assert [record.value async for record in consumer] == values


async def test_an_unknown_authority_is_refused_and_the_option_named(connect: Connect, authority: Authority) -> None:
    with secure_broker(context=authority.context()) as broker, pytest.raises(TlsError, match="--ca") as caught:
        await asked(connect, broker, tls=True)
    assert broker.address in str(caught.value)
    assert "no authority that is trusted" in str(caught.value)
    assert caught.value.server == broker.address
    assert not broker.requests


async def test_a_certificate_for_another_host_is_refused(connect: Connect, authority: Authority) -> None:
    with secure_broker(context=authority.context("other.example")) as broker:
        with pytest.raises(TlsError, match=r"for another host: .*127\.0\.0\.1"):
            await asked(connect, broker, tls=authority.file)
        assert await asked(connect, broker, tls=seglog.Tls(authority.file, check_hostname=False))


@pytest.mark.parametrize(("days", "said"), [((-10, -1), "has expired"), ((1, 10), "is not valid yet")])
async def test_the_time_of_a_certificate_is_kept(
    connect: Connect, authority: Authority, days: tuple[int, int], said: str
) -> None:
    now = datetime.now(UTC)
    begin, end = (now + timedelta(days=number) for number in days)
    context = authority.context("127.0.0.1", not_before=begin, not_after=end)
    with secure_broker(context=context) as broker, pytest.raises(TlsError, match=said):
        await asked(connect, broker, tls=authority.file)


async def test_a_port_without_tls_is_said_to_be_one(connect: Connect) -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address, pytest.raises(TlsError, match="speaks no TLS"):
        async with connect(address, tls=True, connect_timeout=20):
            pass


async def test_a_port_with_tls_is_said_to_be_one(connect: Connect) -> None:
    alert = b"\x15\x03\x01\x00\x02\x02\x46"
    with answering(alert) as address, pytest.raises(TlsError, match=f"seglogs://{address}"):
        async with connect(address, connect_timeout=20):
            pass


async def test_another_server_is_not_taken_for_one_with_tls(connect: Connect) -> None:
    with answering(b"\x15\x16" * 20) as address, pytest.raises(RemoteProtocolError, match="does not speak the seglog"):
        async with connect(address, connect_timeout=20):
            pass


async def test_a_server_that_is_silent_has_as_long_as_any(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
        with pytest.raises(NotReachableError, match="TLS"):
            async with connect(address, tls=True, connect_timeout=0.2):
                pass


async def test_a_client_shows_its_certificate(connect: Connect, authority: Authority) -> None:
    certificate, key = authority.client_files()
    with secure_broker(context=authority.context(wants_certificate=True)) as broker:
        assert await asked(connect, broker, tls=seglog.Tls(authority.file, certificate, key))
        with pytest.raises(TlsError, match="--certificate"):
            await asked(connect, broker, tls=authority.file)


async def test_an_older_version_works_and_none_in_common_is_named(connect: Connect, authority: Authority) -> None:
    context = authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with secure_broker(context=context) as broker:
        assert await asked(connect, broker, tls=authority.file) == "TLSv1.2"
        strict = ssl.create_default_context(cafile=authority.file)
        strict.minimum_version = ssl.TLSVersion.TLSv1_3
        with pytest.raises(TlsError, match="no version of TLS in common"):
            await asked(connect, broker, tls=strict)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that answers whatever it hears, and closes the connection."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield "{}:{}".format(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
