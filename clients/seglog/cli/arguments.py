"""The options of a parsed command line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

CONNECT_SECONDS: Final = 5.0

CONNECTION_OPTIONS: Final = (
    "server", "profile", "user", "password_file", "mechanism", "tls", "ca", "certificate", "key"
)  # fmt: skip
"""The options that say which broker, and how to come to it."""

COMPLETE_VARIABLE: Final = "_SEGLOG_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""


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
