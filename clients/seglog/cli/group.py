"""``seglog group list | describe | reset | delete``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import PLACES, Choice, Group, Option, flag
from seglog.cli.common import answer_table, is_confirmed, moment_of, print_json, warn, zone_of
from seglog.cli.exits import FAILED, OK, InputError, UsageError, exit_code_of
from seglog.cli.option_types import GROUP_NAME, TOPIC_PARTITIONS
from seglog.cli.parameters import client_command, completed, local, yes
from seglog.cli.tables import named, print_table
from seglog.cli.terminal import columns_of_terminal, print_line
from seglog.core.errors import count_of
from seglog.core.moments import Moment
from seglog_protocol.internal_topics import INTERNAL_TOPICS
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.groups import Shift


def _list(client: "Client", options: Options) -> int:
    from seglog.cli.group_tables import total_lag, until_of
    from seglog.groups import list_groups

    groups, now_ms = client.converse(list_groups())
    lags = [total_lag(client.group_offsets(group.group)) if options.lag else None for group in groups]
    shown, rows = [], []
    for group, lag in zip(groups, lags, strict=True):
        shown.append(group.to_wire() | ({"lag": lag} if options.lag else {}))
        counts = (group.members, group.partitions, *(("-" if lag is None else lag,) if options.lag else ()))
        rows.append((named(group.group), group.kind, group.state, *counts, until_of(group.expires_ms, now_ms)))
    titles = ["GROUP", "KIND", "STATE", ">MEMBERS", ">PARTITIONS", *([">LAG"] if options.lag else []), "EXPIRES"]
    return answer_table(options, shown, titles, rows)


def _describe(client: "Client", options: Options) -> int:
    """Show a group; 1 where records before a committed offset are lost, or it is of another log."""
    from seglog.cli.group_tables import description_lines, group_as_json, offset_notes

    described = client.describe_group(options.group)
    if options.json:
        print_json(group_as_json(described))
    else:
        lines = description_lines(
            described,
            zone_of(options),
            offsets=not options.members,
            members=not options.offsets,
            width=columns_of_terminal(),
        )
        for line in lines:
            print_line(line)
    notes = [] if options.members else offset_notes(described.offsets)
    for note in notes:
        warn(note)
    return FAILED if notes else OK


def _reset(client: "Client", options: Options) -> int:
    from seglog.cli.group_tables import reset_row

    topics = None if options.all_topics else _by_topic(options.topics)
    to = _target(options)
    try:
        resets = client.reset_group(options.group, to, topics, dry_run=not options.execute)
    except ValueError as error:
        raise InputError(str(error)) from error
    if INTERNAL_TOPICS & {each.topic for each in resets}:
        warn("note: this is a topic of the broker's own; an offset there is of use only to a group that reads it")
    if options.json:
        partitions = [each._asdict() | {"note": each.note} for each in resets]
        print_json({"group": options.group, "executed": options.execute, "partitions": partitions})
        return OK
    print_table(("TOPIC", ">PARTITION", ">OLD", ">NEW", ">CHANGE", "NOTE"), map(reset_row, resets))
    if options.execute:
        print_line(f"{printable(options.group)}: {count_of(len(resets), 'offset')} committed")
    else:
        warn("nothing is changed: add --execute to commit the new offsets")
    return OK


def _target(options: Options) -> "Moment | Shift":
    from seglog.groups import TARGETS, parse_shift

    try:
        shift = parse_shift(options.to)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return moment_of(options.to, options, TARGETS) if shift is None else shift


def _by_topic(topics: Sequence[tuple[str, list[int] | None]]) -> dict[str, list[int] | None]:
    """The partitions of each topic as typed, None for all."""
    wanted: dict[str, list[int] | None] = {}
    for topic, partitions in topics:
        known = wanted.get(topic, [])
        wanted[topic] = None if known is None or partitions is None else [*known, *partitions]
    return wanted


def _delete(client: "Client", options: Options) -> int:
    names = list(dict.fromkeys(options.groups))
    topics = _by_topic(options.topics)
    what = f"group{'' if len(names) == 1 else 's'} {', '.join(names)}"
    about = f"what {what} committed for {', '.join(topics)}" if topics else f"{what} with all committed offsets"
    if not is_confirmed(options, lambda: f"Delete {about} forever?"):
        warn(f"{what} {'is' if len(names) == 1 else 'are'} not deleted")
        return FAILED
    return _delete_offsets(client, options, names, topics) if topics else _delete_groups(client, options, names)


def _delete_groups(client: "Client", options: Options, names: Sequence[str]) -> int:
    code = OK
    deleted = client.delete_groups(names)
    for group in deleted:
        if group.error is not None:
            warn(group.error.message)
            code = exit_code_of(group.error)
        elif not options.json:
            print_line(f"{printable(group.group)}: deleted")
    if options.json:
        print_json([group.to_wire() for group in deleted])
    return code


def _delete_offsets(
    client: "Client", options: Options, names: Sequence[str], topics: dict[str, list[int] | None]
) -> int:
    deleted = {name: client.delete_group_offsets(name, topics) for name in names}
    if options.json:
        print_json(
            [
                {"group": name, "topic": topic, "partition": partition}
                for name, places in deleted.items()
                for topic, partition in places
            ]
        )
    code = OK
    for name, places in deleted.items():
        for topic in topics:
            partitions = [partition for of, partition in places if of == topic]
            if not partitions:
                warn(f"group {name} has committed nothing for {topic}")
                code = FAILED
            elif not options.json:
                print_line(f"{printable(name)}: {count_of(len(partitions), 'offset')} of {topic} deleted")
    return code


_NAMES: Final = "Tables show of long names both ends, and escape what would not print; --json has them as they are."


def _group() -> click.Argument:
    return click.Argument(["group"], type=GROUP_NAME, help="Name of the group.", shell_complete=completed("groups"))


def _topics(summary: str) -> Option:
    return Option(
        ["--topic", "topics"],
        type=TOPIC_PARTITIONS,
        multiple=True,
        help=f"{summary}, or only these of its partitions; repeatable.",
        shell_complete=completed("topics"),
    )


COMMAND: Final = Group(
    "group",
    [
        client_command(
            "list",
            _list,
            "List all groups, with their state and when what they committed expires.\n\n" + _NAMES,
            flag("--lag", "Also show how many records each group has left to read."),
        ),
        client_command(
            "describe",
            _describe,
            "Show how far a group is behind, when retention reaches it, and its members.\n\n"
            "It exits with 1 where records before a committed offset are lost, or the offset is beyond the log end. "
            + _NAMES,
            _group(),
            flag("--offsets", "Show only what the group committed."),
            flag("--members", "Show only the members."),
            local("Show"),
            choices=[Choice(("offsets", "members"))],
        ),
        client_command(
            "reset",
            _reset,
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
            flag("--all-topics", "All partitions for which the group committed an offset."),
            flag("--execute", "Do it."),
            local("Read"),
            choices=[Choice(("topics", "all_topics"), required=True)],
            times=PLACES,
            example="seglog group reset app --to -1h --topic clicks\n"
            "seglog group reset app --to earliest --all-topics --execute",
        ),
        client_command(
            "delete",
            _delete,
            "Delete groups without members, or what they committed for some topics.",
            click.Argument(
                ["groups"],
                type=GROUP_NAME,
                nargs=-1,
                required=True,
                metavar="GROUP...",
                help="Names.",
                shell_complete=completed("groups"),
            ),
            _topics("Delete only what was committed for a topic that no member reads"),
            yes(),
            example="seglog group delete app app-2\nseglog group delete app --topic clicks",
        ),
    ],
)
