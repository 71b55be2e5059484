"""Clients that stay while something changes: a login that has to be renewed, and certificates."""

import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGHUP
from threading import Event

import pytest

from tests.certificates import HOSTS, certificates
from tests.interop.client_programs import Program, client
from tests.interop.kafka_cases import create_topics
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
from tests.interop.kafka_wire import Wire
from tests.interop.sasl_conversation import USERS
from tests.interop.test_kafka_security import CLIENTS
from tests.processes import Daemon, daemon, wait_until

pytestmark = [pytest.mark.timeout(300)]

SECONDS = 7.0
REAUTH_MS = 2000


def kafka_ports(running: Daemon) -> list[int]:
    (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
    return [int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(",")]


def create(port: int, *names: str) -> None:
    with Wire(port) as wire:
        create_topics(wire, [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names])


@pytest.fixture(params=CLIENTS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    assert isinstance(request.param, Program)
    return request.param


@pytest.fixture(scope="module")
def renewing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Ports of listeners, without authentication and with sessions that end."""
    more = {"connections.max.reauth.ms": str(REAUTH_MS)}
    settings = daemon_settings(("PLAINTEXT", "SASL_PLAINTEXT"), more=more)
    with daemon(tmp_path_factory.mktemp("renewing") / "data", *settings) as running:
        plain, sasl = kafka_ports(running)
        make_users(plain)
        yield plain, sasl
        assert "Traceback" not in running.log_text()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_client_goes_on_beyond_the_end_of_its_session(
    renewing: tuple[int, int], program: Program, mechanism: str
) -> None:
    plain, sasl = renewing
    topic = f"{program.name}-{mechanism}"
    create(plain, topic)
    told = {"protocol": "SASL_PLAINTEXT", "mechanism": mechanism, "user": "alice", "password": USERS["alice"]}
    with client(program, f"127.0.0.1:{sasl}", told) as running:
        sent = 0
        while sent <= SECONDS:  # once, but on a busy machine
            sent += running.keep_on(topic, SECONDS)
        assert running.ends(topic, 0)[1] >= sent


def test_certificates_change_under_a_client(program: Program, tmp_path: Path) -> None:
    issuer = certificates(tmp_path / "certificates")
    server = issuer.issue("broker", *HOSTS)
    settings = daemon_settings(("PLAINTEXT", "SSL"), server=server.together)
    with daemon(tmp_path / "data", *settings) as running:
        plain, secure = kafka_ports(running)
        create(plain, "t")
        before = ssl.get_server_certificate(("127.0.0.1", secure))
        told = {"protocol": "SSL", "authority": str(issuer.authority_file)}
        changed = Event()
        with client(program, f"127.0.0.1:{secure}", told) as foreign, ThreadPoolExecutor(1) as pool:

            def keep_on() -> int:
                sent = 0
                while not changed.is_set():
                    sent += foreign.keep_on("t", SECONDS)
                return sent + foreign.keep_on("t", SECONDS)

            kept = pool.submit(keep_on)
            time.sleep(SECONDS / 3)
            issuer.issue("broker", *HOSTS)
            assert running.process is not None
            running.process.send_signal(SIGHUP)
            wait_until(lambda: ssl.get_server_certificate(("127.0.0.1", secure)) != before, "another certificate")
            changed.set()
            sent = kept.result()
            assert foreign.ends("t", 0) == (0, sent)
        assert "Traceback" not in running.log_text()
