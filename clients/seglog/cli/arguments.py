"""The options of a parsed command line, and how to come to its broker: as typed, by the environment, by a profile."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.cli.exits import UsageError

DEFAULT_SERVER: Final = "localhost:9192"
CONNECT_SECONDS: Final = 5.0

COMPLETE_VARIABLE: Final = "_SEGLOG_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""

CONNECTION_OPTIONS: Final = (
    "server", "profile", "user", "password_file", "mechanism", "tls", "ca", "certificate", "key"
)  # fmt: skip
"""The options that say which broker, and how to come to it."""

_VARIABLES: Final = {"user": "SEGLOG_USER", "password_file": "SEGLOG_PASSWORD_FILE", "ca": "SEGLOG_CA"}
_EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - to be recognised


@dataclass(slots=True)
class Options:
    """The parsed command line; which fields are there depends on the command.

    ``run`` is the function of the command, which takes these and returns the exit code. ``security`` is how to come to
    ``server``, as keywords of ``seglog.connect``.
    """

    run: "Callable[[Options], int]"
    server: str
    json: bool
    connect_timeout: float
    values: dict[str, Any] = field(default_factory=dict)
    security: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def connection_of(typed: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> tuple[str, dict[str, Any]]:
    """The broker's address and the keywords for connecting to it; ``typed`` are the CONNECTION_OPTIONS, None if absent.

    The default profile is for its own server: where another is named, it says nothing. Raises UsageError.
    """
    from seglog.cli.profiles import Profile, profile_of

    _check_not_empty(typed, environ)
    server = typed.get("server") or environ.get("SEGLOG_SERVER")
    profile = profile_of(typed.get("profile") or environ.get("SEGLOG_PROFILE") or None, environ)
    if not profile.is_named and server and profile.server and not _is_same(server, profile.server):
        profile = Profile()
    given = {name: typed.get(name) or environ.get(variable) or None for name, variable in _VARIABLES.items()}
    user = given["user"] or profile.user
    secrets = {"password_file": given["password_file"]}
    if given["password_file"] is None and user == profile.user:
        secrets = {"password_file": profile.password_file, "password": profile.password}
    chosen = server or profile.server or _server_beside(environ)
    found = {
        "user": user,
        **secrets,
        "mechanism": typed.get("mechanism") or profile.mechanism,
        "tls": _tls(chosen, typed, {"ca": given["ca"] or profile.ca}, profile),
    }
    return chosen, {name: value for name, value in found.items() if value is not None}


def _check_not_empty(typed: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Raises UsageError: what is given as empty, as by an unset variable of a script, is not left to another place."""
    for name in CONNECTION_OPTIONS:
        if typed.get(name) == "":
            raise UsageError(f"--{name.replace('_', '-')} is empty; leave it out, or give it a value")
    for name, variable in _VARIABLES.items():
        if typed.get(name) is None and environ.get(variable) == "":
            raise UsageError(f"{variable} is empty; unset it, or give it a value")


def _tls(server: str, typed: Mapping[str, Any], found: Mapping[str, Any], profile: Any) -> Any:
    """As ``tls`` of ``seglog.connect``. What was not typed does not contradict the server's scheme."""
    if typed.get("tls") is False:
        return False
    files = {
        "ca": found["ca"],
        "certificate": typed.get("certificate") or profile.certificate,
        "key": typed.get("key") or profile.key,
    }
    is_typed = typed.get("tls") or any(typed.get(name) for name in files)
    if not is_typed and server.lower().startswith("seglog://"):
        return None
    if any(files.values()):
        from seglog.core.security import Tls

        try:
            return Tls(**files)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return True if typed.get("tls") else profile.tls


def _is_same(server: str, other: str) -> bool:
    from seglog.core.security import parse_server

    try:
        return parse_server(server)[0] == parse_server(other)[0]
    except ValueError:
        return False


def _server_beside(environ: Mapping[str, str]) -> str:
    """The address in SEGLOG_LISTEN, as in a container that runs a broker; else localhost:9192."""
    protocol, separator, address = environ.get("SEGLOG_LISTEN", "").rpartition("://")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) == 0:
        return DEFAULT_SERVER
    scheme = "seglogs://" if separator and protocol.upper().endswith("SSL") else ""
    return f"{scheme}{'localhost' if host in _EVERY_INTERFACE else host}:{port}"
