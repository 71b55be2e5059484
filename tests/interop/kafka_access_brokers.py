"""A daemon with accounts, one of which administers."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from seglog_broker.accounts.commands import locked_accounts
from seglog_broker.security.credentials import ITERATIONS_MIN, from_password
from seglog_broker.storage.directory.accounts import Change
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.interop.kafka_access_cases import ADMIN, ANONYMOUS, Ports, password
from tests.processes import Daemon, daemon

MECHANISM: Final = "SCRAM-SHA-256"


@contextmanager
def daemon_with(directory: Path, principals: Collection[str], *settings: str) -> Iterator[tuple[Daemon, Ports]]:
    """A daemon whose accounts are these and the administrator's."""
    directory.mkdir()
    with locked_accounts(PosixFileSystem(), str(directory)) as accounts:
        accounts.change(
            Change(name, MECHANISM, from_password(MECHANISM, password(name), ITERATIONS_MIN))
            for name in {ADMIN, *principals} - {ANONYMOUS}
        )
    listeners = "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    told = (listeners, "sasl.enabled.mechanisms=PLAIN", *settings)
    with daemon(directory, *(flag for setting in told for flag in ("--set", setting))) as running:
        (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
        yield running, Ports(*(int(address.rsplit(":", 1)[1]) for address in ready["kafka"].split(",")))
