"""A seek drawn step by step: how a fetch finds an offset or a time, by the seek that the broker made for the page."""

from typing import Any, Final

from seglog.cli.pictures.explained import seek_picture
from seglog.core.moments import AtOffset, AtTime, Edge
from seglog_console.commands import shell_text, words_of
from seglog_console.pages import BadInputError, View
from seglog_console.records import front_of, place_of
from seglog_console.topic import address_of, drawn

EXAMPLES: Final = "an offset (1200), a relative time (-1h), yesterday, or ISO 8601 (2019-01-01, 2019-01-01T10:00Z)"


async def context(view: View) -> dict[str, Any]:
    """The seek to ``at``; only the form without it."""
    topic, number, at = view.request.path_params["topic"], view.number("partition", 0), view.text("at").strip()
    description = await view.client.describe_topic(topic)
    if number >= description.partitions:
        raise BadInputError(f"{topic} has partitions 0 to {description.partitions - 1}, not {number}")
    picture = command = None
    if at:
        moment = _moment(view, at)
        reply = await view.client.explain.seek(topic, number, moment)
        picture = drawn(seek_picture(reply, moment, view.zone))
        option = f"--offset={moment.offset}" if isinstance(moment, AtOffset) else f"--timestamp=@{moment.timestamp}"
        command = shell_text(
            [*front_of(view), *words_of(["explain", "seek"], [topic, str(number)], [option, "--picture"])]
        )
    return {
        "topic": topic,
        "number": number,
        "partitions": description.partitions,
        "at": at,
        "address": address_of(topic),
        "picture": picture,
        "command": command,
        "examples": EXAMPLES,
    }


def _moment(view: View, text: str) -> AtOffset | AtTime:
    """The offset or time of a text. Raises BadInputError."""
    moment = place_of(view, text, Edge.LATEST)
    if not isinstance(moment, AtOffset | AtTime):
        raise BadInputError(f"{text!r} needs no seek; write {EXAMPLES}")
    return moment
