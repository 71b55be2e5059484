"""A report as a picture: records and bytes over time and by partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import dates, ticker
from matplotlib.figure import Figure

from seglog.core.errors import count_of
from seglog.core.moments import from_epoch_ms
from seglog_spark.jobs.lag import Lag
from seglog_spark.jobs.manifest import whole_file
from seglog_spark.jobs.report_rows import ReportRow, by_partition, merged
from seglog_spark.jobs.running import size_of

BARS_MAX: Final = 200
"""More bars would be narrower than a line."""

SERIES_MAX: Final = 8
"""Partitions with a colour of their own; the others share one."""

_SPREAD_MAX: Final = 24
_SPREAD_MIN: Final = 12
"""Lines in the list of partitions: at most, and the space kept for at least so many."""

_WHOLE: Final = 0.95
"""How far into its last period the newest record is when that is taken for whole."""

_PERIODS: Final = ("hour", "day", "week", "month", "year")
# Okabe and Ito's colours, which colour-blind people can distinguish too.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f")
_OTHERS: Final = "#b8b8b8"
_GREY: Final = "#5a5a5a"


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars over time, from one of ``edges`` to the next, each a stack of the same ``names``."""

    period: str
    edges: tuple[datetime, ...]
    names: tuple[str, ...]
    records: Mapping[str, Sequence[int]]
    bytes: Mapping[str, Sequence[int]]
    newest: datetime
    """The time of the newest record."""

    @property
    def is_last_whole(self) -> bool:
        """Whether the records reach the end of the last period: a bar of less looks like a decline."""
        began, ends = self.edges[-2:]
        return (self.newest - began) / (ends - began) >= _WHOLE


def bars_of(rows: Sequence[ReportRow], period: str) -> Bars:
    """The rows with a time as bars of one ``period``, or of a longer one: at most BARS_MAX."""
    timed = [(from_epoch_ms(row.period), row) for row in rows if row.period is not None]
    first, last = min(time for time, _ in timed), max(time for time, _ in timed)
    period, edges = _edges(first, last, period)
    names = _names(rows)
    place = {edge: number for number, edge in enumerate(edges)}
    records = {name: [0] * (len(edges) - 1) for name in dict.fromkeys(names.values())}
    sizes = {name: [0] * (len(edges) - 1) for name in records}
    for time, row in timed:
        at = place[_floor(time, period)]
        records[names[row.partition]][at] += row.records
        sizes[names[row.partition]][at] += row.bytes
    newest = from_epoch_ms(max(row.max_timestamp for row in rows if row.max_timestamp is not None))
    return Bars(period, tuple(edges), tuple(records), records, sizes, newest)


def _edges(first: datetime, last: datetime, period: str) -> tuple[str, list[datetime]]:
    """The shortest period, at least ``period``, that covers the time in at most BARS_MAX bars, and their edges."""
    edges = [_floor(first, period)]
    while edges[-1] <= last:
        if len(edges) > BARS_MAX and period != _PERIODS[-1]:
            return _edges(first, last, _PERIODS[_PERIODS.index(period) + 1])
        edges.append(_next(edges[-1], period))
    return period, edges


def _names(rows: Sequence[ReportRow]) -> dict[int | None, str]:
    """The name of each partition's series, in order; the largest partitions have one each."""
    totals = by_partition(rows)
    if not totals:
        return {None: "all partitions"}
    largest = sorted(totals, key=lambda partition: (-totals[partition].records, partition))
    own = set(largest if len(largest) <= SERIES_MAX else largest[: SERIES_MAX - 1])
    names: dict[int | None, str] = {partition: f"partition {partition}" for partition in totals if partition in own}
    return names | {p: f"{len(totals) - len(own)} others" for p in totals if p not in own}


def _floor(time: datetime, period: str) -> datetime:
    day = time.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "hour":
        return time.replace(minute=0, second=0, microsecond=0)
    if period == "week":
        return day - timedelta(days=day.weekday())
    if period == "month":
        return day.replace(day=1)
    return day.replace(month=1, day=1) if period == "year" else day


def _next(edge: datetime, period: str) -> datetime:
    if period == "hour":
        return edge + timedelta(hours=1)
    # a day within the next period, rounded down to its beginning
    return _floor(edge + timedelta(days={"day": 1, "week": 7, "month": 32, "year": 367}[period]), period)


# --- Drawing ----------------------------------------------------------------------------------------------------------


def draw(path: Path, topic: str, rows: Sequence[ReportRow], period: str, lags: Sequence[Lag] = ()) -> None:
    """Draw rows ``by`` a period, and by partition or not. The file is written atomically."""
    with mpl.rc_context({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "seglog"}):
        figure = Figure(figsize=(12, 7), dpi=150, layout="constrained")
        if any(row.period is not None for row in rows):
            _fill(figure, topic, rows, period, lags)
        else:
            figure.suptitle(f"{topic}: no records with a time")
        with whole_file(path.absolute()) as temporary:
            figure.savefig(temporary, format=path.suffix[1:])


