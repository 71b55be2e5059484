"""Accounts and certificates at a running daemon: odd ones, wrong ones, ones that go away, and damaged files."""

import contextlib
import json
import random
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from kafka import KafkaAdminClient

import seglog
from seglog_protocol.errors import AuthenticationError, AuthorizationError, SeglogError
from seglog_protocol.kafka import messages
from tests.certificates import HOSTS, certificates, written
from tests.interop.sasl_client import SCRAM, unsecured_token
from tests.process.faults.logins import (
    KAFKA,
    NATIVE,
    SecureKafkaPeer,
    SecureNativePeer,
    Talk,
    bearer,
    kafka_frame,
    log_in,
    plain,
    scram,
)
from tests.process.faults.secured_daemon import ADMIN, PASSWORDS, Secured, make_accounts, secured
from tests.processes import PATIENCE_SECONDS, clean_environment, seglog_command, wait_until
from tests.support import each_case, numbers_of, soak_scaled, soak_seed


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("attacked")) as running:
        yield running


def raw(running: Secured, listener: str) -> socket.socket:
    """A connection without a login, within TLS where the listener has it."""
    sock = socket.create_connection(("127.0.0.1", running.ports[listener]), PATIENCE_SECONDS)
    if listener in {"native", "SASL_SSL"}:
        return running.context().wrap_socket(sock, server_hostname="localhost")
    return sock


def events(running: Secured, event: str) -> list[dict[str, Any]]:
    return [line for line in running.log_lines() if line["event"] == event]


# --- What an answer tells ---------------------------------------------------------------------------------------------


def said(running: Secured, listener: str, talk: Talk, mechanism: str, user: str) -> tuple[str, list[int]]:
    """What a wrong password of ``user`` is told, and how many bytes each of the broker's tokens has."""
    tokens = plain(user, "wrong") if mechanism == "PLAIN" else scram(mechanism, user, "wrong")
    with raw(running, listener) as sock:
        error, answers = log_in(sock, talk, mechanism, tokens)
    return error, [len(answer) for answer in answers]


@each_case("mechanism", [*SCRAM, "PLAIN"])
@each_case(("listener", "talk"), [("native", NATIVE), ("SASL_SSL", KAFKA)], ids=["native", "kafka"])
def test_an_unknown_user_is_told_what_a_wrong_password_is_told(
    attacked: Secured, listener: str, talk: Talk, mechanism: str
) -> None:
    known = said(attacked, listener, talk, mechanism, "alice")
    assert known[0]
    assert known == said(attacked, listener, talk, mechanism, "alicf")


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_wrong_certificate_of_a_client_is_refused_also_where_none_is_needed(
    attacked: Secured, tmp_path: Path
) -> None:
    """One of another authority; all that is wrong: ``tests/unit/broker/security/test_tls.py``."""
    files = written(tmp_path / "wrong", trustme.CA().issue_cert("client@example.org", common_name="client"))
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = attacked.context()
        context.maximum_version = version
        context.load_cert_chain(files.chain, files.key)
        with attacked.connect() as admin:
            before = numbers_of(admin)["tls_handshakes_failed_total"]
            show(attacked, context)
            wait_until(partial(_has_failed, admin, before), "the failed handshake")


def _has_failed(admin: seglog.Client, before: float) -> bool:
    return numbers_of(admin)["tls_handshakes_failed_total"] > before


