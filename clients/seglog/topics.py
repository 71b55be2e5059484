"""Conversations about topics: creating, deleting, listing, describing."""

from collections.abc import Mapping

from seglog.conversations import Conversation, ask
from seglog_protocol.errors import RemoteProtocolError, TopicExistsError
from seglog_protocol.messages import (
    ConfigValue,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicReply,
    DeleteTopicRequest,
    TopicDescription,
    TopicsReply,
    TopicsRequest,
    decode_descriptions,
)


def create_topic(
    name: str, partitions: int | None, config: Mapping[str, ConfigValue] | None, *, exist_ok: bool
) -> Conversation[CreateTopicReply]:
    """As ``Client.create_topic``."""
    try:
        return (yield from ask(CreateTopicRequest(name, partitions, dict(config or {})), CreateTopicReply))[0]
    except TopicExistsError:
        if not exist_ok:
            raise
    found = yield from describe_topic(name)
    warnings = []
    if partitions is not None and partitions != found.partitions:
        warnings.append(f"{name} exists with {found.partitions} partitions, not {partitions}")
    for key, value in (config or {}).items():
        entry = (found.config or {}).get(key)
        if entry is not None and entry.value != _config_text(value):
            warnings.append(f"{name} exists with {key}={entry.value}, not {_config_text(value)}")
    return CreateTopicReply(name, found.id, found.partitions, warnings)


def delete_topic(name: str) -> Conversation[None]:
    """As ``Client.delete_topic``."""
    yield from ask(DeleteTopicRequest(name), DeleteTopicReply)


def list_topics() -> Conversation[list[TopicDescription]]:
    """As ``Client.topics``: page by page."""
    found: list[TopicDescription] = []
    while True:
        after = found[-1].name if found else ""
        reply, page = yield from _page(TopicsRequest(after=after))
        found += page
        if not reply.more or not page:
            return found


def describe_topic(name: str) -> Conversation[TopicDescription]:
    """As ``Client.describe_topic``."""
    reply, found = yield from _page(TopicsRequest(names=[name], config=True))
    for error in reply.unknown:
        raise error
    if not found:
        raise RemoteProtocolError(f"the broker was asked about {name} and answered with nothing")
    return found[0]


def _page(request: TopicsRequest) -> Conversation[tuple[TopicsReply, list[TopicDescription]]]:
    reply, payload = yield from ask(request, TopicsReply, is_repeatable=True)
    return reply, decode_descriptions(payload)


def _config_text(value: ConfigValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
