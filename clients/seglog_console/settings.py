"""The settings of a topic: each value with its origin, edited and taken back; topics made, truncated and deleted."""

from typing import Any, Final

from seglog_console.changes import Change
from seglog_console.pages import BadInputError, View
from seglog_protocol.quantities import with_reading


async def context(view: View) -> dict[str, Any]:
    """All settings in force, those of the topic itself first; with ``key`` in the address that one to be edited."""
    name, key = view.request.path_params["topic"], view.text("key")
    topic = await view.client.describe_topic(name)
    config = topic.config or {}
    if key and key not in config:
        raise BadInputError(f"{key!r} is no setting of a topic")
    return {
        "topic": topic,
        "address": f"/topics/{name}/settings",
        "settings": sorted(config.items(), key=lambda item: (item[1].origin != "topic", item[0])),
        "reading": with_reading,
        "key": key,
        "chosen": config.get(key),
    }


CHANGES: Final = (
    Change("topic-create", "Create a topic", "topic create {topic} [--partitions={partitions}] [--config={config}...]"),
    Change(
        "topic-alter",
        "Change a topic",
        "topic alter {topic} [--config={key}={value}] [--reset={reset}] [--partitions={partitions}]",
    ),
    Change(
        "topic-truncate",
        "Delete records of a topic",
        "topic truncate {topic} --before={before}... [--local]",
        "Records before that are deleted forever.",
        look="offsets {topic}",
    ),
    Change(
        "topic-delete",
        "Delete a topic",
        "topic delete {topic} --yes",
        "The topic and all its records are deleted forever.",
        look="offsets {topic}",
    ),
)
