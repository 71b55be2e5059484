"""Groups: how far each is behind and when it loses records, reset and deleted; queues (share groups) beside them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from seglog.cli.group_tables import assigned_text, facts_of, name_of, offset_notes
from seglog.cli.lags import behind, kept, what_is_wrong
from seglog.cli.overview.readings import GroupRow, group_rows
from seglog.core.errors import duration_of
from seglog.core.share_groups import list_share_groups
from seglog.groups import GroupDescription, GroupOffset
from seglog_console.changes import Change
from seglog_console.overview import FAMILIES
from seglog_console.pages import ROWS, View, before, part_of, unless_refused
from seglog_protocol import messages

SOON_SECONDS: Final = 3600.0
"""Where records that a group has not read are lost so soon, that is a problem."""
_PROBLEMS_MAX: Final = 10

Problem = tuple[str, str, str]
"""A sentence, what to do, and the page for that."""


def address_of(group: str, kind: str = "groups") -> str:
    """The page of a group."""
    return f"/{kind}/{quote(group, safe='')}"


async def context(view: View) -> dict[str, Any]:
    """A page of groups by name, after ``after``, whose names begin with ``q``; a page of queues."""
    prefix, after = view.text("q"), view.text("after")
    begin = max(after, before(prefix)) or None
    shared, converse = view.session.viewer.shared, view.client.converse
    request = messages.ListGroupsRequest(begin, ROWS)
    call = partial(view.client.call, request, messages.ListGroupsReply, is_repeatable=True)
    reply, _ = await shared(("groups", begin), call)
    found = [group for group in reply.groups if group.group.startswith(prefix)]
    more = reply.more and len(found) == len(reply.groups)
    queues, no_queues = await unless_refused(shared("queues", lambda: converse(list_share_groups())), [])
    rows, no_numbers = await unless_refused(_rows(view), {})
    return {
        "prefix": prefix,
        "after": after,
        "problems": list(_nearest_losses(rows)),
        "groups": [(group, rows.get(group.group)) for group in found if group.kind != "share"],
        "following": found[-1].group if more else "",
        "queues": part_of(view, queues, "queues"),
        "rows": rows,
        "refusals": list(filter(None, (no_queues, no_numbers))),
    }


async def _rows(view: View) -> dict[str, GroupRow]:
    _, numbers = await view.session.viewer.numbers(FAMILIES)
    return {row.name: row for row in group_rows(numbers)}


def _nearest_losses(rows: dict[str, GroupRow]) -> Iterator[Problem]:
    for row in list(rows.values())[:_PROBLEMS_MAX]:
        if row.lag and row.to_loss is not None and row.to_loss < SOON_SECONDS:
            when = duration_of(round(row.to_loss * 1000))
            kind = "groups" if row.in_flight is None else "queues"
            yield (
                f"{row.name}: records that it has not read are lost in {when}",
                "See where",
                address_of(row.name, kind),
            )


# --- One group --------------------------------------------------------------------------------------------------------


async def group_context(view: View) -> dict[str, Any]:
    """A group: what is wrong first, then its offsets, worst first, and its members."""
    name = view.request.path_params["group"]
    described = await view.session.viewer.shared(("group", name), lambda: view.client.describe_group(name))
    owners = {member.member_id: name_of(member) for member in described.members}
    return {
        "group": described.group,
        "problems": list(_problems(described)),
        "facts": list(facts_of(described, view.zone)),
        "offsets": part_of(view, sorted(described.offsets, key=_urgency)),
        "owners": owners,
        "members": part_of(view, described.members, "members"),
        "topics": sorted({each.topic for each in described.offsets}),
        "behind": behind,
        "kept": kept,
        "wrong": what_is_wrong,
        "name_of": name_of,
        "assigned": assigned_text,
    }


def _urgency(offset: GroupOffset) -> tuple[Any, ...]:
    """A key that sorts what is wrong first, then what is lost soonest, then what is furthest behind."""
    lag = offset.lag
    if lag is None:
        return offset.error is None, 0, 0, offset.topic, offset.partition
    loss = lag.loss_from_ms if lag.records and lag.loss_from_ms is not None else 2**63
    return what_is_wrong(lag) is None, loss, -lag.records, offset.topic, offset.partition


def _problems(described: GroupDescription) -> Iterator[Problem]:
    notes = offset_notes(described.offsets)
    for note in notes[:_PROBLEMS_MAX]:
        yield note, "Reset the offset, when the members have stopped", "#reset"
    if len(notes) > _PROBLEMS_MAX:
        yield f"{len(notes) - _PROBLEMS_MAX:,} more partitions like these", "See the table", "#offsets"
    soonest: dict[str, tuple[int, int]] = {}
    for offset in described.offsets:
        lag = offset.lag
        if lag is not None and lag.records and lag.loss_from_ms is not None and what_is_wrong(lag) is None:
            left = lag.loss_from_ms - lag.now_ms
            soonest[lag.topic] = min((left, lag.partition), soonest.get(lag.topic, (left, lag.partition)))
    for topic, (left, partition) in list(soonest.items())[:_PROBLEMS_MAX]:
        if left < SOON_SECONDS * 1000:
            when = duration_of(max(0, left))
            found = f"{topic}: retention reaches what is not read in {when}, in partition {partition} first"
            yield found, f"Keep {topic} longer, or read faster", f"/topics/{topic}/settings"


# --- Changes ----------------------------------------------------------------------------------------------------------


_RESET: Final = "group reset {group} --to={to} [--topic={topics}...|--all-topics] [--local]"

CHANGES: Final = (
    Change(
        "group-reset",
        "Reset a group",
        f"{_RESET} --execute",
        "Records between the old and the new offsets are read again, or never.",
        look=_RESET,
    ),
    Change(
        "group-delete",
        "Delete a group",
        "group delete {group} --yes",
        "What it has committed is deleted forever: it begins anew when somebody joins it.",
    ),
)
