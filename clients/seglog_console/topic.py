"""One topic drawn: its partitions as lanes with groups in them, or one partition with each of its segments."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from seglog.cli.pictures.explained import chosen, segments_picture
from seglog.cli.pictures.lanes import LANES_MAX, lanes_picture, problems_of
from seglog.cli.pictures.model import Picture
from seglog.cli.pictures.svg import element_of
from seglog.cli.pictures.text import lines_of
from seglog.cli.retention import kept
from seglog.cli.segment_table import partition_facts
from seglog.core.committed_offsets import look_up_committed
from seglog.core.explaining import PartitionExplanation
from seglog.core.offsets import PartitionLag, partition_lag
from seglog_console.pages import BadInputError, View, part_of
from seglog_console.topics import settings_of
from seglog_console.viewer import several
from seglog_protocol import errors, messages

GROUPS_ASKED_MAX: Final = 50
"""Groups that are asked whether they read the topic: the first ones by name."""
_POSITIONS_MAX: Final = 1_000
"""Of groups in the partitions of a page."""
SEGMENTS_MAX: Final = 30
"""Segments of one partition that are drawn."""
_TEXT_WIDTH: Final = 110


class Shown(NamedTuple):
    """Partitions that a page shows; ``trouble`` are sentences about those that cannot be explained."""

    explained: Sequence[PartitionExplanation]
    groups: dict[str, list[PartitionLag]]
    trouble: Sequence[str]
    groups_left_out: bool


async def context(view: View) -> dict[str, Any]:
    """The topic, a page of its lanes, or one partition."""
    name, shared = view.request.path_params["topic"], view.session.viewer.shared
    topic = await shared(("topic", name), lambda: view.client.describe_topic(name))
    number = view.number("partition", -1, most=max(0, topic.partitions - 1))
    view.number("page", 0, most=(topic.partitions - 1) // LANES_MAX)
    lanes = part_of(view, range(topic.partitions), size=LANES_MAX)
    numbers = [number] if number >= 0 else lanes.rows
    shown = await shared(("drawn", name, numbers[0], number), lambda: _look(view, name, numbers))
    address = address_of(name)
    if number < 0:
        picture = lanes_picture(
            shown.explained,
            shown.groups,
            view.zone,
            lambda lane, base: f"{address}?partition={lane}" if base is None else f"{address}/{lane}/segments/{base}",
        )
    elif shown.explained:
        picture = segments_picture(
            shown.explained[0], view.zone, rows=SEGMENTS_MAX, link=lambda base: f"{address}/{number}/segments/{base}"
        )
    else:
        raise BadInputError(shown.trouble[0])
    wrong = [*shown.trouble, *(sentence for each in shown.explained for sentence in problems_of(each.partition))]
    lines = partition_facts(shown.explained[0], view.zone) if number >= 0 else []
    return {
        "topic": topic,
        "address": address,
        "number": number,
        "lanes": lanes,
        "settings": settings_of(topic),
        "segments": chosen(shown.explained[0].segments, SEGMENTS_MAX)[0] if number >= 0 else (),
        "all_segments": len(shown.explained[0].segments) if shown.explained else 0,
        "kept": kept(shown.explained[0]).sentence if shown.explained else "",
        "lines": [(label, sentence) for label, sentence in lines if label not in {"problem", "doubt"}],
        "problems": [(sentence, "`seglog doctor` says what to do", "") for sentence in wrong],
        "groups_left_out": shown.groups_left_out,
        **drawn(picture),
        "facts": [fact for fact in picture.facts if fact not in wrong],
    }


def address_of(topic: str) -> str:
    """The page of a topic."""
    return f"/topics/{quote(topic, safe='')}"


def drawn(picture: Picture) -> dict[str, Any]:
    """A picture for templates: its element, its sentences, and all of it as text."""
    return {
        "title": picture.title,
        "facts": picture.facts,
        "svg": Markup(element_of(picture)),  # noqa: S704 - it escapes what others have written
        "text": "\n".join(lines_of(picture, _TEXT_WIDTH)),
    }


async def _look(view: View, topic: str, numbers: Sequence[int]) -> Shown:
    trouble: list[str] = []

    async def explain(number: int) -> PartitionExplanation | None:
        try:
            return await view.client.explain.segments(topic, number)
        except (errors.PartitionOfflineError, errors.PartitionRecoveringError) as error:
            trouble.append(error.message)
            return None

    found = await several([partial(explain, number) for number in numbers])
    explained = [each for each in found if each is not None]
    groups, more = await _groups(view, topic, [each.partition.partition for each in explained])
    return Shown(explained, groups, trouble, more)


async def _groups(view: View, topic: str, numbers: Sequence[int]) -> tuple[dict[str, list[PartitionLag]], bool]:
    """Where the groups stand that this account may see, and whether there are more than were asked."""
    listing = messages.ListGroupsRequest(limit=GROUPS_ASKED_MAX)
    try:
        reply, _ = await view.client.call(listing, messages.ListGroupsReply, is_repeatable=True)
    except errors.AuthorizationError:
        return {}, False

    async def committed(group: str) -> list[tuple[str, messages.LagPartition]]:
        try:
            places = await view.client.converse(look_up_committed(group, topic, numbers))
        except errors.RequestError:  # it went, or is not this account's to see
            return []
        return [(group, messages.LagPartition(topic, number, at.offset)) for number, at in places.items()]

    found = await several([partial(committed, listed.group) for listed in reply.groups])
    places = [place for some in found for place in some][:_POSITIONS_MAX]
    if not places:
        return {}, reply.more
    request = messages.LagRequest([place for _, place in places])
    lag, _ = await view.client.call(request, messages.LagReply, is_repeatable=True)
    behind = [
        (group, partition_lag(result, place.offset, lag.now_ms))
        for (group, place), result in zip(places, lag.partitions, strict=True)
        if result.error is None
    ]
    return {group: [each for _, each in some] for group, some in groupby(behind, key=lambda pair: pair[0])}, reply.more
