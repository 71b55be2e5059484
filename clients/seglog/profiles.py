"""``~/.config/seglog/config.toml``: brokers under names of their own, with account and authority.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from seglog.core.security import Secret

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
        folder = _home(environ) / ".config"
    return folder / "seglog" / "config.toml"


def _home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:  # a uid without an account, as in a container
        return Path("/nonexistent")  # where such users live, by Debian's convention


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
