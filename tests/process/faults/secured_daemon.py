"""A daemon with TLS and accounts on both wires, whose metrics begin anew when they are read."""

import json
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import seglog
from seglog_broker.accounts.commands import locked_accounts, set_password
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.scram import HASHES
from tests.certificates import HOSTS, Certificates, Files, certificates
from tests.processes import Daemon, daemon

PASSWORDS: Final = {"admin": "Tr0ub4dor-and-3", "alice": "correct horse battery staple"}
ADMIN: Final = "admin"
ITERATIONS: Final = 4_096
KAFKA_LISTENERS: Final = ("SASL_SSL", "SASL_PLAINTEXT", "SSL", "PLAINTEXT")
"""Kafka's listeners, which are called as what they speak. SSL wants certificates of its clients."""

METERED: Final = (sys.executable, "-m", "tests.process.faults.metered_daemon")


@dataclass(frozen=True)
class Secured:
    """The daemon, and what its clients need."""

    running: Daemon
    certificates: Certificates
    client: Files
    """A certificate that the listeners with TLS take."""
    protocol: str
    """What is spoken on the native port."""

    @property
    def port(self) -> int:
        """The native port."""
        return self.running.port

    @property
    def kafka_ports(self) -> dict[str, int]:
        """Kafka's ports by listener, since its last start."""
        ready = next(event for event in reversed(self.running.logged) if event["event"] == "broker_ready")
        ports = [int(address.rpartition(":")[2]) for address in ready["kafka"].split(", ")]
        return dict(zip(KAFKA_LISTENERS, ports, strict=True))

    @property
    def ports(self) -> dict[str, int]:
        """The ports with their listeners' names; the native one is called so."""
        return {"native": self.port, **self.kafka_ports}

    def context(self, *, shows_certificate: bool = False) -> ssl.SSLContext:
        """What a client that trusts the daemon uses."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority_file))
        if shows_certificate:
            context.load_cert_chain(self.client.chain, self.client.key)
        return context

    def connect(self, user: str = ADMIN, password: str | None = None, **options: Any) -> seglog.Client:
        """A client of the native port that has logged in."""
        tls = str(self.certificates.authority_file) if self.protocol.endswith("SSL") else None
        if self.protocol.startswith("SASL"):
            options |= {"user": user, "password": PASSWORDS[user] if password is None else password}
        return seglog.connect(self.running.address, tls=tls, **options)

    def log_lines(self) -> list[dict[str, Any]]:
        """What it has logged since its last start, each line an event."""
        return [json.loads(line) for line in self.running.log_text().splitlines()]


def make_accounts(directory: Path, passwords: dict[str, str]) -> None:
    """Make accounts as `seglogd user add` does, while no daemon runs."""
    with locked_accounts(PosixFileSystem(), str(directory)) as accounts:
        for name, password in passwords.items():
            set_password(accounts, name, password, list(HASHES), ITERATIONS)


@contextmanager
def secured(
    folder: Path,
    *arguments: str,
    protocol: str = "SASL_SSL",
    under: Sequence[str] = METERED,
) -> Iterator[Secured]:
    """A daemon with all of KAFKA_LISTENERS that is ready; gone afterwards."""
    made = certificates(folder / "certificates")
    server, client = made.issue("broker", *HOSTS), made.issue("client")
    make_accounts(folder / "data", PASSWORDS)
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in KAFKA_LISTENERS),
        "super.users": f"User:{ADMIN}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        "seglog.sasl.oauthbearer.unsecured": "true",
        "ssl.keystore.location": str(server.together),
        "ssl.truststore.location": str(made.authority_file),
        "ssl.client.auth": "requested",
        "connection.failed.authentication.delay.ms": "0",
        "auto.create.topics.enable": "false",
    }
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    listen = ("--listen", f"{protocol}://127.0.0.1:0")  # the last one counts
    with daemon(folder / "data", *listen, *flags, *arguments, under=under) as running:
        yield Secured(running, made, client, protocol)