def show(attacked: Secured, context: ssl.SSLContext) -> None:
    """Connect with a certificate, and ask; no answer may come. TLS 1.3 tells a client of its refusal only then."""
    asked = kafka_frame(messages.ApiVersionsRequest(), 0)
    with (
        socket.create_connection(("127.0.0.1", attacked.ports["SSL"]), PATIENCE_SECONDS) as sock,
        contextlib.suppress(ssl.SSLError, ConnectionResetError, BrokenPipeError),
        context.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        tls.sendall(asked)
        assert tls.recv(1) == b""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@each_case("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@each_case("listener", ["native", "SASL_SSL", "SSL"])
def test_versions_of_tls_that_are_broken_are_not_spoken(
    attacked: Secured, listener: str, version: ssl.TLSVersion
) -> None:
    context = attacked.context()
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", attacked.ports[listener]), PATIENCE_SECONDS) as sock,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        context.wrap_socket(sock, server_hostname="localhost")


# --- Names ------------------------------------------------------------------------------------------------------------

ODD_NAMES: Final = ("weird,=name", "-äöü 日本語 'x' $(id);`id`/../%s%n{}", "x" * 255)


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_an_odd_name_is_an_account_for_every_client(attacked: Secured, tmp_path: Path, name: str) -> None:
    password = f'pass,="w\u00f6rd" {name[:50]}'
    file = tmp_path / "password"
    file.write_text(password, encoding="utf-8")
    own = tmp_path / "admin"
    own.write_text(PASSWORDS[ADMIN])
    command = seglog_command(attacked.running.address)
    command += ["--user", ADMIN, "--ca", str(attacked.certificates.authority_file)]
    done = subprocess.run(
        [*command, "user", "add", "--password-file", str(file), "--", name],
        env=clean_environment(SEGLOG_PASSWORD_FILE=str(own)),
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    with attacked.connect(name, password) as client:
        assert client.principal == f"User:{name}"
    # kafka-python does not escape what SCRAM has escaped: there such a name is possible by PLAIN alone
    for mechanism in ["PLAIN"] if {",", "="} & {*name} else SCRAM:
        admin = KafkaAdminClient(
            bootstrap_servers=f"localhost:{attacked.ports['SASL_SSL']}",
            security_protocol="SASL_SSL",
            ssl_cafile=str(attacked.certificates.authority_file),
            sasl_mechanism=mechanism,
            sasl_plain_username=name,
            sasl_plain_password=password,
        )
        assert admin.list_topics() is not None
        admin.close()


# --- Accounts that go away --------------------------------------------------------------------------------------------


def test_a_deleted_account_is_out_at_once_on_both_wires_and_a_new_password_counts_at_the_next_login(
    attacked: Secured,
) -> None:
    context = attacked.context()
    with attacked.connect() as admin:
        admin.create_user("eve", "first password")
        native = SecureNativePeer(attacked.port, context, "eve", "first password")
        on_kafkas = SecureKafkaPeer(attacked.ports["SASL_SSL"], context, "eve", "first password")
        native.ask({"api": "metrics"})
        assert on_kafkas.ask(messages.ApiVersionsRequest(), 0)
        admin.set_password("eve", "second password")
        native.ask({"api": "metrics"})
        assert on_kafkas.ask(messages.ApiVersionsRequest(), 0)
        with pytest.raises(AuthenticationError):
            attacked.connect("eve", "first password")
        attacked.connect("eve", "second password").close()
        admin.delete_user("eve")
        with pytest.raises(AssertionError, match="the broker hung up"):
            native.ask({"api": "metrics"})
        assert on_kafkas.ask(messages.ApiVersionsRequest(), 0) == []
        native.close()
        with pytest.raises(AuthenticationError):
            attacked.connect("eve", "second password")


def test_what_was_done_by_whom_is_in_the_log(tmp_path: Path) -> None:
    """Logins, refusals and changes of accounts, with principal and address."""
    with secured(tmp_path) as running:
        with running.connect() as admin, running.connect("alice") as alice:
            admin.create_user("eve", "a password")
            admin.delete_user("eve")
            with pytest.raises(AuthorizationError):
                alice.create_topic("mine")
        with pytest.raises(AuthenticationError):
            running.connect("alice", "wrong")
        with raw(running, "SASL_SSL") as sock:
            log_in(sock, KAFKA, "OAUTHBEARER", bearer(unsecured_token(sub="bob", exp=2**40)))
        context = running.context(shows_certificate=True)
        with (
            socket.create_connection(("127.0.0.1", running.ports["SSL"])) as plain_sock,
            context.wrap_socket(plain_sock, server_hostname="localhost"),
        ):  # a client that is gone at once may be gone before the broker has seen its certificate
            wait_until(
                lambda: any(line["listener"] == "SSL" for line in events(running, "client_authenticated")),
                "the login by a certificate",
            )
        with contextlib.suppress(OSError), raw(running, "PLAINTEXT") as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            sock.recv(100)
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.sendall(b"\x16\x03\x01\0\x05hello")
            sock.recv(100)
        wait_until(lambda: bool(events(running, "tls_handshake_failed")), "the failed handshake")
        logins = {
            (line["listener"], line["principal"], line["mechanism"]) for line in events(running, "client_authenticated")
        }
        assert {
            ("native", "User:admin", "SCRAM-SHA-512"),
            ("native", "User:alice", "SCRAM-SHA-512"),
            ("SASL_SSL", "User:bob", "OAUTHBEARER"),
        } <= logins
        assert [mechanism for listener, _, mechanism in logins if listener == "SSL"] == ["TLS"]
        [failed] = events(running, "authentication_failed")
        assert (failed["claimed"], failed["mechanism"]) == ("alice", "SCRAM-SHA-512")
        [refused] = events(running, "authorization_refused")
        assert refused["principal"] == "User:alice"
        changes = [(line["user"], line["change"], line["principal"]) for line in events(running, "user_changed")]
        assert set(changes) == {("eve", "credential_set", "User:admin"), ("eve", "credential_deleted", "User:admin")}
        for event in ("client_authenticated", "authentication_failed", "authorization_refused", "tls_handshake_failed"):
            assert all(line["peer"].startswith("127.0.0.1:") for line in events(running, event)), event


# --- Files ------------------------------------------------------------------------------------------------------------


def refused(folder: Path, *arguments: str) -> str:
    """What `seglogd` says that does not start."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "seglog_broker", "--data", str(folder / "data"), "--log-format", "json"),
            *("--listen", "SASL_SSL://127.0.0.1:0", *arguments),
        ],
        env=clean_environment(),
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode not in {0, -9}
    assert b"Traceback" not in done.stderr
    return done.stderr.decode()


def test_a_damaged_file_of_accounts_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    make_accounts(tmp_path / "data", {"admin": "a password of some length"})
    made = certificates(tmp_path / "certificates").issue("broker", *HOSTS)
    file = tmp_path / "data" / "seglog-accounts.json"
    damaged = file.read_bytes().replace(b"4096", b"4097", 1)
    file.write_bytes(damaged)
    assert "seglog-accounts.json" in refused(tmp_path, "--set", f"ssl.keystore.location={made.together}")
    assert file.read_bytes() == damaged


class Changing(threading.Thread):
    """Gives ``eve`` one numbered password after the other."""

    def __init__(self, running: Secured, number: int) -> None:
        super().__init__(daemon=True)
        self.asked = self.acknowledged = self._first = number
        self.is_wanted = True
        self._running = running

    def run(self) -> None:
        """Go on until it is not wanted any more, or a change fails."""
        with contextlib.suppress(SeglogError), self._running.connect(request_timeout=5) as admin:
            while self.is_wanted:
                self.asked += 1
                admin.set_password("eve", f"password {self.asked}")
                self.acknowledged = self.asked

    def wait_for(self, changes: int) -> None:
        """Return when so many are acknowledged."""
        wait_until(lambda: self.acknowledged >= self._first + changes, "changes")


@pytest.mark.soak
def test_a_kill_while_a_password_changes_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    """After each kill the account has the latest password that was acknowledged, or the one that was on its way."""
    dice = random.Random(soak_seed())
    with secured(tmp_path, under=()) as running:
        number = 0
        with running.connect() as admin:
            admin.create_user("eve", "password 0")
        for _ in range(max(2, soak_scaled(30))):
            changing = Changing(running, number)
            changing.start()
            changing.wait_for(dice.randrange(2, 8))
            changing.is_wanted = False
            running.running.kill()
            running.running.start()
            changing.join(PATIENCE_SECONDS)
            good = []
            for tried in {changing.acknowledged, changing.asked}:
                with contextlib.suppress(AuthenticationError):
                    running.connect("eve", f"password {tried}").close()
                    good.append(tried)
            assert len(good) == 1
            [number] = good
        assert running.running.stop() == 0
        json.loads((running.running.directory / "seglog-accounts.json").read_bytes())
