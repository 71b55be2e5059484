"""A daemon with TLS: certificates of one command, who gets in by them, and another certificate while it serves."""

import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

import seglog
from tests.certificates import HOSTS, certificates
from tests.processes import port_of, seglogd, watched


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """What `seglogd certificates` makes, with a client alice."""
    made = seglogd("certificates", "--to", str(tmp_path / "certs"), "--client", "alice")
    assert made.returncode == 0, made.stderr
    return tmp_path / "certs"


def settings(certs: Path) -> list[str]:
    return ["--listen", "SSL://127.0.0.1:0", "--set", f"ssl.keystore.location={certs / 'server.pem'}"]


def certificate_shown(port: int, certs: Path) -> str:
    """What a new connection is shown, as PEM."""
    return ssl.get_server_certificate(("localhost", port), ca_certs=str(certs / "authority.pem"))


def test_sighup_replaces_the_certificate_and_cuts_nobody(tmp_path: Path, certs: Path) -> None:
    """Without a configuration file; one that cannot be used changes nothing."""
    with watched(tmp_path / "data", *settings(certs)) as (process, lines, logged):
        port = port_of(logged[-1])
        before = certificate_shown(port, certs)
        with seglog.connect(f"seglogs://localhost:{port}", tls=certs / "authority.pem") as client:
            (certs / "server.pem").unlink()
            process.send_signal(signal.SIGHUP)
            assert str(certs / "server.pem") in lines.until("certificate_not_reloaded")[-1]["reason"]
            assert certificate_shown(port, certs) == before
            seglogd("certificates", "--to", str(certs))
            process.send_signal(signal.SIGHUP)
            assert lines.until("certificate_reloaded")[-1]["names"] == ["localhost", "127.0.0.1", "::1"]
            assert certificate_shown(port, certs) != before
            client.create_topic("t")
            assert [topic.name for topic in client.topics()] == ["t"]


def kafka_ports(logged: list[dict[str, Any]]) -> list[int]:
    return [int(address.rsplit(":", 1)[1]) for address in logged[-1]["kafka"].split(", ")]


def name_shown(port: int, authority: Path) -> str:
    """The name in the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        found = tls.getpeercert()
        assert found is not None
        subject: Any = found["subject"]
        return str(dict(pair for [pair] in subject)["commonName"])


def test_each_listener_may_have_a_certificate_of_its_own(tmp_path: Path) -> None:
    """It is told by its listener, replaced at SIGHUP with the others, and asked of clients on that listener alone."""
    issuer = certificates(tmp_path / "certs")
    shared, own, alice = (issuer.issue(name, *HOSTS) for name in ("shared", "own", "alice"))
    config = tmp_path / "seglogd.toml"
    config.write_text(
        '"listener.security.protocol.map" = "INTERNAL:SSL,EXTERNAL:SSL"\n'
        f'"ssl.keystore.location" = "{shared.together}"\n'
        f'"listener.name.external.ssl.keystore.location" = "{own.together}"\n'
        '"listener.name.internal.ssl.client.auth" = "required"\n'
        f'"listener.name.internal.ssl.truststore.location" = "{issuer.authority_file}"\n'
        '"listener.name.internal.ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"\n',
        encoding="utf-8",
    )
    listeners = "listeners=INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0"
    where = ("--config", str(config), "--listen", "SSL://127.0.0.1:0", "--set", listeners)
    with watched(tmp_path / "data", *where) as (process, lines, logged):
        internal, external = kafka_ports(logged)
        assert name_shown(external, issuer.authority_file) == "own"
        assert name_shown(port_of(logged[-1]), issuer.authority_file) == "shared"
        context = ssl.create_default_context(cafile=str(issuer.authority_file))
        context.load_cert_chain(alice.together)
        with (
            socket.create_connection(("127.0.0.1", internal)) as raw,
            context.wrap_socket(raw, server_hostname="localhost"),
        ):
            [*_, login] = lines.until("client_authenticated")
        assert (login["principal"], login["listener"]) == ("User:alice", "INTERNAL")
        issuer.issue("own", *HOSTS).together.write_bytes(shared.together.read_bytes())
        process.send_signal(signal.SIGHUP)
        reloaded = [event for event in lines.until("configuration_reloaded") if "certificate" in event["event"]]
        assert [event.get("listener") for event in reloaded] == [None, "EXTERNAL"]
        assert name_shown(external, issuer.authority_file) == "shared"
        own.together.write_text("nothing", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        reason = lines.until("configuration_not_reloaded")[-1]["reason"]
        assert reason.startswith(f"listener EXTERNAL: ssl.keystore.location = {own.together} cannot be used")
        assert name_shown(external, issuer.authority_file) == "shared"
