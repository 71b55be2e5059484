"""``seglog`` itself: its commands, each a module of its name, and the options in front of them."""

from typing import Any, Final

import click

from seglog import __version__
from seglog.cli.commands import LazyCommand, LazyGroup, Option, common_options

_COMMANDS: Final = {
    "topic": "Create, list, describe, alter, truncate and delete topics.",
    "produce": "Send the lines of a file or of standard input as records.",
    "consume": "Print records, from an offset or a time to the end of the log.",
    "offsets": "Show the offsets of partitions, and how far a reader is behind.",
    "group": "List, describe, reset and delete consumer groups.",
    "explain": "Explain a seek, why a segment is kept, where a setting is from.",
    "load": "Put load on a broker, and measure throughput and latency.",
    "spark": "Archive, replay, compact and report on topics, with Spark.",
    "ping": "Show which broker answers, and what problems it has.",
    "completion": "Print a script that completes commands in a shell.",
}


class _Root(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """What the exit codes mean."""
        with formatter.section("Exit codes"):
            formatter.write_text(
                "0 ok, 1 failed, 2 usage, 3 broker not reachable, 4 refused by the broker, 130 interrupted"
            )


def _show_version(ctx: click.Context, _: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        print(f"seglog {__version__}")
        ctx.exit(0)


ROOT: Final = _Root(
    "seglog",
    [LazyCommand(name, f"seglog.cli.{name}", summary) for name, summary in _COMMANDS.items()],
    params=[
        *common_options(),
        Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        ),
    ],
    help="Talk to a seglog broker.",
)
