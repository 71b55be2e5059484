"""Conversations about topics: create and describe them."""

from collections.abc import Mapping, Sequence
from typing import Final

from seglog.core.conversations import Conversation, ask, pages
from seglog.core.errors import count_of
from seglog_protocol import errors, messages
from seglog_protocol.internal_topics import is_internal

NAMES_PER_REQUEST: Final = 1_000


def create_topic(
    name: str, partitions: int | None, config: Mapping[str, messages.ConfigValue] | None, *, exist_ok: bool
) -> Conversation[messages.CreateTopicReply]:
    """As ``Client.create_topic``."""
    try:
        return (
            yield from ask(messages.CreateTopicRequest(name, partitions, dict(config or {})), messages.CreateTopicReply)
        )[0]
    except (errors.TopicExistsError, errors.AuthorizationError) as error:
        if not exist_ok:
            raise
        refusal = error
    try:
        found = yield from describe_topic(name)
    except errors.UnknownTopicError:  # an account that makes no topics may still use one that is there
        raise refusal from None
    warnings = []
    if partitions is not None and partitions != found.partitions:
        warnings.append(f"{name} exists with {count_of(found.partitions, 'partition')}, not {partitions}")
    for key, value in (config or {}).items():
        entry = (found.config or {}).get(key)
        if entry is not None and not _is_same(key, value, entry.value):
            warnings.append(f"{name} exists with {key}={entry.value}, not {_config_text(value)}")
    return messages.CreateTopicReply(name, found.id, found.partitions, warnings)


def describe_for_producing(name: str, *, may_create: bool) -> Conversation[messages.TopicDescription]:
    """The topic to produce to; a missing one is created if ``may_create``.

    Raises TypeError for what is no text, InvalidTopicError for a topic to which the broker alone writes.
    """
    text: object = name
    if not isinstance(text, str):
        raise TypeError(f"a topic's name is text, not {name!r}")
    if is_internal(name):
        raise errors.InvalidTopicError(f"topic {name} is the broker's own: it alone writes to it", topic=name)
    try:
        return (yield from describe_topic(name))
    except errors.UnknownTopicError:
        if not may_create:
            raise
    yield from create_topic(name, None, None, exist_ok=True)
    return (yield from describe_topic(name))


def describe_topic(name: str, *, config: bool = True) -> Conversation[messages.TopicDescription]:
    """As ``Client.describe_topic``."""
    reply, found = yield from page(messages.TopicsRequest(names=[name], config=config))
    for error in reply.unknown:
        raise error
    if not found:
        raise errors.RemoteProtocolError(f"the broker's reply does not contain the topic {name}")
    return found[0]


def partition_counts(names: Sequence[str]) -> Conversation[dict[str, int]]:
    """The numbers of partitions of these topics; 0 for one that does not exist."""
    counts = dict.fromkeys(names, 0)
    for some in pages(names, NAMES_PER_REQUEST):
        _, found = yield from page(messages.TopicsRequest(names=list(some)))
        counts |= {description.name: description.partitions for description in found}
    return counts


def page(request: messages.TopicsRequest) -> Conversation[tuple[messages.TopicsReply, list[messages.TopicDescription]]]:
    """The reply to a request for topics, with their descriptions."""
    reply, payload = yield from ask(request, messages.TopicsReply, is_repeatable=True)
    return reply, messages.decode_descriptions(payload)


def _is_same(key: str, written: messages.ConfigValue, held: str) -> bool:
    """Whether ``written`` equals the broker's value ``held``; the broker stores ``7d`` as a number."""
    from seglog_protocol.quantities import parse_quantity, unit_of  # noqa: PLC0415 - fractions, which few calls need

    text, unit = _config_text(written), unit_of(key)
    quantity = None if unit is None else parse_quantity(text, unit)
    return text == held or (quantity is not None and str(quantity) == held)


def _config_text(value: messages.ConfigValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
