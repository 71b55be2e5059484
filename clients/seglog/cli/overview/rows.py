"""Topics and groups of a reading, one row for each, the most urgent first."""

import math
from typing import NamedTuple

from seglog.cli.overview.readings import Numbers


class TopicRow(NamedTuple):
    """A topic; None is what is not known."""

    name: str
    partitions: int
    size: float
    records: float
    """In offsets, from the first that was ever written on."""
    rate: float | None
    """Records appended a second."""
    not_durable: float
    """Records that are not on the disk yet."""


class GroupRow(NamedTuple):
    """A group; None is what is not known."""

    name: str
    state: str
    members: int
    lag: float | None
    behind: float | None
    """Seconds that its oldest unread record is old."""
    to_loss: float | None
    """Seconds until retention takes the first of its unread records."""


def topic_rows(numbers: Numbers) -> list[TopicRow]:
    """Those with the most records a second first, then the largest."""
    sizes, durables = (numbers.by(f"seglog_partition_{what}", "topic") for what in ("size_bytes", "durable_offset"))
    ends = numbers.by("seglog_partition_log_end_offset", "topic")
    before = numbers.by_before("seglog_partition_log_end_offset", "topic")
    rows = []
    for name, values in ends.items():
        end = sum(value for _, value in values)
        old = dict(before.get(name, ()))
        rate = None
        if numbers.seconds:
            rate = sum(max(0.0, value - old.get(labels, 0.0)) for labels, value in values) / numbers.seconds
        durable = sum(value for _, value in durables.get(name, ()))
        size = sum(value for _, value in sizes.get(name, ()))
        rows.append(TopicRow(name, len(values), size, end, rate, max(0.0, end - durable) if durables else 0.0))
    return sorted(rows, key=lambda row: (-(row.rate or 0.0), -row.size, row.name))


def group_rows(numbers: Numbers) -> list[GroupRow]:
    """Those that lose records soonest first, then those that are furthest behind."""
    lags, seconds, losses = (
        numbers.by(f"seglog_group_{what}", "group") for what in ("lag", "lag_seconds", "time_to_loss_seconds")
    )
    states = {
        labels[0]: labels[1]
        for values in numbers.by("seglog_group_state", "group").values()
        for labels, value in values
        if value
    }
    rows = []
    for name, values in numbers.by("seglog_group_members", "group").items():
        rows.append(
            GroupRow(
                name,
                states.get(name, ""),
                int(values[0][1]),
                sum(value for _, value in lags[name]) if name in lags else None,
                max((value for _, value in seconds.get(name, ())), default=None),
                min((value for _, value in losses.get(name, ())), default=None),
            )
        )
    return sorted(rows, key=_urgency)


def _urgency(row: GroupRow) -> tuple[float, float, str]:
    return (math.inf if row.to_loss is None else row.to_loss, -(row.lag or 0.0), row.name)
