"""``seglog completion``: the script for a shell, and the names from the broker that it offers."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import COMPLETE_VARIABLE, CONNECTION_OPTIONS, Options
from seglog.cli.commands import Command
from seglog.cli.exits import OK
from seglog.cli.terminal import print_line

if TYPE_CHECKING:
    from seglog.client import Client

SHELLS: Final = ("bash", "zsh", "fish")

_SECONDS: Final = 0.25
"""Patience for a connection, and for an answer: together half a second, which a key press may take."""
PATIENCE_VARIABLE: Final = "_SEGLOG_COMPLETE_SECONDS"
"""The environment variable with another number, for brokers far away and machines that are busy."""


_NAMES: "Final[Mapping[str, Callable[[Client], Iterable[str]]]]" = {
    "topics": lambda client: (topic.name for topic in client.topics()),
    "groups": lambda client: (group.group for group in client.groups()),
    "transactions": lambda client: (each.transactional_id for each in client.transactions()),
    "users": lambda client: (user.name for user in client.users()),
    "metrics": lambda client: (family.name for family in client.samples()),
}


def names(kind: str, context: click.Context, incomplete: str) -> list[str]:
    """Names of a kind that begin with ``incomplete``; none if the broker does not answer in time.

    Those with unprintable characters are left out: shells would split them.
    """
    import logging

    from seglog.client import connect
    from seglog.settings import connection_of

    logging.getLogger("seglog").addHandler(logging.NullHandler())
    behind, before = context.params, context.find_root().params
    try:
        typed = {n: before.get(n) if behind.get(n) is None else behind[n] for n in CONNECTION_OPTIONS}
        server, security = connection_of(typed)
        seconds = float(os.environ.get(PATIENCE_VARIABLE, _SECONDS))
        with connect(
            server, connect_timeout=seconds, request_timeout=seconds, client_id="seglog-completion", **security
        ) as client:
            return [name for name in _NAMES[kind](client) if name.startswith(incomplete) and name.isprintable()]
    except Exception:  # noqa: BLE001 - whatever it is, it must not be written into somebody's prompt
        return []


def run(options: Options) -> int:
    """Print the script."""
    from click.shell_completion import get_completion_class

    from seglog.cli.dispatch import ROOT

    kind = get_completion_class(options.shell)
    assert kind is not None
    for line in kind(ROOT, {}, "seglog", COMPLETE_VARIABLE).source().splitlines():
        print_line(line)
    return OK


COMMAND: Final = Command(
    "completion",
    runs=run,
    talks=False,
    help="It completes options and names of topics, too. These come from the broker; where it does not answer within "
    "half a second, there are none.",
    params=[click.Argument(["shell"], type=click.Choice(SHELLS), metavar="SHELL", help="bash, zsh or fish.")],
    example='bash, in ~/.bashrc:  eval "$(seglog completion bash)"\n'
    'zsh, in ~/.zshrc:    eval "$(seglog completion zsh)"\n'
    "fish: seglog completion fish > ~/.config/fish/completions/seglog.fish",
)
