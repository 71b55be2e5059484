"""Groups as they are printed: lines of a description, rows, JSON, and sentences about what is wrong."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from seglog.cli.lags import behind, kept, lag_as_json, what_is_wrong
from seglog.cli.tables import aligned, labelled, named
from seglog.core.errors import count_of, duration_of
from seglog.core.moments import format_time
from seglog.groups import GroupDescription, GroupOffset, OffsetReset, records_behind
from seglog_protocol.messages import DescribedMember, DescribeGroupReply
from seglog_protocol.texts import host_text, printable


def description_lines(
    described: GroupDescription,
    zone: tzinfo | None,
    *,
    offsets: bool = True,
    members: bool = True,
    width: int | None = None,
) -> Iterator[str]:
    """A group for people: what it is, and tables of its offsets and members, in ``width`` columns (None: any)."""
    group = described.group
    assignor = [f"assignor {printable(group.protocol)}"] if group.protocol else []
    words = [group.kind, group.state, f"generation {group.generation:,}", *assignor]
    yield f"{printable(group.group)}: {', '.join(words)}, {count_of(len(group.members), 'member')}"
    yield from labelled(facts_of(described, zone), label_width=10)
    if offsets and described.offsets:
        yield ""
        yield from _offset_table(
            described.offsets, {member.member_id: name_of(member) for member in group.members}, group.now_ms, width
        )
    if members and group.members:
        yield ""
        yield from _member_table(group, width)


def facts_of(described: GroupDescription, zone: tzinfo | None) -> Iterator[tuple[str, str]]:
    """Labels and texts: its lag, when retention reaches it, since when it is empty, when it expires."""
    group = described.group
    lags = [offset.lag for offset in described.offsets if offset.lag is not None]
    ages = [lag.seconds for lag in lags if lag.records and lag.seconds is not None]
    oldest = f", the oldest {duration_of(round(max(ages) * 1000))} old" if ages else ""
    unread = sum(offset.offset is None for offset in described.offsets)
    if lags:
        beside = f"; nothing is committed yet in {unread:,} more" if unread else ""
        behind = f"{count_of(described.records, 'record')} in {count_of(len(lags), 'partition')}"
        yield "lag", f"{behind}{oldest}{beside}"
    elif unread == len(described.offsets):
        yield "lag", "unknown: nothing is committed yet"
    else:
        yield "lag", "unknown: see the messages below"
    losses = [(lag.loss_from_ms, lag) for lag in lags if lag.records and lag.loss_from_ms is not None]
    if losses:
        at, lag = min(losses, key=lambda loss: loss[0])
        due = f", at {format_time(at, zone)}" if at > lag.now_ms else ""
        yield "retention", f"reaches {lag.topic}-{lag.partition} {until_of(at, lag.now_ms)}{due}"
    if group.members:
        return
    if group.empty_since_ms is not None:
        ago = duration_of(max(0, group.now_ms - group.empty_since_ms))
        yield "empty", f"since {format_time(group.empty_since_ms, zone)}, {ago} ago"
    if not described.offsets:
        return
    if group.expires_ms is None:
        yield "expires", "never, as things stand"
    else:
        until, moment = until_of(group.expires_ms, group.now_ms), format_time(group.expires_ms, zone)
        when = f"{until}, at {moment}" if group.expires_ms > group.now_ms else f"{until}: due since {moment}"
        yield "expires", f"{when}, unless a member joins or commits"


def total_lag(offsets: Sequence[GroupOffset]) -> int | None:
    """Records left to read in partitions of which that is known; None where it is known of none."""
    return None if all(offset.lag is None for offset in offsets) else records_behind(offsets)


def until_of(moment_ms: int | None, now_ms: int) -> str:
    """``in 3 d 4 h``; ``at the next check`` of the broker for what is due; ``-`` for None."""
    if moment_ms is None:
        return "-"
    return f"in {duration_of(moment_ms - now_ms)}" if moment_ms > now_ms else "at the next check"


def _offset_table(
    offsets: Sequence[GroupOffset], owners: Mapping[str, str], now_ms: int, width: int | None
) -> Iterator[str]:
    """A row for each partition; a column in which nothing would stand is left out."""
    table: dict[str, list[Any]] = {
        "TOPIC": [offset.topic for offset in offsets],
        ">PARTITION": [offset.partition for offset in offsets],
        ">COMMITTED": ["-" if offset.offset is None else offset.offset for offset in offsets],
        ">LOG END": ["-" if offset.latest is None else offset.latest for offset in offsets],
        ">LAG": ["-" if offset.lag is None else offset.lag.records for offset in offsets],
        ">UNSTABLE": ["-" if offset.lag is None else offset.lag.unstable or "-" for offset in offsets],
        ">BEHIND": ["-" if offset.lag is None else behind(offset.lag) for offset in offsets],
        ">LOST": ["-" if offset.lag is None or not offset.lag.lost else offset.lag.lost for offset in offsets],
        "KEPT": ["-" if offset.lag is None else kept(offset.lag) for offset in offsets],
        "OWNER": [owners.get(offset.member_id or "", "-") for offset in offsets],
        "EXPIRES": [until_of(offset.expires_ms, now_ms) for offset in offsets],
        "METADATA": [named(offset.metadata) or "-" for offset in offsets],
    }
    for title in (">UNSTABLE", ">LOST", "OWNER", "EXPIRES", "METADATA"):
        if all(cell == "-" for cell in table[title]):
            del table[title]
    yield from aligned(list(table), zip(*table.values(), strict=True), width=width)


def offset_notes(offsets: Iterable[GroupOffset]) -> list[str]:
    """A sentence for each committed offset that lies outside its log, or of which the broker could not tell."""
    notes = []
    for offset in offsets:
        if offset.error is not None:
            notes.append(f"{offset.topic}-{offset.partition}: {offset.error.message}")
        elif offset.lag is not None and (sentence := what_is_wrong(offset.lag, "committed offset")) is not None:
            notes.append(sentence)
    return notes


def reset_row(reset: OffsetReset) -> Sequence[Any]:
    """A row of what is reset: topic, partition, old, new, change, note."""
    change = "-" if reset.before is None else f"{reset.after - reset.before:+,}"
    before = "-" if reset.before is None else reset.before
    return (reset.topic, reset.partition, before, reset.after, change, reset.note or "")


def name_of(member: DescribedMember) -> str:
    """The name of a member in all tables: its instance id, else its member id. It is unique in the group."""
    return named(member.instance_id or member.member_id)


def _member_table(group: DescribeGroupReply, width: int | None) -> Iterator[str]:
    titles = ["MEMBER", "CLIENT", "ADDRESS", ">SESSION", ">LAST HEARTBEAT", "PARTITIONS"]
    rows = [
        [
            name_of(member),
            named(member.client_id) or "-",
            host_text(member.client_host) or "-",
            duration_of(member.session_timeout_ms),
            f"{duration_of(member.quiet_ms)} ago",
            assigned_text(member),
        ]
        for member in group.members
    ]
    yield from aligned(titles, rows, width=width)


def assigned_text(member: DescribedMember) -> str:
    """``clicks 0, 2; other 1``."""
    if member.assignment is None:
        return "unknown"
    return "; ".join(f"{each.topic} {', '.join(map(str, each.partitions))}" for each in member.assignment) or "none"


def group_as_json(described: GroupDescription) -> dict[str, Any]:
    """A description as one map: the broker's description of the group, its lag, its offsets."""
    offsets = [
        offset._asdict()
        | {
            "lag": None if offset.lag is None else lag_as_json(offset.lag),
            "error": None if offset.error is None else offset.error.message,
        }
        for offset in described.offsets
    ]
    return described.group.to_wire() | {"lag": total_lag(described.offsets), "offsets": offsets}
