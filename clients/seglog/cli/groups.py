"""``seglog group list | describe | reset | delete``."""

from collections.abc import Sequence
from typing import Any, Final

from seglog.cli.arguments import Options
from seglog.cli.common import is_confirmed, moment_of, open_client, print_json, warn, zone_of
from seglog.cli.exits import FAILED, OK, InputError, UsageError, exit_code_of
from seglog.cli.group_tables import description_lines, group_as_json, offset_notes, reset_row, total_lag, until_of
from seglog.cli.tables import named, print_table
from seglog.client import Client
from seglog.formatting import count_of
from seglog.groups import TARGETS, Shift, list_groups, parse_shift
from seglog.moments import Moment
from seglog_protocol.internal_topics import INTERNAL_TOPICS
from seglog_protocol.messages import ListedGroup
from seglog_protocol.texts import printable


def run(options: Options) -> int:
    """Do what ``options.action`` says."""
    with open_client(options) as client:
        return _ACTIONS[options.action](client, options)


# --- Looking ----------------------------------------------------------------------------------------------------------


def _list(client: Client, options: Options) -> int:
    groups, now_ms = client.converse(list_groups())
    lags = [total_lag(client.group_offsets(group.group)) if options.lag else None for group in groups]
    if options.json:
        print_json([_listed(group, lag, options) for group, lag in zip(groups, lags, strict=True)])
    elif groups:
        titles = ["GROUP", "KIND", "STATE", ">MEMBERS", ">PARTITIONS", *([">LAG"] if options.lag else []), "EXPIRES"]
        rows = []
        for group, lag in zip(groups, lags, strict=True):
            row: list[Any] = [named(group.group), group.kind, group.state, group.members, group.partitions]
            if options.lag:
                row.append("-" if lag is None else lag)
            rows.append([*row, until_of(group.expires_ms, now_ms)])
        print_table(titles, rows)
    return OK


def _listed(group: ListedGroup, lag: int | None, options: Options) -> dict[str, Any]:
    return group.to_wire() | ({"lag": lag} if options.lag else {})


def _describe(client: Client, options: Options) -> int:
    """Show a group; 1 where records before a committed offset are lost, or it is of another log."""
    described = client.describe_group(options.group)
    if options.json:
        print_json(group_as_json(described))
    else:
        lines = description_lines(described, zone_of(options), offsets=not options.members, members=not options.offsets)
        print("\n".join(lines))
    notes = [] if options.members else offset_notes(described.offsets)
    for note in notes:
        warn(note)
    return FAILED if notes else OK


# --- Resetting --------------------------------------------------------------------------------------------------------


def _reset(client: Client, options: Options) -> int:
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
        print(f"{printable(options.group)}: {count_of(len(resets), 'offset')} committed")
    else:
        warn("nothing is changed: add --execute to commit the new offsets")
    return OK


def _target(options: Options) -> Moment | Shift:
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


# --- Deleting ---------------------------------------------------------------------------------------------------------


def _delete(client: Client, options: Options) -> int:
    names = list(dict.fromkeys(options.groups))
    topics = _by_topic(options.topics)
    what = f"group{'' if len(names) == 1 else 's'} {', '.join(names)}"
    about = f"what {what} committed for {', '.join(topics)}" if topics else f"{what} with all committed offsets"
    if not is_confirmed(options, lambda: f"Delete {about} forever?"):
        warn(f"{what} {'is' if len(names) == 1 else 'are'} not deleted")
        return FAILED
    return _delete_offsets(client, options, names, topics) if topics else _delete_groups(client, options, names)


def _delete_groups(client: Client, options: Options, names: Sequence[str]) -> int:
    code = OK
    deleted = client.delete_groups(names)
    for group in deleted:
        if group.error is not None:
            warn(group.error.message)
            code = exit_code_of(group.error)
        elif not options.json:
            print(f"{printable(group.group)}: deleted")
    if options.json:
        print_json([group.to_wire() for group in deleted])
    return code


def _delete_offsets(client: Client, options: Options, names: Sequence[str], topics: dict[str, list[int] | None]) -> int:
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
                print(f"{printable(name)}: {count_of(len(partitions), 'offset')} of {topic} deleted")
    return code


_ACTIONS: Final = {"list": _list, "describe": _describe, "reset": _reset, "delete": _delete}
