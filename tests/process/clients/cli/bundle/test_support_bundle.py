"""``seglog support-bundle``: all that helps, no secret wherever one was planted, and no record."""

import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seglog.cli.bundle import data_files
from tests.processes import clean_environment, daemon, free_port, seglog, seglog_command, seglogd
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.cli.doctor_answers import Sick
from tests.unit.clients.fake_broker import fake_broker

PASSWORD = "planted-password-1"
KEY_PASSWORD = "planted-password-2"
IN_LOG = "planted-password-3"
IN_URL = "planted-password-4"
VALUE = "planted-record-value"
KEY = "planted-record-key"
HEADER = "planted-record-header"


def contents(bundle: Path) -> dict[str, str]:
    """Text by name, without the folder."""
    with tarfile.open(bundle) as archive:
        found = {}
        for member in archive.getmembers():
            assert member.mode == 0o600
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
        return found


def raw(bundle: Path) -> bytes:
    with tarfile.open(bundle) as archive:
        files = [archive.extractfile(member) for member in archive.getmembers()]
        return b"".join(file.read() for file in files if file is not None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def bundle(home: Path) -> Iterator[Path]:
    """The bundle of a broker with accounts, secrets in its configuration, its log and its data, and records."""
    data = home / "data"
    password = home / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    made = seglogd("init", "--data", data, "--admin", "admin", "--password-file", password)
    assert made.returncode == 0, made.stderr
    config = home / "seglog.toml"
    config.write_text(f'"ssl.key.password" = "{KEY_PASSWORD}"\n"super.users" = "User:admin"\n')
    options = ("--config", str(config), "--listen", "SASL_PLAINTEXT://127.0.0.1:0")
    with daemon(data, *options) as running:
        server = running.address
        with (home / "data.log").open("a") as log:
            log.write(f'{{"event": "of somebody else", "password": "{IN_LOG}", "url": "https://a:{IN_URL}@b/"}}\n')
            log.write(f"login of admin with {PASSWORD} failed\n")
        login = ("--user", "admin", "--password-file", str(password))
        assert seglog(server, "topic", "create", "t", *login).returncode == 0
        lines = json.dumps({"key": KEY, "value": VALUE, "headers": [{"key": HEADER, "value": HEADER}],
                            "topic": "t", "partition": 0, "offset": 0, "timestamp": 1}) + "\n"  # fmt: skip
        sent = seglog(server, "produce", "t", "--format", "json", "--envelope", *login, stdin=lines.encode())
        assert sent.returncode == 0, sent.stderr
        done = seglog(server, "support-bundle", str(home / "bundle.tar.gz"), *login)
        assert done.returncode == 0, done.stderr
        yield home / "bundle.tar.gz"


def test_no_secret_and_no_record_is_in_it(bundle: Path, home: Path) -> None:
    everything = raw(bundle)
    for planted in (PASSWORD, KEY_PASSWORD, IN_LOG, IN_URL, VALUE, KEY, HEADER):
        assert planted.encode() not in everything, planted
    accounts = json.loads((home / "data" / "seglog-accounts.json").read_text())
    secrets = [text for text in texts(accounts) if len(text) >= 20]
    assert secrets
    assert not [text for text in secrets if text.encode() in everything], "what accounts are proven with"
    assert b"KEY" in everything or b"key" in everything  # it was searched


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


def test_it_has_what_helps(bundle: Path) -> None:
    found = contents(bundle)
    assert {
        "README.txt", "hello.json", "broker.json", "metrics.json", "doctor.txt", "doctor.json", "topics.json",
        "groups.json", "client.json", "log.txt", "data/listing.txt", "data/meta.properties", "data/seglog-topics.json",
        "data/t-0/partition.metadata",
    } <= found.keys()  # fmt: skip
    config = json.loads(found["broker.json"])["config"]
    assert config["ssl.key.password"]["value"] == "[hidden]"
    assert config["super.users"]["value"] == "User:admin"
    assert config["super.users"]["where"].endswith('seglog.toml: "super.users"')
    assert "broker_ready" in found["log.txt"]
    assert "of somebody else" in found["log.txt"]
    assert "seglog-accounts.json" in found["data/listing.txt"], "that there are accounts is no secret"
    assert not [name for name in found if name.endswith((".log", ".index", "accounts.json"))]
    assert "checks:" in found["doctor.txt"]
    assert [topic["name"] for topic in json.loads(found["topics.json"])][:1] == ["t"]


def test_it_is_readable_by_its_owner_alone_and_replaces_nothing(bundle: Path, typed: Typed) -> None:
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    before = bundle.read_bytes()
    code, _, errors = typed("--server", "127.0.0.1:1", "support-bundle", str(bundle))
    assert (code, "exists already" in errors) == (2, True)
    assert bundle.read_bytes() == before


@pytest.mark.parametrize("log_bytes", [0, 200_000], ids=["when it is closed", "in the middle"])
def test_where_there_is_no_room_nothing_is_left_and_the_file_is_named(tmp_path: Path, log_bytes: int) -> None:
    """A limit of the size of files stands for a full disk: what is written beyond it fails."""
    (tmp_path / "broker.log").write_text(os.urandom(log_bytes // 2).hex())
    target = tmp_path / "bundle.tar.gz"
    command = seglog_command(f"127.0.0.1:{free_port()}", "support-bundle", str(target), "--connect-timeout", "0.1")
    command = ["prlimit", "--fsize=100", *command, "--log", str(tmp_path / "broker.log")]
    for _ in range(2):  # and nothing is in the way of another try
        done = subprocess.run(command, env=clean_environment(), capture_output=True, check=False)
        assert done.returncode == 1, done.stderr
        assert f"{target}: File too large".encode() in done.stderr
        assert b"Traceback" not in done.stderr
        assert b"Exception" not in done.stderr
        assert not target.exists()


def test_without_a_broker_it_has_what_there_is(tmp_path: Path, typed: Typed) -> None:
    with daemon(tmp_path / "data") as running:
        assert seglog(running.address, "topic", "create", "t").returncode == 0
    (tmp_path / "broker.log").write_text("the last words\n")
    target = tmp_path / "bundle.tar.gz"
    told = ("--data", str(tmp_path / "data"), "--log", str(tmp_path / "broker.log"))
    command = ("--server", "127.0.0.1:1", "support-bundle", str(target), "--connect-timeout", "0.1")
    code, out, _ = typed(*command, *told)
    assert code == 3
    found = contents(target)
    assert "Topics and groups are named in it" in out, "the list of files has them"
    assert "no broker answers" in found["broker.txt"]
    assert found["log.txt"] == "the last words\n"
    assert {"data/meta.properties", "data/seglog-topics.json", "data/t-0/partition.metadata"} <= found.keys()
    assert "what the broker tells" in found["README.txt"]


def test_what_is_not_on_this_machine_is_said_to_be_missing(tmp_path: Path, typed: Typed) -> None:
    with fake_broker() as broker:
        broker.script = Sick().answer
        code, out, _ = typed("--server", broker.address, "support-bundle", str(tmp_path / "b.tar.gz"), "--json")
    assert code == 0
    missing = " ".join(json.loads(out)["missing"])
    assert "/nowhere/at/all is not on this machine" in missing
    assert "name its log with --log" in missing


def test_links_and_large_files_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("elsewhere")
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").symlink_to(tmp_path / "secret")
    (data / "seglog-topics.json").write_bytes(b"x" * (data_files.BYTES_MAX + 5))
    (data / "seglog-accounts.json").write_text("{}")
    (data / "t-0").mkdir()
    (data / "t-0" / "00000000000000000000.log").write_text("record")
    assert [(name, len(content)) for name, content in data_files.small_files(data)] == [
        ("seglog-topics.json", data_files.BYTES_MAX)
    ]
