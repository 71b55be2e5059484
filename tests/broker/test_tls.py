"""A daemon with TLS: certificates of one command, who gets in by them, and another certificate while it serves."""

import json
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

import seglog
from tests.broker.test_main import port_of, running, seglogd

MAPPING = "ssl.principal.mapping.rules=RULE:^CN=([^,]+),OU=clients.*$/$1/"


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """What `seglogd certificates` makes, with a client alice."""
    made = seglogd("certificates", "--to", str(tmp_path / "certs"), "--client", "alice")
    assert made.returncode == 0, made.stderr
    return tmp_path / "certs"


def settings(certs: Path, *more: str) -> list[str]:
    flags = [f"ssl.keystore.location={certs / 'server.pem'}", *more]
    return ["--listen", "SSL://127.0.0.1:0", *(word for flag in flags for word in ("--set", flag))]


def with_client_auth(certs: Path, *more: str) -> list[str]:
    trusted = f"ssl.truststore.location={certs / 'authority.pem'}"
    return settings(certs, "ssl.client.auth=required", trusted, MAPPING, *more)


def certificate_shown(port: int, certs: Path) -> str:
    """What a new connection is shown, as PEM."""
    return ssl.get_server_certificate(("localhost", port), ca_certs=str(certs / "authority.pem"))


def events_until(process: "subprocess.Popen[str]", event: str) -> list[dict[str, Any]]:
    assert process.stderr is not None
    found = []
    for line in process.stderr:
        found.append(json.loads(line))
        if found[-1]["event"] == event:
            return found
    raise AssertionError(f"the daemon ended before {event}: {found}")


def test_what_the_command_makes_serves_clients_that_trust_it(tmp_path: Path, certs: Path) -> None:
    with running(tmp_path / "data", *settings(certs)) as (_, logged):
        address = f"seglogs://localhost:{port_of(logged)}"
        with seglog.connect(address, tls=certs / "authority.pem") as client:
            client.create_topic("t")
            assert [topic.name for topic in client.topics()] == ["t"]
        with pytest.raises(seglog.TlsError):
            seglog.connect(address, tls=True, connect_timeout=5)


def test_a_client_is_who_its_certificate_says(tmp_path: Path, certs: Path) -> None:
    """And may administer if super.users says so; without a certificate there is no way in."""
    with running(tmp_path / "data", *with_client_auth(certs, "super.users=User:alice")) as (process, logged):
        address = f"seglogs://localhost:{port_of(logged)}"
        alice = seglog.Tls(ca=certs / "authority.pem", certificate=certs / "client-alice.pem")
        with seglog.connect(address, tls=alice) as client:
            client.create_topic("t")
        assert events_until(process, "client_authenticated")[-1]["principal"] == "User:alice"
        with pytest.raises((seglog.TlsError, seglog.NotReachableError)):
            seglog.connect(address, tls=certs / "authority.pem", connect_timeout=2)


def test_sighup_replaces_the_certificate_and_cuts_nobody(tmp_path: Path, certs: Path) -> None:
    """Without a configuration file; one that cannot be used changes nothing."""
    with running(tmp_path / "data", *settings(certs)) as (process, logged):
        port = port_of(logged)
        before = certificate_shown(port, certs)
        with seglog.connect(f"seglogs://localhost:{port}", tls=certs / "authority.pem") as client:
            (certs / "server.pem").unlink()
            process.send_signal(signal.SIGHUP)
            assert str(certs / "server.pem") in events_until(process, "certificate_not_reloaded")[-1]["reason"]
            assert certificate_shown(port, certs) == before
            seglogd("certificates", "--to", str(certs))
            process.send_signal(signal.SIGHUP)
            assert events_until(process, "certificate_reloaded")[-1]["names"] == ["localhost", "127.0.0.1", "::1"]
            assert certificate_shown(port, certs) != before
            client.create_topic("t")
            assert [topic.name for topic in client.topics()] == ["t"]


def test_a_key_that_does_not_fit_is_refused_before_the_log_directory_is_touched(tmp_path: Path, certs: Path) -> None:
    content = (certs / "client-alice.pem").read_bytes()
    chain = content[content.index(b"-----BEGIN CERTIFICATE-----") :]
    server = (certs / "server.pem").read_bytes()
    (certs / "server.pem").write_bytes(server[: server.index(b"-----BEGIN CERTIFICATE-----")] + chain)
    started = seglogd("--data", str(tmp_path / "data"), *settings(certs))
    assert started.returncode == 2, "systemd does not try again"
    assert "the private key does not fit the certificate" in started.stderr
    assert not (tmp_path / "data").exists()
