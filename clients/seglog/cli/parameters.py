"""Arguments and options that several commands take, and the kind of command that connects before it runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, Option, flag
from seglog.cli.common import open_client
from seglog.cli.option_types import PARTITION

if TYPE_CHECKING:
    from seglog.client import Client

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS: Final = ("none", "os", "disk")
ISOLATIONS: Final = ("read_uncommitted", "read_committed")


def client_command(
    name: str, action: "Callable[[Client, Options], int]", help_text: str, *params: click.Parameter, **attributes: Any
) -> Command:
    """A command whose ``action`` is called with a client that is connected, and closed in the end."""

    def run(options: Options) -> int:
        with open_client(options) as client:
            return action(client, options)

    return Command(name, runs=run, help=help_text, params=params, **attributes)


def completed(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The completion of a parameter with what the broker has of a kind, as ``completion`` lists them."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from seglog.cli.completion import names

        return names(kind, ctx, incomplete)

    return complete


def topic(summary: str = "Name of the topic.", **attributes: Any) -> click.Argument:
    """The argument TOPIC, completed with what the broker has."""
    return click.Argument(["topic"], help=summary, shell_complete=completed("topics"), **attributes)


def topic_option(flag: str, summary: str, **attributes: Any) -> Option:
    """An option that names a topic."""
    return Option([flag], metavar="TOPIC", help=summary, shell_complete=completed("topics"), **attributes)


def for_user(summary: str, **attributes: Any) -> Option:
    """``--user`` of a command about accounts, which names another one than the client's own."""
    text = f"{summary} Your own is given in front: seglog --user NAME ..."
    return Option(["--user", "for_user"], metavar="NAME", help=text, shell_complete=completed("users"), **attributes)


def partitions() -> Option:
    """``--partition N``, repeatable; None where it is not given."""
    return Option(
        ["--partition"],
        type=PARTITION,
        multiple=True,
        show_default="all",
        callback=lambda _ctx, _param, value: list(value) or None,
        help="Only this partition; repeatable.",
    )


def local(verb: str = "Read and show") -> Option:
    """``--local``."""
    return flag("--local", f"{verb} times in this machine's zone instead of UTC.")


def yes() -> Option:
    """``--yes``."""
    return flag("--yes", "Do not ask. Without a terminal nothing is asked.")


def compression(summary: str, default: str = "none") -> Option:
    """``--compression``."""
    return Option(["--compression"], type=click.Choice(CODECS), default=default, help=summary)


def ack(summary: str, acks: tuple[str, ...] = ACKS) -> Option:
    """``--ack``."""
    return Option(["--ack"], type=click.Choice(acks), default="disk", help=summary)


def isolation(summary: str) -> Option:
    """``--isolation``."""
    return Option(["--isolation"], type=click.Choice(ISOLATIONS), default="read_uncommitted", help=summary)


def until() -> Option:
    """``--until``."""
    return Option(
        ["--until"], metavar="OFFSET|TIME", help="Each partition stops in front of its first record at or after this."
    )
