"""Both faces and the command line at a daemon with TLS and accounts, as an operator makes one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_protocol.errors import (
    AuthenticationError,
    UnacceptableCredentialError,
    WrongPortError,
)
from tests.processes import Daemon, daemon, seglogd
from tests.processes import seglog as run_command
from tests.support import each_case
from tests.unit.clients.faces import Connect

ADMIN: Final = "of the admin"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a trial, and the file with the admin's password."""
    folder = tmp_path_factory.mktemp("secured")
    assert seglogd("certificates", "--to", folder / "tls").returncode == 0
    (folder / "admin.password").write_text(f"{ADMIN}\n")
    return folder


@pytest.fixture(scope="module")
def broker(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on SASL_SSL, for Kafka's clients, too."""
    data = tmp_path_factory.mktemp("sasl_ssl") / "data"
    data.mkdir()
    password = ("--password-file", files / "admin.password")
    assert seglogd("user", "add", "admin", "--data", data, *password).returncode == 0
    given = (
        f"ssl.keystore.location={files / 'tls' / 'server.pem'}",
        "super.users=User:admin",
        "listeners=SASL_SSL://127.0.0.1:0",
    )
    options = [part for setting in given for part in ("--set", setting)]
    with daemon(data, "--listen", "SASL_SSL://127.0.0.1:0", *options) as running:
        yield running


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


@each_case("left_out", [set(), {"user", "password"}, {"user", "password", "tls"}, {"tls"}])
async def test_the_port_of_kafkas_clients_is_named_as_that_at_once(
    connect: Connect, broker: Daemon, login: dict[str, Any], left_out: set[str]
) -> None:
    options = {name: value for name, value in login.items() if name not in left_out}
    with pytest.raises(WrongPortError, match="for Kafka's clients") as caught:
        async with connect(f"127.0.0.1:{broker.kafka_port}", connect_timeout=600, **options):
            pass
    assert caught.value.port == int(broker.address.rpartition(":")[2])


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
