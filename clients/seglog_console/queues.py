"""One queue (share group): how many jobs wait and are with workers, the ways to these and dead ones, its settings."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from seglog.core.errors import duration_of
from seglog.core.share_groups import DEAD_LETTERS, describe_share_group, places_of, settings_of
from seglog_console.changes import Change
from seglog_console.pages import View, part_of, unless_refused
from seglog_console.viewer import several
from seglog_protocol.messages import ExplainReply
from seglog_protocol.quantities import with_reading

_OF_QUEUES: Final = ("share.", "errors.deadletterqueue.")
"""Beginnings of the settings that queues have, among those of all kinds of groups."""


async def context(view: View) -> dict[str, Any]:
    """The queue: what is wrong first, then the jobs of each partition and who has them."""
    name = view.request.path_params["group"]
    shared, client = view.session.viewer.shared, view.client
    group = await shared(("queue", name), lambda: client.converse(describe_share_group(name)))
    places = part_of(view, await shared(("places", name), lambda: client.converse(places_of(name))))
    told = await several([partial(_told, view, name, topic, number) for topic, number in places.rows])
    settings, no_settings = await unless_refused(
        shared(("settings", name), lambda: client.converse(settings_of(name))), {}
    )
    advices = {(each.found, each.remedy, "") for reply in told if reply.delivery for each in reply.delivery.warnings}
    return {
        "name": name,
        "state": group.group_state,
        "problems": sorted(advices),
        "places": places,
        "told": told,
        "holders": _holders(told),
        "members": part_of(view, group.members, "members"),
        "settings": {key: found for key, found in sorted(settings.items()) if key.startswith(_OF_QUEUES)},
        "reading": with_reading,
        "refusals": [no_settings] if no_settings else [],
        "dead_letters": settings.get(DEAD_LETTERS, ("", False))[0],
    }


async def _told(view: View, name: str, topic: str, partition: int) -> ExplainReply:
    return await view.session.viewer.shared(
        ("delivery", name, topic, partition), lambda: view.client.explain.delivery(topic, partition, name)
    )


def _holders(told: Sequence[ExplainReply]) -> list[tuple[str, str, int, int, str]]:
    """Members that have jobs: member, partition, jobs, the first one, and for how long the first lock holds."""
    return [
        (
            holder.member_id,
            f"{reply.topic}-{reply.partition}",
            holder.records,
            holder.first_offset,
            duration_of(max(0, holder.until_ms - reply.delivery.now_ms)),
        )
        for reply in told
        if reply.delivery
        for holder in reply.delivery.holders
    ]


# --- Changes ----------------------------------------------------------------------------------------------------------


_REDRIVE: Final = "queue redrive {group} [--count={count}] [--reason={reason}]"

CHANGES: Final = (
    Change("queue-alter", "Change a queue", "queue alter {group} [--config={key}={value}] [--reset={reset}]"),
    Change(
        "queue-redrive",
        "Send dead letters back",
        _REDRIVE,
        "Each letter's job is sent to its topic again, where all groups read it.",
        look=f"{_REDRIVE} --dry-run",
    ),
)
