"""The settings of a topic: each value with its origin, edited and taken back; topics made, truncated and deleted."""

from typing import Any, Final

from seglog_console.changes import Change, Fields, Words, each
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


def _create(fields: Fields) -> Words:
    options = fields.options(partitions="--partitions")
    return Words("topic create", [fields["topic"]], [*options, *each("--config", fields.lines("config"))])


def _alter(fields: Fields) -> Words:
    config = [f"{fields['key']}={fields.get('value')}"] if fields.get("key") else []
    options = [*each("--config", config), *fields.options(reset="--reset", partitions="--partitions")]
    return Words("topic alter", [fields["topic"]], options)


def _truncate(fields: Fields) -> Words:
    places = fields.words("before") or [fields["before"]]
    return Words("topic truncate", [fields["topic"]], [*each("--before", places), *fields.zone])


def _ends(fields: Fields) -> Words:
    return Words("offsets", [fields["topic"]])


CHANGES: Final = (
    Change("topic-create", "Create a topic", ("topic", "partitions", "config"), _create),
    Change("topic-alter", "Change a topic", ("topic", "key", "value", "reset", "partitions"), _alter),
    Change(
        "topic-truncate",
        "Delete records of a topic",
        ("topic", "before"),
        _truncate,
        warning="Records before that are deleted forever.",
        look=_ends,
    ),
    Change(
        "topic-delete",
        "Delete a topic",
        ("topic",),
        lambda fields: Words("topic delete", [fields["topic"]], ["--yes"]),
        warning="The topic and all its records are deleted forever.",
        look=_ends,
    ),
)
