"""Topics described, created, altered, deleted."""

from typing import Annotated, ClassVar

from msgspec import Meta

from seglog_protocol.errors import SeglogError
from seglog_protocol.messages.base import INT32_MAX, Entries, Int32, Int64, Items, Message, Request, default

ConfigValue = str | int | float | bool


class TopicsRequest(Request):
    """List topics by name, a page of ``limit`` after name ``after``, or only ``names``; ``config`` adds all values."""

    api: ClassVar[str] = "topics"
    names: Items[str] | None = None
    after: str = default("")
    limit: Annotated[int, Meta(ge=1, le=10_000)] = default(1_000)
    config: bool = default(False)


class ConfigEntry(Message):
    """One effective value, its origin, and ``where`` in it.

    Origins are default, file, environment, flag, dynamic default, dynamic broker and topic; the dynamic ones were set
    at run time.
    ``shortfall`` says why the value has no effect or only part of it; None otherwise.
    """

    value: str
    origin: str
    where: str = default("")
    shortfall: str | None = None


class TopicDescription(Message):
    """One topic. ``id`` is Kafka's 22-character topic id; ``size`` is in bytes, of all segments."""

    name: str
    id: str
    partitions: Int64
    max_message_bytes: Int64
    segment_bytes: Int64
    segments: Int64 = default(0)
    size: Int64 = default(0)
    config: dict[str, ConfigEntry] | None = None
    notes: list[str] = default([])


class TopicsReply(Message):
    """A page of topics, as a msgpack list of TopicDescription in the payload; ``more`` says whether others follow.

    ``unknown`` has an error for each of ``names`` that does not exist.
    """

    more: bool = default(False)
    unknown: list[SeglogError] = default([])


class CreateTopicRequest(Request):
    """Create a topic; ``partitions`` defaults to the broker's ``num.partitions``."""

    api: ClassVar[str] = "create_topic"
    topic: str
    partitions: Int32 | None = None
    config: Entries[ConfigValue] = default({})


class CreateTopicReply(Message):
    """The created topic, with warnings about its configuration."""

    topic: str
    topic_id: str
    partitions: Int64
    warnings: list[str] = default([])


class DeleteTopicRequest(Request):
    """Delete a topic and its data."""

    api: ClassVar[str] = "delete_topic"
    topic: str


class DeleteTopicReply(Message):
    """The deleted topic."""

    topic: str


class AlterTopicRequest(Request):
    """Change a topic: set values in ``config``, reset the keys in ``reset`` to their defaults, add partitions.

    ``partitions`` is the new count, never lower than the old one. Takes effect at once and survives a restart.
    """

    api: ClassVar[str] = "alter_topic"
    topic: str
    config: Entries[ConfigValue] = default({})
    reset: Items[str] = default([])
    partitions: Annotated[int, Meta(ge=1, le=INT32_MAX)] | None = None


class AlterTopicReply(Message):
    """The topic after the change: its partition count and its own settings."""

    topic: str
    partitions: Int64
    config: dict[str, ConfigValue]
    warnings: list[str] = default([])
