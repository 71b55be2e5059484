"""``seglog mirror`` over TLS with accounts on both sides: those of a daemon, and of a real Kafka, both ways."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.certificates import HOSTS, Certificates, certificates
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import kafka_settings
from tests.interop.peer import Kafka, free_ports, kafka_script
from tests.interop.sasl_conversation import USERS
from tests.processes import Daemon, clean_environment
from tests.unit.clients.mirror.sides import completed, contents, numbered, produce

pytestmark = [pytest.mark.timeout(300)]

ADMIN: Final = "of the admin"
COUNT: Final = 1000


@contextmanager
def secure_daemon(folder: Path, issuer: Certificates) -> Iterator[Daemon]:
    """Every listener with TLS and accounts."""
    data, password = folder / "data", folder / "admin.password"
    data.mkdir(parents=True)
    password.write_text(f"{ADMIN}\n")
    adding = [sys.executable, "-m", "seglog_broker", "user", "add", "admin", "--data", str(data)]
    subprocess.run([*adding, "--password-file", str(password)], env=clean_environment(), check=True)
    given = (
        f"ssl.keystore.location={issuer.issue('seglog', *HOSTS).together}",
        "super.users=User:admin",
        "listeners=SASL_SSL://127.0.0.1:0",
    )
    running = Daemon(
        data, "--listen", "SASL_SSL://127.0.0.1:0", *(part for setting in given for part in ("--set", setting))
    )
    running.start()
    yield running
    running.kill()


@contextmanager
def secure_kafka(folder: Path, issuer: Certificates) -> Iterator[tuple[Kafka, int]]:
    """A real Kafka with the port of its listener for accounts over TLS, beside an open one."""
    kafka = Kafka(kafka_script(), folder)
    folder.mkdir(parents=True)
    ports = {"PLAINTEXT": kafka.port, "SASL_SSL": free_ports()}
    own = issuer.issue("kafka", *HOSTS).together
    settings = kafka_settings(
        ports, kafka.port + 1, {name: name for name in ports}, server=own, authority=issuer.authority_file
    )
    with kafka.running(*settings, "offsets.topic.num.partitions=1"):
        make_users(kafka.port)
        yield kafka, ports["SASL_SSL"]


def test_accounts_and_tls_on_both_sides_there_and_back_and_what_is_refused(tmp_path: Path) -> None:
    issuer = certificates(tmp_path / "tls")
    config = tmp_path / "kafka.properties"

    def configure(**settings: str) -> None:
        asked = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": USERS["alice"]}
        asked |= {"ssl.ca.location": str(issuer.authority_file)}
        asked |= {name.replace("_", "."): value for name, value in settings.items()}
        config.write_text("".join(f"{name}={value}\n" for name, value in asked.items()))

    with (
        secure_daemon(tmp_path / "ours", issuer) as ours,
        secure_kafka(tmp_path / "kafka", issuer) as (kafka, port),
    ):
        server = ("--server", ours.address, "--user", "admin", "--ca", str(issuer.authority_file))
        password = ("--password-file", str(tmp_path / "ours" / "admin.password"))
        wrong = tmp_path / "wrong.password"
        wrong.write_text("geheim\n")
        there = f"kafkas://127.0.0.1:{port}"

        def mirror(*arguments: str, password: tuple[str, str] = password) -> "subprocess.CompletedProcess[str]":
            program = [sys.executable, "-m", "seglog", "mirror", *server, *password, "--kafka-config", str(config)]
            return completed([*program, "--connect-timeout", "5", *arguments, "--once"])

        account: dict[str, Any] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": ADMIN,
            "ssl.ca.location": str(issuer.authority_file),
        }
        ours_address = f"127.0.0.1:{ours.kafka_port}"
        creating = [sys.executable, "-m", "seglog", "topic", "create", *server, *password, "out"]
        assert completed([*creating, "--config", "retention.ms=-1"]).returncode == 0
        kafka.topics("--create", "--topic", "back", "--partitions", "1", "--config", "retention.ms=-1")
        produce(ours_address, "out", numbered(0, COUNT), **account)
        produce(kafka.address, "back", numbered(0, COUNT))

        configure()
        for arguments in (("--to", there, "out"), ("--from", there, "back")):
            done = mirror(*arguments)
            assert done.returncode == 0, done.stderr
            assert "the same offsets" in done.stdout
        assert contents(ours_address, "back", **account) == contents(kafka.address, "back")
        assert contents(kafka.address, "out") == contents(ours_address, "out", **account)

        for settings, code, sentence in [
            ({"sasl_password": "geheim"}, 4, "refuses the account"),
            ({"sasl_mechanism": "GSSAPI"}, 1, "see --kafka-config"),
            ({"ssl_ca_location": str(issuer.issue("other").chain)}, 3, "certificate"),
            ({"ssl_ca_location": str(tmp_path / "absent")}, 1, "see --kafka-config"),
            ({"security_protocol": "SASL_PLAINTEXT"}, 3, "does not answer"),
        ]:
            configure(**settings)
            done = mirror("--to", there, "out")
            assert (done.returncode, sentence in done.stderr) == (code, True), (settings, done)
            assert "geheim" not in done.stderr
            assert "Traceback" not in done.stderr
        configure()
        done = mirror("--to", there, "out", password=("--password-file", str(wrong)))
        assert done.returncode == 4, done.stderr
        for url in (f"kafka://127.0.0.1:{port}", f"kafkas://127.0.0.1:{kafka.port}"):
            done = mirror("--to", url, "out")
            assert (done.returncode, f"{url} does not answer" in done.stderr) == (3, True), done
            assert "PLAINTEXT broker listener?" in done.stderr or "TLS (kafkas://)" in done.stderr
