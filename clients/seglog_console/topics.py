"""The list of topics: a page by name, with sizes, rates, the retention that really holds, and settings that differ."""

from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from seglog.cli.overview.readings import Numbers, grown
from seglog.cli.retention import kept_text
from seglog.core.explaining import PartitionExplanation
from seglog.core.topics import page
from seglog_console.pages import ROWS, View, before
from seglog_console.viewer import several
from seglog_protocol import messages
from seglog_protocol.errors import AuthenticationError, AuthorizationError, SeglogError
from seglog_protocol.quantities import with_reading

INTERVAL_SECONDS: Final = 10.0
_KEPT_SECONDS: Final = 60.0
"""How long what is said of retention stands: it is asked for each topic."""
_SEGMENTS: Final = 4
"""The oldest, of one partition: their ages stand for those of all."""
_ENDS: Final = "seglog_partition_log_end_offset"


class Row(NamedTuple):
    """A topic; ``rate`` is in records a second, None where the broker has no samples of it."""

    topic: messages.TopicDescription
    rate: float | None
    kept: str
    settings: list[str]


async def context(view: View) -> dict[str, Any]:
    """A page of topics whose names begin with ``q``, after ``after``."""
    prefix, after = view.text("q").strip(), view.text("after")
    begin = max(after, before(prefix))
    request = messages.TopicsRequest(after=begin, limit=ROWS, config=True)
    reply, asked = await view.session.viewer.shared(("topics", begin), lambda: view.client.converse(page(request)))
    found = [topic for topic in asked if topic.name.startswith(prefix)]
    try:
        _, numbers = await view.session.viewer.numbers([_ENDS])
    except AuthorizationError:  # rates are for those who may see the broker's samples
        numbers = Numbers(None)
    texts = await several([partial(_kept, view, topic.name) for topic in found])
    ends = numbers.by(_ENDS, "topic"), numbers.by(_ENDS, "topic", before=True)
    following = found[-1].name if reply.more and len(found) == len(asked) else ""
    return {
        "prefix": prefix,
        "is_first": not after,
        "rows": [
            Row(topic, _rate(topic.name, numbers, *ends), text, settings_of(topic))
            for topic, text in zip(found, texts, strict=True)
        ],
        "following": f"/topics?{urlencode({'q': prefix, 'after': following})}" if following else "",
    }


def settings_of(topic: messages.TopicDescription) -> list[str]:
    """The settings of the topic itself, each as ``key=value``, with units."""
    own = sorted((key, entry.value) for key, entry in (topic.config or {}).items() if entry.origin == "topic")
    return [f"{key}={with_reading(key, value)}" for key, value in own]


def _rate(name: str, numbers: Numbers, now: dict[str, Any], before: dict[str, Any]) -> float | None:
    return grown(now[name], before.get(name, ()), numbers.seconds) if name in now else None


async def _kept(view: View, name: str) -> str:
    """How long records of a topic are kept; "" where this account may not know, or nobody knows now."""

    async def look() -> str:
        request = messages.ExplainSegmentsRequest(name, 0, limit=_SEGMENTS)
        reply, payload = await view.client.call(request, messages.ExplainSegmentsReply, is_repeatable=True)
        return kept_text(PartitionExplanation(reply, messages.decode_segments(payload)))

    try:
        return await view.session.viewer.shared(("kept", name), look, seconds=_KEPT_SECONDS)
    except AuthenticationError:
        raise
    except SeglogError:
        return ""
