"""Conversations that ask a broker why: how a seek found its way, and where a configuration value comes from."""

from datetime import datetime

from seglog.conversations import Conversation, ask
from seglog.moments import AtOffset, AtTime, Moment
from seglog.starting import to_moment
from seglog.topics import describe_topic
from seglog_protocol.messages import ConfigEntry, ExplainReply, ExplainRequest


def explain_seek(topic: str, partition: int, place: int | str | datetime | Moment) -> Conversation[ExplainReply]:
    """As ``Client.explain.seek``; ValueError for what is neither an offset nor a time."""
    moment = to_moment(place)
    if isinstance(moment, AtOffset):
        request = ExplainRequest(topic, partition, offset=moment.offset)
    elif isinstance(moment, AtTime):
        request = ExplainRequest(topic, partition, timestamp=moment.timestamp)
    else:
        raise ValueError(  # noqa: TRY004 - the type is right, the place is not
            f"{place!r} needs no seek; give an offset or a time, for example 1200 or 2019-01-01"
        )
    return (yield from ask(request, ExplainReply, is_repeatable=True))[0]


def explain_config(topic: str) -> Conversation[dict[str, ConfigEntry]]:
    """As ``Client.explain.config``."""
    return (yield from describe_topic(topic)).config or {}
