"""Who may change what, on the native wire of a daemon: the principals of super.users, and nobody else."""

from collections.abc import Callable, Iterator

import pytest

import seglog
from tests.process.broker.test_main import port_of, running, seglogd

PASSWORDS = {"admin": "admin-0123456789", "reader": "reader-0123456789"}

Connect = Callable[[str], seglog.Client]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """Connects to a daemon as one of its accounts."""
    folder = tmp_path_factory.mktemp("roles")
    (folder / "data").mkdir()
    for name, password in PASSWORDS.items():
        (folder / name).write_text(password)
        seglogd("user", "add", name, "--password-file", str(folder / name), "--data", str(folder / "data"))
    flags = ["--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--set", "super.users=User:admin"]
    with running(folder / "data", *flags) as (_, logged):
        address = f"127.0.0.1:{port_of(logged)}"
        with seglog.connect(address, user="admin", password=PASSWORDS["admin"]) as client:
            client.create_topic("t")
        yield lambda name: seglog.connect(address, user=name, password=PASSWORDS[name])


def test_a_change_is_for_administrators_alone(connect: Connect) -> None:
    """All of them: ``tests/unit/broker/listeners/test_native_accounts.py``."""
    with connect("reader") as client, pytest.raises(seglog.AuthorizationError) as refused:
        client.delete_topic("t")
    assert refused.value.principal == "User:reader"


def test_all_others_produce_and_consume(connect: Connect) -> None:
    with connect("reader") as client:
        with client.producer("t") as producer:
            producer.send(b"hello").result()
        with client.consumer("t", start="earliest") as consumer:
            assert next(iter(consumer)).value == b"hello"
    with connect("admin") as client:
        assert [user.name for user in client.users()] == ["admin", "reader"]
