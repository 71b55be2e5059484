"""``seglog explain seek | segments | config``."""

from typing import Any, Final

import click

from seglog.cli.commands import TIMES, Choice, Command, Group, Option
from seglog.cli.grammar.common import local, topic
from seglog.cli.option_types import COUNT


def _command(action: str, help_text: str, *params: click.Parameter, **attributes: Any) -> Command:
    return Command(action, runs="explain", sets={"action": action}, help=help_text, params=params, **attributes)


COMMAND: Final = Group(
    "explain",
    [
        _command(
            "seek",
            "Show how a fetch finds an offset or a time: the trace of a real seek.",
            topic(),
            click.Argument(["partition"], type=COUNT, help="Number of the partition, from 0."),
            Option(["--offset"], type=COUNT, metavar="N", help="The record with this offset."),
            Option(["--timestamp"], metavar="TIME", help="The first record at or after this time."),
            local(),
            choices=[Choice(("offset", "timestamp"), required=True)],
            times=TIMES,
            example="seglog explain seek clicks 0 --timestamp -1h",
        ),
        _command(
            "segments",
            "Show why each segment is kept, and from when to when it can go.",
            topic(),
            click.Argument(["partition"], type=COUNT, required=False, help="Number of the partition; all if left out."),
            Option(
                ["--drops"],
                is_flag=True,
                help="Show what compaction would drop, however much must be read to know it.",
            ),
            local("Show"),
        ),
        _command("config", "Show every setting of a topic, and where its value comes from.", topic()),
    ],
    help="Explain a seek, why a segment is kept, where a setting is from.",
)
