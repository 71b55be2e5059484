"""Clients that have no account, or the wrong one, beside a healthy client: it is not affected, and no secret is logged.

SEGLOG_SOAK_FAILED, SEGLOG_SOAK_LOGINS and SEGLOG_SOAK_WRAPPED say how many in the soak; otherwise its minutes do.
"""

import base64
import contextlib
import hashlib
import json
import os
import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_broker.listeners.tls_transport import HANDSHAKE_SECONDS
from seglog_broker.runtime.logs import LINES_MAX, WINDOW_SECONDS
from tests.interop.sasl_client import SCRAM
from tests.process.faults.besieged import Healthy, beset, judge, make_topics, memory_mib
from tests.process.faults.hostile_login_peer import client_hello
from tests.process.faults.logins import SecureKafkaPeer, SecureNativePeer
from tests.process.faults.secured_daemon import PASSWORDS, Secured, secured
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.soak.alone.test_hostile_requests import HealthyClient, HealthyKafkaClient
from tests.support import numbers_of, soak_scaled, soak_seed
from tests.turns import judge_turn, judges_turns

MARK: Final = "Hunter2-kGqx"
"""In each password and token that the peers try."""

HANDSHAKES: Final = 500


def healthy_client(attacked: Secured) -> HealthyClient:
    """One that has logged in, within TLS."""
    return HealthyClient(SecureNativePeer(attacked.port, attacked.context(), "alice", PASSWORDS["alice"]))


def besiege(
    attacked: Secured, healthy: Healthy, kinds: tuple[str, str], first: int, second: int, seed: int, *, peers: int = 2
) -> dict[str, Any]:
    """Send so many of both kinds beside a healthy client; returns the results."""
    facts = {
        "ports": attacked.ports,
        "protocol": attacked.protocol,
        "authority": str(attacked.certificates.authority_file),
        "user": "alice",
        "password": PASSWORDS["alice"],
        "mark": MARK,
    }
    peer = ("tests.process.faults.hostile_login_peer", json.dumps(facts))
    return beset(
        attacked.running, healthy, peer, first, second, seed, mutating=peers, connect=attacked.connect, kinds=kinds
    )


# --- Secrets ----------------------------------------------------------------------------------------------------------


def secrets_of(attacked: Secured) -> Iterator[bytes]:
    """What nobody may read: passwords, what they become when they are salted, and the file of the accounts."""
    yield MARK.encode()
    yield from (password.encode() for password in PASSWORDS.values())
    found = json.loads((attacked.running.directory / "seglog-accounts.json").read_bytes())
    yield base64.b64decode(found["secret"])
    for name, account in found["accounts"].items():
        for mechanism, facts in account.items():
            salt = base64.b64decode(facts["salt"])
            yield hashlib.pbkdf2_hmac(SCRAM[mechanism][1], PASSWORDS[name].encode(), salt, facts["iterations"])
            yield from (base64.b64decode(facts[key]) for key in ("stored_key", "server_key"))


