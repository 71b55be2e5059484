"""The accounts and ACLs of a Kafka whose directory is taken over: a real one, with a snapshot and changes behind it.

``tests/interop/make_kafka_accounts.py`` has it written.
"""

import tarfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from scramp import ScramClient
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.security.sasl import Identity
from seglog_broker.storage.directory.accounts import AccountStore, Change, Credential
from seglog_broker.storage.directory.kafka_metadata import read_kafka_metadata
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.steps import finished
from tests.interop.make_kafka_accounts import ITERATIONS, PASSWORDS, SALT
from tests.logs import ManualClock
from tests.unit.broker.security.exchanges import plain

_DATA: Final = "/data"
_ACCEPTED: Final = "seglog.acls.not.enforced=true"


@cache
def _real() -> dict[str, bytes]:
    with tarfile.open(Path(__file__).with_name("kafka_accounts.tar.gz")) as archive:
        files = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        return {
            f"{_DATA}/{member.name.removeprefix('logs/')}": file.read() for member, file in files if file is not None
        }


def _directory() -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load(_real())
    return fs


def _opened(fs: ForgetfulFileSystem, *flags: str) -> Broker:
    config, _ = load_config(None, "", {}, [f"log.dir={_DATA}", *flags])
    return Broker.open(config, fs, ManualClock(), InlineOffload())


def test_the_metadata_log_has_the_credentials_of_the_end_and_the_acl_that_is_left() -> None:
    found = read_kafka_metadata(_directory(), _DATA)
    assert found.problem is None
    assert found.credentials.keys() == PASSWORDS.keys()
    assert {(each.iterations, each.salt) for each in found.credentials.values()} == {(ITERATIONS, SALT)}
    assert found.acls == 1


def test_where_there_are_acls_the_start_is_refused_and_nothing_is_touched() -> None:
    fs = _directory()
    before = fs.snapshot()
    with pytest.raises(LogDirectoryError, match=r"with 1 ACL, which .* --set seglog\.acls\.not\.enforced=true"):
        _opened(fs)
    assert fs.snapshot() == before


async def test_the_accounts_of_a_kafka_log_in_with_the_passwords_that_they_had() -> None:
    fs = _directory()
    with capture_logs() as logged:
        broker = _opened(fs, _ACCEPTED)
    assert [entry["accounts"] for entry in logged if entry["event"] == "kafka_accounts_adopted"] == [3]
    for _ in range(2):
        for (name, mechanism), password in PASSWORDS.items():
            exchange = broker.authenticator.begin(mechanism, is_private=False)
            await _log_in_as_kafkas_clients_do(exchange.respond, name, mechanism, password)
            assert exchange.identity == Identity(f"User:{name}")
        exchange = broker.authenticator.begin("PLAIN", is_private=True)
        await exchange.respond(plain("Jürgen 😀", PASSWORDS["Jürgen 😀", "SCRAM-SHA-256"]))
        assert broker.close() == []
        broker = _opened(fs)  # the key is needed once: the metadata log has not changed
    broker.close()


async def _log_in_as_kafkas_clients_do(respond: object, name: str, mechanism: str, password: str) -> None:
    """Without preparing name and password."""
    client = ScramClient([mechanism], "x", "x")
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    first = client.get_client_first().replace("n=x", f"n={escaped}")
    client.client_first_bare = first.removeprefix("n,,")
    client.set_server_first((await respond(first.encode())).decode())  # type: ignore[operator]
    client.password = _Raw(password)
    client.set_server_final((await respond(client.get_client_final().encode())).decode())  # type: ignore[operator]


class _Raw:
    def __init__(self, password: str) -> None:
        self._password = password

    def __bytes__(self) -> bytes:
        return self._password.encode()


def test_an_account_that_is_there_already_stays_as_it_is() -> None:
    fs = _directory()
    own = Credential("SCRAM-SHA-256", 4096, b"another salt", b"S" * 32, b"V" * 32)
    accounts = AccountStore(fs, f"{_DATA}/seglog-accounts.json")
    accounts.write(finished(accounts.planned([Change("alice", own.mechanism, own)])))
    broker = _opened(fs, _ACCEPTED)
    assert broker.users.credentials_of("alice") == [own]
    assert broker.users.names() == ["Jürgen 😀", "alice", "late"]
    broker.close()


async def test_an_account_that_is_deleted_does_not_come_back() -> None:
    fs = _directory()
    broker = _opened(fs, _ACCEPTED)
    plan = finished(broker.directory.accounts.planned([Change("late", "SCRAM-SHA-512", None)]))
    broker.directory.accounts.write(plan)
    finished(broker.directory.accounts.adopted(plan))
    broker.close()
    broker = _opened(fs)
    assert broker.users.names() == ["Jürgen 😀", "alice"]
    broker.close()
