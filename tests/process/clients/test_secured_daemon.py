"""Both faces and the command line at a daemon with TLS and accounts, as an operator makes one."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import seglog
from seglog_protocol.errors import (
    AuthenticationError,
    TlsError,
    UnacceptableCredentialError,
    UnknownUserError,
    WrongPortError,
)
from seglog_protocol.kafka import read_response, write_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.messages import ApiVersionsRequest, ApiVersionsResponse
from tests.processes import Daemon, seglogd
from tests.processes import seglog as run_command
from tests.support import each_case
from tests.unit.clients.faces import Connect

ADMIN: Final = "of the admin"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a trial, and the file with the admin's password."""
    folder = tmp_path_factory.mktemp("secured")
    assert seglogd("certificates", "--to", folder / "tls", "--client", "me").returncode == 0
    (folder / "admin.password").write_text(f"{ADMIN}\n")
    return folder


def secured(folder: Path, files: Path, protocol: str, *settings: str) -> Daemon:
    data = folder / "data"
    data.mkdir()
    password = ("--password-file", files / "admin.password")
    assert seglogd("user", "add", "admin", "--data", data, *password).returncode == 0
    given = (f"ssl.keystore.location={files / 'tls' / 'server.pem'}", "super.users=User:admin;User:me", *settings)
    options = [part for setting in given for part in ("--set", setting)]
    return Daemon(data, "--listen", f"{protocol}://127.0.0.1:0", *options)


@pytest.fixture(scope="module")
def broker(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on SASL_SSL, for Kafka's clients, too."""
    running = secured(tmp_path_factory.mktemp("sasl_ssl"), files, "SASL_SSL", "listeners=SASL_SSL://127.0.0.1:0")
    running.start()
    yield running
    running.kill()


@pytest.fixture
def login(files: Path) -> dict[str, Any]:
    """The options of the admin."""
    return {"user": "admin", "password": ADMIN, "tls": files / "tls" / "authority.pem"}


async def test_an_account_writes_and_reads_and_another_is_made_and_ends(
    connect: Connect, broker: Daemon, login: dict[str, Any]
) -> None:
    async with connect(broker.address, **login) as admin:
        assert admin.principal == "User:admin"
        assert admin.tls_version.startswith("TLSv1.")
        await admin.create_topic("t", exist_ok=True)
        await admin.create_user("alice", "of alice")
        assert [user.name for user in await admin.users()] == ["admin", "alice"]
        values = [b"%d" % number * 1000 for number in range(200)]
        as_alice = login | {"user": "alice", "password": "of alice"}
        async with connect(broker.address, **as_alice) as alice:
            async with alice.producer("t") as producer:
                for value in values:
                    await producer.send(value)
            async with alice.consumer("t", start="earliest") as consumer:
                read = [record.value async for record in consumer]
            assert read[-len(values) :] == values
            async with alice.consumer("t", group=f"readers-{len(read)}", start="earliest", follow=False) as consumer:
                assert len([record async for record in consumer]) == len(read)
        await admin.set_password("alice", "another")
        with pytest.raises(AuthenticationError):
            async with connect(broker.address, **as_alice):
                pass
        with pytest.raises(UnacceptableCredentialError):
            await admin.set_password("alice", "another", iterations=4095)
        await admin.delete_user("alice")
        assert [user.name for user in await admin.users()] == ["admin"]
    for secret in (ADMIN, "of alice"):
        assert secret not in broker.log_text()


async def test_a_deleted_account_ends_its_producer_and_its_member_of_a_group(
    connect: Connect, broker: Daemon, login: dict[str, Any]
) -> None:
    as_carol = login | {"user": "carol", "password": "of carol"}
    with trio.fail_after(60):
        async with connect(broker.address, **login) as admin:
            await admin.create_topic("ended", exist_ok=True)
            await admin.create_user("carol", "of carol")
            async with connect(broker.address, **as_carol) as carol:
                producer = await carol.producer("ended", delivery_timeout=600)
                await (await producer.send(b"1"))
                async with carol.consumer("ended", group="ended", start="earliest") as consumer:
                    with pytest.raises(AuthenticationError, match="carol"):  # noqa: PT012 - that is a loop
                        async for _ in consumer:
                            with suppress(UnknownUserError):  # of more records, which the other face has sent
                                await admin.delete_user("carol")
                delivery = await producer.send(b"2")
                with pytest.raises(AuthenticationError, match="carol"):
                    await delivery
                await producer.close()


@each_case("left_out", [set(), {"user", "password"}, {"user", "password", "tls"}, {"tls"}])
async def test_the_port_of_kafkas_clients_is_named_as_that_at_once(
    connect: Connect, broker: Daemon, login: dict[str, Any], left_out: set[str]
) -> None:
    options = {name: value for name, value in login.items() if name not in left_out}
    with pytest.raises(WrongPortError, match="for Kafka's clients") as caught:
        async with connect(f"127.0.0.1:{broker.kafka_port}", connect_timeout=600, **options):
            pass
    assert caught.value.port == int(broker.address.rpartition(":")[2])


def test_a_kafka_client_on_the_native_port_is_told_so_within_tls(broker: Daemon, files: Path) -> None:
    context = ssl.create_default_context(cafile=str(files / "tls" / "authority.pem"))
    host, _, port = broker.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as within,
    ):
        within.sendall(b"".join(write_request(7, "librdkafka", ApiVersionsRequest(), 3)))
        answer = b"".join(iter(lambda: within.recv(65536), b""))
    _, response = read_response(18, 3, memoryview(answer)[4:])
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code == ErrorCode.LISTENER_NOT_FOUND


