"""Accounts and certificates of a broker in tests: what its listeners speak by them, and what clients need."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog.access import Access
from seglog.core.dialing import parse_address
from seglog.core.security import Account, Mechanism, Target, Tls
from seglog.testing.accounts import Accounts, Password
from seglog.testing.configuration import SUPER_USERS
from seglog.testing.errors import NotPossibleError
from seglog_broker.security.trial_certificates import AUTHORITY, HOSTS, SERVER, make_certificates


@cache
def _certificates(process: int, hosts: frozenset[str]) -> Path:
    """The folder with the files of a broker that is reached by ``hosts``. Raises InvalidConfigError.

    A child that was forked makes its own: the parent may end before it.
    """
    folder = Path(tempfile.mkdtemp(prefix="seglog-tls-"))
    atexit.register(_remove, process, folder)
    make_certificates(folder, sorted(hosts), [])
    return folder


def _remove(process: int, folder: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


KEYSTORE: Final = "ssl.keystore.location"


def security_of(
    users: Mapping[str, Password] | None, admins: Iterable[str], tls: bool, listen: str, kafka: str
) -> "Security":
    """By the arguments of ``Broker``, of which ``hide`` has hidden the passwords. Raises TypeError, ValueError."""
    if users is None and admins:
        raise TypeError("admins are some of users, and there are no users")
    if not isinstance(tls, bool):
        raise TypeError(f"tls is True or False, not {tls!r}")
    for name, address in (("listen", listen), ("kafka", kafka)):
        if "://" in address:
            raise ValueError(f"{name} is HOST:PORT, not {address!r}: users and tls=True say what is spoken there")
    hosts = frozenset(map(_host, (listen, kafka))) - {*HOSTS}
    return Security(
        None if users is None else Accounts(users, admins), _certificates(os.getpid(), hosts) if tls else None
    )


def _host(address: str) -> str:
    """The host of ``HOST:PORT``, which has not been checked yet: the configuration does that."""
    return address.rpartition(":")[0].strip("[]") or "localhost"


class ShownOnDemand(str):
    """A password among settings of a client that wants text: it is the text, and its ``repr`` does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(...)"


class Security(NamedTuple):
    """``accounts`` None: nobody logs in; ``certificates``, the folder of their files, None: no TLS."""

    accounts: Accounts | None = None
    certificates: Path | None = None

    @property
    def protocol(self) -> str:
        """The security protocol of all listeners, by Kafka's name."""
        if self.accounts is None:
            return "PLAINTEXT" if self.certificates is None else "SSL"
        return "SASL_PLAINTEXT" if self.certificates is None else "SASL_SSL"

    @property
    def ca(self) -> str | None:
        """The file of the authority that has signed the broker's certificate; None without TLS."""
        return None if self.certificates is None else str(self.certificates / AUTHORITY)

    def listener(self, address: str) -> str:
        """``address`` as the value of the key of a listener."""
        return f"{self.protocol}://{address}"

    def added_to(self, flags: Mapping[str, str]) -> dict[str, str]:
        """Keys and values of the configuration, with those that accounts and certificates need. Raises TypeError."""
        more: dict[str, str] = {}
        if self.accounts is not None:
            more[SUPER_USERS] = ";".join(filter(None, [self.accounts.super_users, flags.get(SUPER_USERS)]))
        if self.certificates is not None:
            if KEYSTORE in flags:
                raise TypeError(f"tls=True brings a certificate, and {KEYSTORE} another one: leave out one of them")
            more[KEYSTORE] = str(self.certificates / SERVER)
        return {**flags, **more}

    def url(self, address: str) -> str:
        """``address`` for seglog's clients, with the scheme."""
        return f"seglog{'' if self.certificates is None else 's'}://{address}"

    def access(self, address: str) -> Access:
        """How the broker's own client gets in."""
        tls = None if self.ca is None else Tls(ca=self.ca)
        identity = None if self.accounts is None else self.accounts.account(None)
        return Access(Target(parse_address(address), tls, identity))

    def client_config(self, address: str, user: str | None) -> dict[str, Any]:
        """See Broker."""
        config: dict[str, Any] = {"address": self.url(address)}
        if self.ca is not None:
            config["tls"] = self.ca
        account = self._account(user)
        if account is not None:
            config |= {"user": account.user, "password": account.password}
        return config

    def kafka_config(self, address: str, user: str | None, mechanism: Mechanism) -> dict[str, str]:
        """See Broker."""
        config = {"bootstrap_servers": address, "security_protocol": self.protocol}
        if self.ca is not None:
            config["ssl_cafile"] = self.ca
        account = self._account(user)
        if account is not None:
            config["sasl_mechanism"] = mechanism
            config["sasl_plain_username"] = account.user
            config["sasl_plain_password"] = ShownOnDemand(account.password.reveal())
        return config

    def needed_accounts(self) -> Accounts:
        """Raises NotPossibleError without them."""
        if self.accounts is None:
            raise NotPossibleError("nobody logs in to this broker: Broker(users={…}) has accounts, also if it is empty")
        return self.accounts

    def _account(self, user: str | None) -> Account | None:
        if user is None and self.accounts is None:
            return None
        return self.needed_accounts().account(user)
