"""A broker, and how driver and executors of a query or a job come to it: names of files and accounts, and no secret.

Spark writes options into plans, its event log and its pages, so a password is named by its file, or the environment of
each machine names it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.core.security import Tls

PASSWORD_VARIABLE: Final = "SEGLOG_PASSWORD_FILE"  # noqa: S105 - its name
SECURITY_OPTIONS: Final = ("user", "passwordFile", "mechanism", "tls", "ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class SecuredServer:
    """A broker at ``address`` that wants TLS or an account, by ``options``: those of SECURITY_OPTIONS that are set.

    Paths are those of each machine that connects.
    """

    address: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.address

    def keywords(self) -> dict[str, Any]:
        """Those of ``seglog.connect``, on this machine. Raises ValueError for what does not fit together."""
        user, password_file, mechanism, says_tls, ca, certificate, key = map(self.options.get, SECURITY_OPTIONS)
        if user is not None and password_file is None:
            password_file = os.environ.get(PASSWORD_VARIABLE)
            if not password_file:
                raise ValueError(
                    f"user {user} needs the option passwordFile, a file on every machine that connects, or "
                    f"{PASSWORD_VARIABLE} in the environment of each"
                )
        tls: bool | Tls | None = None if says_tls is None else says_tls == "true"
        if ca or certificate or key:
            if tls is False:
                raise ValueError("tls is false, and ca, certificate and key are for a connection with TLS")
            tls = Tls(ca, certificate, key)
        return {"user": user, "password_file": password_file, "mechanism": mechanism, "tls": tls}


Server = str | SecuredServer
"""HOST:PORT of a broker that wants neither TLS nor an account, or all that is needed."""


def options_of(server: Server) -> dict[str, str]:
    """The options of ``format("seglog")`` that lead to a broker."""
    return {"servers": str(server)} | ({} if isinstance(server, str) else dict(server.options))


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
    given = {"passwordFile": security.pop("password_file", None), **security}
    if isinstance(tls, Tls):
        given |= {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    elif tls is not None:
        given["tls"] = str(tls).lower()
    return SecuredServer(options.server, {name: str(text) for name, text in given.items() if text is not None})
