"""A broker, and how driver and executors of a query or a job come to it: names of files and accounts, and no secret.

Spark writes options into plans, its event log and its pages, so a password is named by its file, or the environment of
each machine names it.
"""

import os
from dataclasses import dataclass
from typing import Any, Final

from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.core.security import Tls

PASSWORD_VARIABLE: Final = "SEGLOG_PASSWORD_FILE"  # noqa: S105 - its name
SECURITY_OPTIONS: Final = ("user", "passwordFile", "mechanism", "tls", "ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class SecuredServer:
    """A broker at ``address`` that wants TLS or an account. Paths are those of each machine that connects."""

    address: str
    user: str | None = None
    password_file: str | None = None
    mechanism: str | None = None
    tls: bool | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return self.address

    def keywords(self) -> dict[str, Any]:
        """Those of ``seglog.connect``, on this machine. Raises ValueError for what does not fit together."""
        password_file = self.password_file
        if self.user is not None and password_file is None:
            password_file = os.environ.get(PASSWORD_VARIABLE)
            if not password_file:
                raise ValueError(
                    f"user {self.user} needs the option passwordFile, a file on every machine that connects, or "
                    f"{PASSWORD_VARIABLE} in the environment of each"
                )
        tls: bool | Tls | None = self.tls
        if self.ca or self.certificate or self.key:
            if self.tls is False:
                raise ValueError("tls is false, and ca, certificate and key are for a connection with TLS")
            tls = Tls(self.ca, self.certificate, self.key)
        return {"user": self.user, "password_file": password_file, "mechanism": self.mechanism, "tls": tls}

    def options(self) -> dict[str, str]:
        """Those of ``format("seglog")``, without ``servers``."""
        tls = None if self.tls is None else str(self.tls).lower()
        values = (self.user, self.password_file, self.mechanism, tls, self.ca, self.certificate, self.key)
        return {name: value for name, value in zip(SECURITY_OPTIONS, values, strict=True) if value is not None}


Server = str | SecuredServer
"""HOST:PORT of a broker that wants neither TLS nor an account, or all that is needed."""


def options_of(server: Server) -> dict[str, str]:
    """The options of ``format("seglog")`` that lead to a broker."""
    return {"servers": str(server)} | ({} if isinstance(server, str) else server.options())


def server_of(options: Options) -> Server:
    """The broker of a job's command line. Raises UsageError for what cannot travel to executors."""
    security = dict(options.security)
    tls = security.pop("tls", None)
    if not security and tls is None:
        return options.server
    if "password" in security or ("user" in security and "password_file" not in security):
        raise UsageError(
            "a job's executors read the password from a file: give --password-file, or SEGLOG_PASSWORD_FILE"
        )
    files = {name: getattr(tls, name) for name in ("ca", "certificate", "key")} if isinstance(tls, Tls) else {}
    return SecuredServer(options.server, tls=tls if isinstance(tls, bool) else None, **security, **files)