def written_forms(secret: bytes) -> Iterator[str]:
    """The ways in which bytes may stand in a text."""
    yield secret.decode("latin-1")
    yield secret.hex()
    yield secret.hex(" ")
    yield repr(secret)[2:-1]
    for before in range(3):  # base64 of something longer that has it in it
        whole = base64.b64encode(bytes(before) + secret + bytes(3)).decode()
        inner = whole[4 if before else 0 : 4 * ((before + len(secret)) // 3)]
        yield from {inner, inner.replace("+", "-").replace("/", "_")}


def assert_no_secret(log: str, secrets: Iterable[bytes]) -> None:
    for secret in secrets:
        for form in written_forms(secret):
            assert len(form) >= 6
            assert form not in log, f"a secret is logged, as {form[:4]}..."


# --- Failed logins ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(14_400)
@judges_turns
def test_failed_logins_affect_nobody_else_are_counted_and_tell_no_secret(tmp_path: Path) -> None:
    """By every mechanism and on both wires."""
    count = int(os.environ.get("SEGLOG_SOAK_FAILED") or max(1_000, soak_scaled(100_000)))
    settings = ("--set", "connection.failed.authentication.delay.ms=20")
    with secured(tmp_path, *settings, protocol="SASL_PLAINTEXT", under=()) as attacked:
        make_topics(attacked.running, attacked.connect)
        kafkas = SecureKafkaPeer(attacked.kafka_ports["SASL_SSL"], attacked.context(), "alice", PASSWORDS["alice"])
        healthy, each = HealthyKafkaClient(kafkas), count // 2
        found = besiege(attacked, healthy, ("failing", "failing"), each, each, soak_seed(), peers=1)
        print(f"  {found['sent'] / max(1, found['seconds']):,.0f} failed logins a second")
        secrets = list(secrets_of(attacked))
        judge(attacked.running, found)
        lines = attacked.log_lines()
        failures = [line for line in lines if line["event"] == "authentication_failed"]
        too_late = sum(line.get("more", 1) for line in lines if line["event"] == "connection_refused")
        failed = sum(line.get("more", 1) for line in failures)
        assert found["sent"] - too_late <= failed <= found["sent"]  # on a quiet machine none is too late
        assert len(failures) <= (LINES_MAX + 1) * (2 + found["seconds"] // WINDOW_SECONDS)
        assert len(lines) < 100 + 20 * (2 + found["seconds"] // WINDOW_SECONDS)
        for line in failures:
            if "more" not in line:
                assert {"peer", "listener", "mechanism", "claimed", "reason"} <= line.keys()
        assert_no_secret(attacked.running.log_text(), secrets)


# --- Changed frames ---------------------------------------------------------------------------------------------------


@pytest.mark.timeout(14_400)
@judges_turns
def test_some_thousands_of_changed_logins_and_requests_within_tls_affect_nobody_else(tmp_path: Path) -> None:
    logins = int(os.environ.get("SEGLOG_SOAK_LOGINS") or max(1_000, soak_scaled(15_000)))
    wrapped = int(os.environ.get("SEGLOG_SOAK_WRAPPED") or max(1_500, soak_scaled(15_000)))
    with secured(tmp_path, under=()) as attacked:  # the peers read the metrics, too
        make_topics(attacked.running, attacked.connect)
        healthy = healthy_client(attacked)
        found = besiege(attacked, healthy, ("logins", "wrapped"), logins, wrapped, soak_seed(), peers=1)
        secrets = list(secrets_of(attacked))
        judge(attacked.running, found)
        assert_no_secret(attacked.running.log_text(), secrets)


# --- Handshakes -------------------------------------------------------------------------------------------------------


class Handshake:
    """A client's handshake, driven from outside."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.is_done = False
        self._go_on()
        self.hello = self._outgoing.read()

    def _go_on(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.is_done = True

    def receive(self) -> None:
        """Take what the broker has sent, and answer."""
        data = self.sock.recv(1 << 16)
        assert data, "the broker closed the connection"
        self._incoming.write(data)
        self._go_on()
        self.sock.sendall(self._outgoing.read())


def storm(port: int, context: ssl.SSLContext) -> None:
    """HANDSHAKES handshakes that begin at the same moment, to their end."""
    clients = [Handshake(port, context) for _ in range(HANDSHAKES)]
    try:
        for client in clients:
            client.sock.sendall(client.hello)
        waiting = {client.sock: client for client in clients}
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], PATIENCE_SECONDS)
            assert ready
            for sock in ready:
                waiting[sock].receive()
                if waiting[sock].is_done:
                    del waiting[sock]
    finally:
        for client in clients:
            client.sock.close()


@pytest.mark.parametrize("listener", ["native", "SSL"])
@judges_turns
def test_a_storm_of_handshakes_affects_nobody_else(tmp_path: Path, listener: str) -> None:
    with secured(tmp_path) as attacked, attacked.connect() as admin:
        make_topics(attacked.running, attacked.connect)
        healthy = healthy_client(attacked)
        healthy.start()
        assert attacked.running.process is not None
        before = memory_mib(attacked.running.process.pid, "VmRSS")
        for _ in range(4 * HANDSHAKES):  # whoever has left is not waited for
            with socket.create_connection(("127.0.0.1", attacked.ports[listener]), PATIENCE_SECONDS) as sock:
                sock.sendall(client_hello())
        wait_until(lambda: numbers_of(admin)["tls_handshakes_failed_total"] == 4 * HANDSHAKES, "the end of all")
        assert memory_mib(attacked.running.process.pid, "VmHWM") < before + 40
        storm(attacked.ports[listener], attacked.context(shows_certificate=True))
        busy = numbers_of(admin)["loop_busy_seconds"]
        print(f"  {HANDSHAKES} handshakes: a turn of {busy * 1000:.1f} ms of processor time at most")
        healthy.is_wanted = False
        healthy.join(PATIENCE_SECONDS)
        assert healthy.error is None, healthy.error
        assert attacked.running.stop() == 0
        judge_turn(busy, "a storm of handshakes")


@judges_turns
def test_handshakes_that_are_half_done_and_silent_end_after_a_time(tmp_path: Path) -> None:
    with secured(tmp_path) as attacked, attacked.connect() as admin:
        make_topics(attacked.running, attacked.connect)
        healthy = healthy_client(attacked)
        healthy.start()
        hello = client_hello()
        silent = []
        for number in range(HANDSHAKES):
            sock = socket.create_connection(("127.0.0.1", attacked.ports["SASL_SSL"]), PATIENCE_SECONDS)
            sock.sendall([b"", hello[:1], hello[: len(hello) // 2], hello][number % 4])
            silent.append(sock)
        wait_until(lambda: numbers_of(admin)["connections_total"] > HANDSHAKES, "all connections")
        for sock in silent:
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(1 << 16):
                    pass
            sock.close()
        metrics = numbers_of(admin)
        healthy.is_wanted = False
        healthy.join(PATIENCE_SECONDS)
        assert healthy.error is None, healthy.error
        assert attacked.running.stop() == 0
        ended = [line for line in attacked.log_lines() if line["event"] == "tls_handshake_failed"]
        assert sum(line.get("more", 1) for line in ended) == HANDSHAKES
        assert {line["reason"] for line in ended if "reason" in line} == {f"it took longer than {HANDSHAKE_SECONDS} s"}
        judge_turn(metrics["loop_busy_seconds"], "half-done handshakes")
