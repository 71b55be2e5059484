"""``seglog topic create | list | describe | alter | truncate | delete``."""

from typing import Any

from seglog.cli.arguments import Options
from seglog.cli.common import is_confirmed, moment_of, open_client, print_config, print_json, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.tables import print_table
from seglog.client import Client
from seglog.formatting import count_of
from seglog.moments import AtOffset, AtTime, Edge
from seglog_protocol.messages import TopicDescription
from seglog_protocol.texts import printable


def run(options: Options) -> int:
    """Do what ``options.action`` says."""
    with open_client(options) as client:
        return _ACTIONS[options.action](client, options)


def _create(client: Client, options: Options) -> int:
    config = dict(options.config)
    made = client.create_topic(options.topic, options.partitions, config, exist_ok=options.if_not_exists)
    for warning in made.warnings:
        warn(f"warning: {warning}")
    if options.json:
        print_json({"topic": made.topic, "id": made.topic_id, "partitions": made.partitions, "warnings": made.warnings})
    else:
        print(f"{made.topic}: {count_of(made.partitions, 'partition')}")
    return OK


def _list(client: Client, options: Options) -> int:
    topics = client.topics()
    if options.json:
        print_json([_as_json(topic) for topic in topics])
    elif topics:
        print_table(
            ("TOPIC", "PARTITIONS", "SEGMENTS", "BYTES"), [(t.name, t.partitions, t.segments, t.size) for t in topics]
        )
    return OK


def _describe(client: Client, options: Options) -> int:
    topic = client.describe_topic(options.topic)
    if options.json:
        print_json(_as_json(topic))
        return OK
    size = f"{count_of(topic.segments, 'segment')}, {count_of(topic.size, 'byte')}"
    print(f"{topic.name}: {count_of(topic.partitions, 'partition')}, {size}, id {topic.id}")
    for note in topic.notes:
        print(f"note: {printable(note)}")
    print_config(topic.config or {})
    return OK


def _alter(client: Client, options: Options) -> int:
    if not (options.config or options.reset or options.partitions):
        raise UsageError("nothing to alter: give --config KEY=VALUE, --reset KEY or --partitions N")
    altered = client.alter_topic(
        options.topic, dict(options.config), reset=options.reset, partitions=options.partitions
    )
    for warning in altered.warnings:
        warn(f"warning: {warning}")
    if options.json:
        print_json(altered.to_wire())
        return OK
    settings = ", ".join(f"{key}={value}" for key, value in sorted(altered.config.items())) or "no settings of its own"
    print(f"{altered.topic}: {count_of(altered.partitions, 'partition')}, {settings}")
    return OK


def _truncate(client: Client, options: Options) -> int:
    earliest = client.truncate_topic(options.topic, _first_to_keep(client, options))
    if options.json:
        print_json([{"topic": options.topic, "partition": p, "earliest": offset} for p, offset in earliest.items()])
    else:
        print_table(("TOPIC", "PARTITION", "EARLIEST"), [(options.topic, p, offset) for p, offset in earliest.items()])
    return OK


def _first_to_keep(client: Client, options: Options) -> dict[int, int | None]:
    """The first offset to keep of each partition, None for none; what is said of one partition is stronger."""
    chosen: dict[int, int | None] = {}
    for partition, place in sorted(options.before, key=lambda before: before[0] is not None):
        if place == "end" and partition is not None:
            chosen[partition] = None
            continue
        moment = Edge.LATEST if place == "end" else moment_of(place, options)
        if isinstance(moment, AtOffset):
            if partition is None:
                raise UsageError(f"--before {place} is an offset and needs its partition, for example 0:{place}")
            chosen[partition] = moment.offset
            continue
        at = moment if isinstance(moment, AtTime) else None
        for found in client.offsets(options.topic, at, partitions=None if partition is None else [partition]):
            # Where no record is that new, all there are now go; what arrives meanwhile stays.
            end = found.latest if found.offset is None else found.offset
            chosen[found.partition] = found.earliest if moment is Edge.EARLIEST else end
    return chosen


def _delete(client: Client, options: Options) -> int:
    if not is_confirmed(options, lambda: _question(client, options.topic)):
        warn(f"{options.topic} is not deleted")
        return FAILED
    client.delete_topic(options.topic)
    if options.json:
        print_json({"topic": options.topic})
    else:
        print(f"{options.topic}: deleted")
    return OK


def _question(client: Client, name: str) -> str:
    topic = client.describe_topic(name)
    what = f"{count_of(topic.partitions, 'partition')}, {count_of(topic.size, 'byte')}"
    return f"Delete topic {name} ({what}) forever?"


_ACTIONS = {
    "create": _create,
    "list": _list,
    "describe": _describe,
    "alter": _alter,
    "truncate": _truncate,
    "delete": _delete,
}


def _as_json(topic: TopicDescription) -> dict[str, Any]:
    return topic.to_wire()
