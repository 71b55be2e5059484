"""The options of a parsed command line, and the address of the broker."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_SERVER: Final = "localhost:9192"
CONNECT_SECONDS: Final = 5.0

COMPLETE_VARIABLE: Final = "_SEGLOG_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""

_EVERY_INTERFACE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - to be recognised


@dataclass(slots=True)
class Options:
    """The parsed command line; which fields are there depends on the command.

    ``run`` is the function of the command, which takes these and returns the exit code.
    """

    run: "Callable[[Options], int]"
    server: str
    json: bool
    connect_timeout: float
    values: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def server_of(typed: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The broker's address: as typed, else SEGLOG_SERVER, else that of the broker configured beside us."""
    return typed or environ.get("SEGLOG_SERVER") or _server_beside(environ)


def _server_beside(environ: Mapping[str, str]) -> str:
    """The address in SEGLOG_LISTEN, as in a container that runs a broker; else localhost:9192."""
    host, _, port = environ.get("SEGLOG_LISTEN", "").rpartition(":")
    if not host or not port.isdecimal() or int(port) == 0:
        return DEFAULT_SERVER
    return f"{'localhost' if host in _EVERY_INTERFACE else host}:{port}"
