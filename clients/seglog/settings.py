"""A broker and how to come to it, for programs and commands: as given, by the environment, by a profile."""

import os
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from seglog.core.dialing import DEFAULT_SERVER
from seglog.core.security import Secret, Target, Tls, hidden, parse_server, target_of
from seglog.profiles import Profile, profile_of
from seglog.secret_files import secret_in

if TYPE_CHECKING:
    import ssl

_VARIABLES: Final = {"user": "SEGLOG_USER", "password_file": "SEGLOG_PASSWORD_FILE", "ca": "SEGLOG_CA"}
_EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - to be recognised


def target_given(
    address: str | None,
    *,
    user: str | None,
    password: "str | Callable[[], str] | Secret | None",
    password_file: str | PathLike[str] | None,
    token: "str | Callable[[], str] | Secret | None",
    mechanism: str | None,
    tls: "bool | str | PathLike[str] | Tls | ssl.SSLContext | None",
) -> Target:
    """The target of the arguments of ``connect``; without an address the environment and a profile add to them.

    Raises ValueError for settings that are wrong or contradict each other, OSError for a file that cannot be read.
    """
    password, token = hidden(password), hidden(token)
    if password_file is not None:
        password = secret_in(password_file, instead_of=password)
    given: dict[str, Any] = {
        "user": user, "mechanism": mechanism, "tls": tls, "password": password, "token": token
    }  # fmt: skip
    if address is None:
        address, found = connection_of({"user": user, "mechanism": mechanism})
        if token is not None:  # which says who the client is
            found = {name: value for name, value in found.items() if name == "tls"}
        file = found.pop("password_file", None)
        if file is not None and password is None:
            found["password"] = secret_in(file)
        given = found | {name: value for name, value in given.items() if value is not None}
    return target_of(address, **given)


def connection_of(typed: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> tuple[str, dict[str, Any]]:
    """The broker's address and the keywords for connecting to it.

    ``typed`` are options of the command line by their names: server, profile, user, password_file, mechanism, tls, ca,
    certificate and key, None if absent. The default profile is for its own server: where another is named, it says
    nothing. Raises ValueError, and OSError.
    """
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
    """Raises ValueError: what is given as empty, as by an unset variable of a script, is not left to another place."""
    for name, value in typed.items():
        if value == "":
            raise ValueError(f"--{name.replace('_', '-')} is empty; leave it out, or give it a value")
    for name, variable in _VARIABLES.items():
        if typed.get(name) is None and environ.get(variable) == "":
            raise ValueError(f"{variable} is empty; unset it, or give it a value")


def _tls(server: str, typed: Mapping[str, Any], found: Mapping[str, Any], profile: Profile) -> Any:
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
        return Tls(**files)
    return True if typed.get("tls") else profile.tls


def _is_same(server: str, other: str) -> bool:
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
