"""``seglog topic create | list | describe | delete``."""

from typing import Any

from seglog.cli.arguments import Options
from seglog.cli.common import open_client, print_json, print_table, warn
from seglog.cli.exits import OK
from seglog.client import Client
from seglog.words import count_of
from seglog_protocol.messages import TopicDescription


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
        print(f"note: {note}")
    config = topic.config or {}
    print_table(
        ("KEY", "VALUE", "FROM"),
        [(key, entry.value, f"{entry.origin} {entry.where}".strip()) for key, entry in sorted(config.items())],
    )
    return OK


def _delete(client: Client, options: Options) -> int:
    client.delete_topic(options.topic)
    if options.json:
        print_json({"topic": options.topic})
    else:
        print(f"{options.topic}: deleted")
    return OK


_ACTIONS = {"create": _create, "list": _list, "describe": _describe, "delete": _delete}


def _as_json(topic: TopicDescription) -> dict[str, Any]:
    return topic.to_wire()
