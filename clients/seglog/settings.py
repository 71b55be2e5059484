"""A broker and how to come to it, for programs and commands: as given, by the environment, by a profile.

Profiles are in ``~/.config/seglog/config.toml``, by names of their own::

    default = "prod"

    [profiles.prod]
    server = "seglogs://logs.example:9192"
    user = "alice"
    password_file = "prod.password"
    ca = "prod-ca.pem"

Paths are relative to the folder of the file.
"""

import os
import stat
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.dialing import DEFAULT_SERVER
from seglog.core.security import Secret, Target, Tls, hidden, parse_server, target_of
from seglog.secret_files import secret_in

if TYPE_CHECKING:
    import ssl


_PATHS: Final = ("password_file", "ca", "certificate", "key")
_TEXTS: Final = ("server", "user", "password", "mechanism", *_PATHS)
_KEYS: Final = (*_TEXTS, "tls")


class Profile(NamedTuple):
    """What a profile says; None where it says nothing. ``is_named``: it was asked for by its name."""

    is_named: bool = False
    server: str | None = None
    user: str | None = None
    password: Secret | None = None
    mechanism: str | None = None
    password_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    tls: bool | None = None


def profile_of(name: str | None, environ: Mapping[str, str]) -> Profile:
    """The profile called ``name``; without a name the default one, or none. Raises ValueError, and OSError."""
    path = _file(environ)
    if not _is_there(path):
        if name is not None:
            raise ValueError(f"there is no profile {name}: {path} does not exist")
        return Profile()
    found = _parsed(path)
    unknown = sorted(found.keys() - {"default", "profiles"})
    if unknown:
        raise ValueError(f"{path}: {unknown[0]} is not known; a file has default and tables [profiles.NAME]")
    profiles = found.get("profiles", {})
    chosen = name if name is not None else found.get("default")
    if chosen is None:
        return Profile()
    if not isinstance(profiles, dict) or not isinstance(chosen, str) or not isinstance(profiles.get(chosen), dict):
        there = ", ".join(sorted(profiles)) if isinstance(profiles, dict) and profiles else "none"
        raise ValueError(f"{path}: there is no profile {chosen}; there is {there}")  # noqa: TRY004 - a file is wrong
    return _checked(path, chosen, profiles[chosen])._replace(is_named=name is not None)


def names_of_profiles(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The names in the file. Raises ValueError, and OSError where there is none."""
    return sorted(_parsed(_file(environ)).get("profiles", {}))


def _file(environ: Mapping[str, str]) -> Path:
    folder = Path(environ.get("XDG_CONFIG_HOME") or "")
    if not folder.is_absolute():  # which its standard has one ignore
        try:
            folder = Path(environ.get("HOME") or Path.home()) / ".config"
        except RuntimeError:  # a uid without an account, as in a container
            folder = Path("/nonexistent/.config")  # where such users live, by Debian's convention
    return folder / "seglog" / "config.toml"


def _is_there(path: Path) -> bool:
    """Whether the file exists; in a home that this user may not enter there is none for it."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _parsed(path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only where there is such a file

    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        try:
            found = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            found = {}
            wrong = _line_of_error(path)
        else:
            wrong = ""
    if wrong:
        raise ValueError(wrong)
    profiles = found.get("profiles")
    holders = [p for p in profiles.values() if isinstance(p, dict)] if isinstance(profiles, dict) else []
    if any("password" in holder for holder in holders) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        for holder in holders:
            holder.clear()  # which a traceback would show with its variables
        raise ValueError(f"{path} holds a password and others can read it: chmod 600 {path}, or use password_file")
    return found


def _line_of_error(path: Path) -> str:
    """Where the file is no TOML, without what stands there."""
    import re  # noqa: PLC0415 - only for a mistake
    import tomllib  # noqa: PLC0415

    try:
        tomllib.loads(path.read_text(encoding="utf-8", errors="replace"))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at .*\)$", str(error))
        return f"{path} is no TOML {'' if place is None else place[0]}".rstrip()
    return f"{path} is not text in UTF-8"


def _checked(path: Path, name: str, given: Mapping[str, Any]) -> Profile:
    for key, value in given.items():
        if key not in _KEYS:
            import difflib  # noqa: PLC0415 - only for a mistake

            near = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_KEYS)}"
            raise ValueError(f"{path}: profile {name} has {key}, which is not known; {hint}")
        if not isinstance(value, bool if key == "tls" else str):
            kind = "true or false" if key == "tls" else "text"
            raise ValueError(f"{path}: {key} of profile {name} must be {kind}")  # noqa: TRY004 - a file is wrong
    if "password" in given and "password_file" in given:
        raise ValueError(f"{path}: profile {name} has password and password_file, which exclude each other")
    values = dict(given)
    for key in _PATHS:
        if key in values:
            values[key] = str(path.parent / Path(values[key]).expanduser())
    if "password" in values:
        values["password"] = Secret(values["password"])
    return Profile(**values)


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
    # What is given as empty, as by an unset variable of a script, is not left to another place.
    for name, value in typed.items():
        if value == "":
            raise ValueError(f"--{name.replace('_', '-')} is empty; leave it out, or give it a value")
    for name, variable in _VARIABLES.items():
        if typed.get(name) is None and environ.get(variable) == "":
            raise ValueError(f"{variable} is empty; unset it, or give it a value")
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