async def test_a_certificate_says_who_the_client_is(connect: Connect, files: Path, tmp_path: Path) -> None:
    authority, mine = files / "tls" / "authority.pem", files / "tls" / "client-me.pem"
    running = secured(
        tmp_path,
        files,
        "SSL",
        "ssl.client.auth=required",
        f"ssl.truststore.location={authority}",
        "ssl.principal.mapping.rules=RULE:^CN=([^,]+),OU=clients.*$/$1/",
    )
    running.start()
    try:
        async with connect(running.address, tls=seglog.Tls(authority, mine)) as client:
            assert client.principal == "User:me"
            await client.create_topic("t")
        with pytest.raises(TlsError, match="--certificate"):
            async with connect(running.address, tls=authority):
                pass
    finally:
        running.kill()


async def test_sessions_are_renewed_while_a_program_works(
    connect: Connect, files: Path, tmp_path: Path, login: dict[str, Any]
) -> None:
    running = secured(tmp_path, files, "SASL_SSL", "connections.max.reauth.ms=1000")
    running.start()
    try:
        async with connect(running.address, **login) as client:
            await client.create_topic("t")
            sent = 0
            async with client.producer("t") as producer:
                while running.log_text().count('"client_authenticated"') < 6:
                    await (await producer.send(b"%d" % sent))
                    sent += 1
            async with client.consumer("t", start="earliest") as consumer:
                assert [record.value async for record in consumer] == [b"%d" % number for number in range(sent)]
    finally:
        running.kill()


# --- The doctor -------------------------------------------------------------------------------------------------------


def examined(address: str, *login: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    done = run_command(address, "doctor", "--json", *login)
    found: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["name"], []).append(check)
    return done.returncode, found


def test_the_doctor_logs_in_as_kafkas_clients_do_and_is_told_where_to_connect(broker: Daemon, files: Path) -> None:
    login = ("--user", "admin", "--password-file", str(files / "admin.password"))
    code, checks = examined(broker.address, "--ca", str(files / "tls" / "authority.pem"), *login)
    assert code == 0, checks
    assert checks["connection"][0]["found"].startswith("as User:admin, TLSv1.")
    (advertised,) = checks["advertised"]
    assert advertised["verdict"] == "ok"
    assert f"127.0.0.1:{broker.kafka_port}, where this broker answers" in advertised["found"]


def test_without_an_account_the_doctor_knows_of_a_login_no_more_than_that_it_is_wanted(
    files: Path, tmp_path: Path
) -> None:
    running = secured(tmp_path, files, "PLAINTEXT", "listeners=SASL_PLAINTEXT://127.0.0.1:0")
    running.start()
    try:
        _, checks = examined(running.address)
        assert "no login was tried: no account was given" in checks["advertised"][0]["found"]
    finally:
        running.kill()
