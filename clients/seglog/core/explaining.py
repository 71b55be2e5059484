"""Conversations that explain a seek, a delivery, why a segment is kept, and where a setting comes from."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from seglog.core.conversations import Conversation, ask
from seglog.core.moments import AtOffset, AtTime, Moment
from seglog.core.offsets import to_moment
from seglog_protocol import messages


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """A partition and all its segments, those to be deleted from the disk first. Times are the broker's."""

    partition: messages.ExplainSegmentsReply
    segments: list[messages.ExplainedSegment]

    def to_wire(self) -> dict[str, Any]:
        """One map, for JSON, with the list ``segments``; None values are left out."""
        described = self.partition.to_wire()
        del described["more"]
        return described | {"segments": [segment.to_wire() for segment in self.segments]}


def explain_seek(
    topic: str, partition: int, place: int | str | datetime | Moment
) -> Conversation[messages.ExplainReply]:
    """As ``Client.explain.seek``. Raises ValueError for a place that is neither an offset nor a time."""
    moment = to_moment(place)
    if isinstance(moment, AtOffset):
        request = messages.ExplainRequest(topic, partition, offset=moment.offset)
    elif isinstance(moment, AtTime):
        request = messages.ExplainRequest(topic, partition, timestamp=moment.timestamp)
    else:
        raise ValueError(  # noqa: TRY004 - the type is right, the place is not
            f"{place!r} needs no seek; give an offset or a time, for example 1200 or 2019-01-01"
        )
    return (yield from ask(request, messages.ExplainReply, is_repeatable=True))[0]


def explain_delivery(
    topic: str, partition: int, group: str, offset: int | None = None
) -> Conversation[messages.ExplainReply]:
    """The conversation of ``Client.explain.delivery``."""
    request = messages.ExplainRequest(topic, partition, offset=offset, group=group)
    return (yield from ask(request, messages.ExplainReply, is_repeatable=True))[0]


def explain_segments(topic: str, partition: int, *, drops: bool = False) -> Conversation[PartitionExplanation]:
    """As ``Client.explain.segments``, page by page; the first page describes the partition."""
    first: messages.ExplainSegmentsReply | None = None
    segments: list[messages.ExplainedSegment] = []
    while True:
        after = segments[-1].base_offset if segments else None
        request = messages.ExplainSegmentsRequest(topic, partition, after=after, drops=drops or None)
        reply, payload = yield from ask(request, messages.ExplainSegmentsReply, is_repeatable=True)
        first, page = first or reply, messages.decode_segments(payload)
        segments += page
        if not reply.more or not page:
            return PartitionExplanation(first, segments)
