"""Arguments and options that several commands take."""

from typing import Any, Final

import click

from seglog.cli.commands import Option
from seglog.cli.option_types import PARTITION

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS: Final = ("none", "os", "disk")
ISOLATIONS: Final = ("read_uncommitted", "read_committed")


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of topics, for completion."""
    from seglog.cli.completing import topic_names  # noqa: PLC0415 - only completion needs a client

    return topic_names(ctx, incomplete)


def topic(summary: str = "Name of the topic.", **attributes: Any) -> click.Argument:
    """The argument TOPIC, completed with what the broker has."""
    return click.Argument(["topic"], help=summary, shell_complete=complete_topics, **attributes)


def topic_option(flag: str, summary: str, **attributes: Any) -> Option:
    """An option that names a topic."""
    return Option([flag], metavar="TOPIC", help=summary, shell_complete=complete_topics, **attributes)


def partitions() -> Option:
    """``--partition N``, repeatable; None where it is not given."""
    return Option(
        ["--partition"],
        type=PARTITION,
        multiple=True,
        metavar="N",
        show_default="all",
        callback=lambda _ctx, _param, value: list(value) or None,
        help="Only this partition; repeatable.",
    )


def local(verb: str = "Read and show") -> Option:
    """``--local``."""
    return Option(["--local"], is_flag=True, help=f"{verb} times in this machine's zone instead of UTC.")


def yes() -> Option:
    """``--yes``."""
    return Option(["--yes"], is_flag=True, help="Do not ask. Without a terminal nothing is asked.")


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
        ["--until"],
        metavar="OFFSET|TIME",
        help="Each partition stops in front of its first record at or after this.",
    )
