"""Topics and the broker as they are set: changes of topics."""

from typing import Final

from seglog_console.changes import Change, Fields, Words, each


def _create(fields: Fields) -> Words:
    options = fields.options(partitions="--partitions")
    return Words("topic create", [fields["topic"]], [*options, *each("--config", fields.lines("config"))])


def _alter(fields: Fields) -> Words:
    config = [f"{fields['key']}={fields.get('value')}"] if fields.get("key") else []
    options = [*each("--config", config), *fields.options(reset="--reset", partitions="--partitions")]
    return Words("topic alter", [fields["topic"]], options)


def _truncate(fields: Fields) -> Words:
    return Words("topic truncate", [fields["topic"]], each("--before", fields.words("before")))


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
