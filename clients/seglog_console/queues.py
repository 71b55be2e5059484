"""One queue (share group): its jobs that wait and that workers have, its dead letters, and its settings."""

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

from seglog.core.errors import duration_of
from seglog.core.records import Record
from seglog.core.share_groups import DEAD_LETTERS, describe_share_group, places_of, settings_of
from seglog_console.changes import Change, Fields, Words, each
from seglog_console.pages import View, part_of, unless_refused
from seglog_console.reading import Row, read
from seglog_console.values import Shown, shown
from seglog_console.viewer import several
from seglog_protocol.dead_letters import read_origin
from seglog_protocol.isolation import READ_UNCOMMITTED
from seglog_protocol.messages import ExplainReply
from seglog_protocol.quantities import with_reading

JOBS_MAX: Final = 10
"""Jobs and dead letters that are shown."""
_LOOKED_AT_MAX: Final = 50
"""Records that are looked at for them, of each partition."""
_FETCH_BYTES: Final = 64 << 10
_VALUE: Final = 300
_OF_QUEUES: Final = ("share.", "errors.deadletterqueue.")
"""Beginnings of the settings that queues have, among those of all kinds of groups."""


class Job(NamedTuple):
    """A record, how often it was delivered, and, of a dead letter, where it is from and why it is dead."""

    record: Record
    value: Shown
    tries: int
    origin: str = ""
    why: str = ""


async def context(view: View) -> dict[str, Any]:
    """The queue: what is wrong first; with ``jobs`` in the address those that wait, or the dead ones."""
    name = view.request.path_params["group"]
    shared, client = view.session.viewer.shared, view.client
    group = await shared(("queue", name), lambda: client.converse(describe_share_group(name)))
    places = part_of(view, await shared(("places", name), lambda: client.converse(places_of(name))))
    told = await several([partial(_told, view, name, topic, number) for topic, number in places.rows])
    settings, no_settings = await unless_refused(
        shared(("settings", name), lambda: client.converse(settings_of(name))), {}
    )
    topic = settings.get(DEAD_LETTERS, ("", False))[0]
    jobs, no_jobs = await unless_refused(_jobs(view, name, told, topic), [])
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
        "refusals": list(filter(None, (no_settings, no_jobs))),
        "dead_letters": topic,
        "which": view.text("jobs"),
        "jobs": jobs,
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


async def _jobs(view: View, name: str, told: Sequence[ExplainReply], letters: str) -> list[Job]:
    """The jobs that the address asks for."""
    if "live" in view.request.query_params:
        return []  # which does not show them
    if view.text("jobs") == "dead" and letters:
        return await _dead(view, name, letters)
    return await _waiting(view, name, told) if view.text("jobs") == "waiting" else []


async def _waiting(view: View, name: str, told: Sequence[ExplainReply]) -> list[Job]:
    """The first records that no member has."""
    jobs: list[Job] = []
    for reply in told:
        start = None if reply.delivery is None or not reply.delivery.waiting else reply.delivery.start_offset
        if start is None or len(jobs) >= JOBS_MAX:
            continue
        [ends] = await view.client.offsets(reply.topic, partitions=[reply.partition])
        ranges = {reply.partition: (start, min(ends.latest, start + _LOOKED_AT_MAX))}
        for record in await _records(view, reply.topic, ranges):
            found = await view.client.explain.delivery(reply.topic, reply.partition, name, record.offset)
            if found.delivery is not None and found.delivery.state in (None, "available"):
                jobs.append(Job(record, _value(record), found.delivery.delivery_count or 0))
            if len(jobs) >= JOBS_MAX:
                break
    return jobs


async def _dead(view: View, name: str, topic: str) -> list[Job]:
    """The dead letters of a queue among the newest of each partition, the newest first."""
    ends = await view.client.offsets(topic)
    ranges = {each.partition: (max(each.earliest, each.latest - JOBS_MAX), each.latest) for each in ends}
    jobs = []
    for record in await _records(view, topic, ranges):
        origin = read_origin(record.headers)
        if origin is not None and origin.group == name:
            place = f"{origin.topic}/{origin.partition}/records/{origin.offset}"
            jobs.append(Job(record, _value(record), origin.delivery_count, place, origin.message))
    return sorted(jobs, key=lambda job: -job.record.timestamp)[:JOBS_MAX]


async def _records(view: View, topic: str, ranges: dict[int, tuple[int, int]]) -> list[Record]:
    async with aclosing(read(view.client, topic, ranges, READ_UNCOMMITTED, _FETCH_BYTES)) as items:
        return [record async for item in items if not isinstance(item, Row) for record in item.records()]


def _value(record: Record) -> Shown:
    return shown(record.value, "auto", _VALUE, is_long=False)


# --- Changes ----------------------------------------------------------------------------------------------------------


def _alter(fields: Fields) -> Words:
    config = [f"{fields['key']}={fields.get('value')}"] if fields.get("key") else []
    return Words("queue alter", [fields["group"]], [*each("--config", config), *fields.options(reset="--reset")])


def _redrive(fields: Fields, *dry_run: str) -> Words:
    options = fields.options(count="--count", reason="--reason")
    return Words("queue redrive", [fields["group"]], [*options, *dry_run])


CHANGES: Final = (
    Change("queue-alter", "Change a queue", ("group", "key", "value", "reset"), _alter),
    Change(
        "queue-redrive",
        "Send dead letters back",
        ("group", "count", "reason"),
        _redrive,
        warning="Each letter's job is sent to its topic again, where all groups read it.",
        look=lambda fields: _redrive(fields, "--dry-run"),
    ),
)