def _fill(figure: Any, topic: str, rows: Sequence[ReportRow], period: str, lags: Sequence[Lag]) -> None:
    bars, total, partitions = bars_of(rows, period), merged(rows), by_partition(rows)
    has_side = len(partitions) > 1 or bool(lags)
    grid = figure.add_gridspec(2, 2 if has_side else 1, height_ratios=(3, 2), width_ratios=(4, 1) if has_side else (1,))
    upper = figure.add_subplot(grid[0, 0])
    lower = figure.add_subplot(grid[1, 0], sharex=upper)
    colours = _colours(bars.names)
    until = "" if bars.is_last_whole else f"; hatched: the last {bars.period}, to {bars.newest:%Y-%m-%d %H:%M}"
    _stack(upper, bars, bars.records, colours, f"records per {bars.period}{until}")
    _stack(lower, bars, bars.bytes, colours, f"bytes per {bars.period}")
    upper.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    lower.yaxis.set_major_formatter(ticker.EngFormatter(unit="B"))
    upper.tick_params(labelbottom=False)
    _dates(lower, bars)
    if has_side:
        _spread(figure.add_subplot(grid[:, 1]), partitions, lags, colours)
    began, ended = (from_epoch_ms(time or 0) for time in (total.min_timestamp, total.max_timestamp))
    keyless = f", {total.null_key_share:.1%} without a key" if total.null_keys else ""
    figure.suptitle(
        f"{topic}: {count_of(total.records, 'record')}, {size_of(total.bytes)} of keys and values{keyless}\n"
        f"{began:%Y-%m-%d %H:%M} to {ended:%Y-%m-%d %H:%M} UTC",
        x=0.01,
        ha="left",
        linespacing=1.5,
    )


def _colours(names: Sequence[str]) -> dict[str, str]:
    return {name: _OTHERS if name.endswith("others") else _COLOURS[number] for number, name in enumerate(names)}


def _stack(axes: Any, bars: Bars, heights: Mapping[str, Sequence[int]], colours: Mapping[str, str], title: str) -> None:
    left = dates.date2num(bars.edges[:-1])
    widths = [end - start for start, end in pairwise(dates.date2num(bars.edges))]
    bottom = [0] * len(widths)
    for name in bars.names:
        drawn = axes.bar(left, heights[name], widths, bottom, align="edge", color=colours[name])
        if not bars.is_last_whole:
            drawn[-1].set(hatch="////", edgecolor="white", linewidth=0)
        bottom = [below + height for below, height in zip(bottom, heights[name], strict=True)]
    axes.set_title(title, loc="left", fontsize=10, color=_GREY)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0, colors=_GREY)


def _dates(axes: Any, bars: Bars) -> None:
    locator = dates.AutoDateLocator(minticks=4, maxticks=12, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(bars.edges[0], bars.edges[-1])
    axes.tick_params(axis="x", colors=_GREY)


def _spread(axes: Any, partitions: Mapping[int, ReportRow], lags: Sequence[Lag], colours: Mapping[str, str]) -> None:
    """Draw each partition's records, share and lag, in its colour: the legend of the bars.

    Without counts by partition only the lag is drawn.
    """
    behind = {found.partition: found.lag for found in lags}
    numbers = sorted(partitions.keys() | behind.keys(), key=lambda p: -partitions[p].records if p in partitions else 0)
    shown = sorted(numbers[:_SPREAD_MAX])
    counts = [behind[p] if not partitions else partitions[p].records if p in partitions else 0 for p in shown]
    total = sum(row.records for row in partitions.values())
    places = range(len(shown))
    axes.barh(places, counts, color=[colours.get(f"partition {p}", _OTHERS) for p in shown], height=0.62)
    for place, partition, records in zip(places, shown, counts, strict=True):
        parts = [f"{records / total:.1%}"] if total else []
        parts += [f"lag {behind[partition]:,}"] if partition in behind else []
        words = " " + ", ".join(parts)
        axes.annotate(words, (records, place), va="center", fontsize=9, color=_GREY, annotation_clip=False)
    axes.set_yticks(places, [f"partition {p}" for p in shown])
    axes.set_ylim(max(len(shown), _SPREAD_MIN) - 0.4, -0.6)  # the first on top, and a few are no blocks
    axes.set_xlim(0, max(1, *counts) * (1.75 if behind else 1.35))
    axes.set_xticks([])
    is_part = len(shown) < len(numbers)
    what = "records" if partitions else "lag"
    title = f"largest {len(shown)} of {len(numbers)} partitions" if is_part else f"{what} per partition"
    axes.set_title(title, loc="left", fontsize=10, color=_GREY)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0, colors=_GREY)
