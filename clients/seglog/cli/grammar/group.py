"""``seglog group list | describe | reset | delete``."""

from typing import Any, Final

import click

from seglog.cli.commands import PLACES, Choice, Command, Group, Option
from seglog.cli.grammar.common import complete_topics, local, yes
from seglog.cli.option_types import GROUP_NAME, TOPIC_PARTITIONS

_NAMES: Final = "Tables show of long names both ends, and escape what would not print; --json has them as they are."


def _command(action: str, help_text: str, *params: click.Parameter, **attributes: Any) -> Command:
    return Command(action, runs="groups", sets={"action": action}, help=help_text, params=params, **attributes)


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    from seglog.cli.completing import group_names  # noqa: PLC0415 - only completion needs a client

    return group_names(ctx, incomplete)


def _group(**attributes: Any) -> click.Argument:
    return click.Argument(["group"], type=GROUP_NAME, help="Name of the group.", shell_complete=_complete, **attributes)


def _topics(summary: str) -> Option:
    return Option(
        ["--topic", "topics"],
        type=TOPIC_PARTITIONS,
        multiple=True,
        metavar="TOPIC[:0,2]",
        help=f"{summary}, or only these of its partitions; repeatable.",
        shell_complete=complete_topics,
    )


COMMAND: Final = Group(
    "group",
    [
        _command(
            "list",
            "List all groups, with their state and when what they committed expires.\n\n" + _NAMES,
            Option(["--lag"], is_flag=True, help="Also show how many records each group has left to read."),
        ),
        _command(
            "describe",
            "Show how far a group is behind, when retention reaches it, and its members.\n\n"
            "It exits with 1 where records before a committed offset are lost, or the offset is beyond the log end. "
            + _NAMES,
            _group(),
            Option(["--offsets"], is_flag=True, help="Show only what the group committed."),
            Option(["--members"], is_flag=True, help="Show only the members."),
            local("Show"),
            choices=[Choice(("offsets", "members"))],
        ),
        _command(
            "reset",
            "Commit other offsets for a group without members; without --execute only show them.",
            _group(),
            Option(
                ["--to"],
                required=True,
                metavar="OFFSET|TIME|+N|-N",
                help="The next record to read: earliest, latest, an offset, the first one at or after a time, or so "
                "many records after or before the committed offset. An offset outside the log becomes its nearest end.",
            ),
            _topics("All partitions of a topic, also one that the group never read"),
            Option(["--all-topics"], is_flag=True, help="All partitions for which the group committed an offset."),
            Option(["--execute"], is_flag=True, help="Do it."),
            local("Read"),
            choices=[Choice(("topics", "all_topics"), required=True)],
            times=PLACES,
            example="seglog group reset app --to -1h --topic clicks\n"
            "seglog group reset app --to earliest --all-topics --execute",
        ),
        _command(
            "delete",
            "Delete groups without members, or what they committed for some topics.",
            click.Argument(
                ["groups"],
                type=GROUP_NAME,
                nargs=-1,
                required=True,
                metavar="GROUP...",
                help="Names.",
                shell_complete=_complete,
            ),
            _topics("Delete only what was committed for a topic that no member reads"),
            yes(),
            example="seglog group delete app app-2\nseglog group delete app --topic clicks",
        ),
    ],
    help="List, describe, reset and delete consumer groups.",
)
