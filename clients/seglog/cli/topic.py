"""``seglog topic create | list | describe | alter | truncate | delete``."""

from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import PLACES, Group, Option, flag
from seglog.cli.common import answer, answer_table, is_confirmed, moment_of, print_config, print_json, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import PAIR, PLACE_OF_PARTITION, POSITIVE
from seglog.cli.parameters import client_command, local, topic, yes
from seglog.cli.terminal import print_line
from seglog.core.errors import count_of
from seglog.core.moments import AtOffset, AtTime, Edge
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client


def _create(client: "Client", options: Options) -> int:
    config = dict(options.config)
    made = client.create_topic(options.topic, options.partitions, config, exist_ok=options.if_not_exists)
    for warning in made.warnings:
        warn(f"warning: {warning}")
    shown = {"topic": made.topic, "id": made.topic_id, "partitions": made.partitions, "warnings": made.warnings}
    return answer(options, shown, f"{made.topic}: {count_of(made.partitions, 'partition')}")


def _list(client: "Client", options: Options) -> int:
    topics = client.topics()
    rows = [(t.name, t.partitions, t.segments, t.size) for t in topics]
    return answer_table(options, [t.to_wire() for t in topics], ("TOPIC", "PARTITIONS", "SEGMENTS", "BYTES"), rows)


def _describe(client: "Client", options: Options) -> int:
    described = client.describe_topic(options.topic)
    if options.json:
        print_json(described.to_wire())
        return OK
    size = f"{count_of(described.segments, 'segment')}, {count_of(described.size, 'byte')}"
    print_line(f"{described.name}: {count_of(described.partitions, 'partition')}, {size}, id {described.id}")
    for note in described.notes:
        print_line(f"note: {printable(note)}")
    print_config(described.config or {})
    return OK


def _alter(client: "Client", options: Options) -> int:
    if not (options.config or options.reset or options.partitions):
        raise UsageError("nothing to alter: give --config KEY=VALUE, --reset KEY or --partitions N")
    altered = client.alter_topic(
        options.topic, dict(options.config), reset=options.reset, partitions=options.partitions
    )
    for warning in altered.warnings:
        warn(f"warning: {warning}")
    settings = ", ".join(f"{key}={value}" for key, value in sorted(altered.config.items())) or "no settings of its own"
    partitions = count_of(altered.partitions, "partition")
    return answer(options, altered.to_wire(), f"{altered.topic}: {partitions}, {settings}")


def _truncate(client: "Client", options: Options) -> int:
    earliest = client.truncate_topic(options.topic, _first_to_keep(client, options))
    rows = [(options.topic, partition, offset) for partition, offset in earliest.items()]
    shown = [dict(zip(("topic", "partition", "earliest"), row, strict=True)) for row in rows]
    return answer_table(options, shown, ("TOPIC", "PARTITION", "EARLIEST"), rows)


def _first_to_keep(client: "Client", options: Options) -> dict[int, int | None]:
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


def _delete(client: "Client", options: Options) -> int:
    if not is_confirmed(options, lambda: _question(client, options.topic)):
        warn(f"{options.topic} is not deleted")
        return FAILED
    client.delete_topic(options.topic)
    return answer(options, {"topic": options.topic}, f"{options.topic}: deleted")


def _question(client: "Client", name: str) -> str:
    described = client.describe_topic(name)
    what = f"{count_of(described.partitions, 'partition')}, {count_of(described.size, 'byte')}"
    return f"Delete topic {name} ({what}) forever?"


COMMAND: Final = Group(
    "topic",
    [
        client_command(
            "create",
            _create,
            "Create a topic.",
            topic("Name of the new topic."),
            Option(
                ["--partitions"],
                type=POSITIVE,
                show_default="num.partitions of the broker",
                help="Number of partitions.",
            ),
            Option(
                ["--config"],
                type=PAIR,
                multiple=True,
                help="A setting of the topic, under Kafka's name; repeatable. Durations and sizes may have a unit: "
                "retention.ms=7d, segment.bytes=64MiB.",
            ),
            flag("--if-not-exists", "Succeed if the topic already exists."),
            example="seglog topic create clicks --partitions 3 --config retention.ms=7d",
        ),
        client_command("list", _list, "List all topics, with their partitions, segments and bytes."),
        client_command("describe", _describe, "Show a topic, its settings and where each value comes from.", topic()),
        client_command(
            "alter",
            _alter,
            "Change the settings of a topic, or add partitions.",
            topic(),
            Option(["--config"], type=PAIR, multiple=True, help="Set a value; repeatable."),
            Option(["--reset"], multiple=True, metavar="KEY", help="Go back to the broker's default; repeatable."),
            Option(["--partitions"], type=POSITIVE, help="The new number of partitions, above the old one."),
            example="seglog topic alter clicks --config retention.ms=30d --reset segment.bytes",
        ),
        client_command(
            "truncate",
            _truncate,
            "Delete the records of a topic that lie before an offset or a time.",
            topic(),
            Option(
                ["--before"],
                type=PLACE_OF_PARTITION,
                multiple=True,
                required=True,
                help="The first record to keep: a time for all partitions (-7d), a time or an offset for one (0:-7d, "
                "0:5000), or `end` to keep none; repeatable.",
            ),
            local("Read"),
            times=PLACES,
            example="seglog topic truncate clicks --before -7d",
        ),
        client_command("delete", _delete, "Delete a topic and its data.", topic(), yes()),
    ],
)
