"""Accounts at a running daemon: who did what is in the log."""

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from seglog_protocol.errors import AuthenticationError, AuthorizationError
from tests.interop.sasl_client import unsecured_token
from tests.process.faults.logins import KAFKA, bearer, log_in
from tests.process.faults.secured_daemon import Secured, secured
from tests.processes import PATIENCE_SECONDS, wait_until


def raw(running: Secured, listener: str) -> socket.socket:
    """A connection without a login, within TLS where the listener has it."""
    sock = socket.create_connection(("127.0.0.1", running.ports[listener]), PATIENCE_SECONDS)
    if listener in {"native", "SASL_SSL"}:
        return running.context().wrap_socket(sock, server_hostname="localhost")
    return sock


def events(running: Secured, event: str) -> list[dict[str, Any]]:
    return [line for line in running.log_lines() if line["event"] == event]


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
