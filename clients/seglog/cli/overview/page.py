"""The page, drawn by rich: figures in as many columns as there is room for, problems, topics and groups.

Everything that others have named is shown as text, never read as markup, and escaped where it would not print.
"""

import io
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from seglog.cli.figures import NONE, bytes_text, count_text, percent_text, rate_text, seconds_text
from seglog.cli.overview.readings import Numbers, Reading
from seglog.cli.overview.rows import GroupRow, TopicRow, group_rows, topic_rows
from seglog.core.errors import count_of
from seglog_protocol.texts import printable, shortened

PROBLEMS_SHOWN_MAX: Final = 5
LOSS_SECONDS_WARNED: Final = 3600.0
FULL_SECONDS_WARNED: Final = 24 * 3600.0
TURN_SECONDS_WARNED: Final = 0.1
NOT_DURABLE_SECONDS_WARNED: Final = 30.0
"""Where figures become yellow, or rows red."""
SIDE_BY_SIDE_WIDTH: Final = 150
"""From this width on groups stand beside topics."""
ROWS_MIN: Final = 3
ROWS_ELSEWHERE: Final = 20
"""Rows of a table where the height is nobody's: in a pipe."""

_RED: Final = "bold red"
_YELLOW: Final = "yellow"


class Figure(NamedTuple):
    """A label, its value, and how it is to be seen."""

    label: str
    value: str
    style: str = ""


class View(NamedTuple):
    """What is shown: the last reading and the one before, and why there is no newer one."""

    server: str
    now: Reading
    before: Reading | None = None
    trouble: str = ""


def lines_of(view: View, width: int, height: int | None, *, colours: bool) -> list[str]:
    """The lines of the page for a terminal of this size; ``height`` None for any."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colours,
        color_system="standard" if colours else None,
        no_color=not colours,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(page_of(view, width, height))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return lines if height is None else lines[:height]


def page_of(view: View, width: int, height: int | None) -> RenderableType:
    """The whole page."""
    numbers = Numbers(view.now, view.before)
    head = [_title(view, numbers, width), *_troubles(view)]
    figures = _figures(numbers)
    per_row = max(1, width // _FIGURE_WIDTH)
    used = sum(-(-len(line) // width) for line in head) + -(-len(figures) // per_row) + 2
    rows = ROWS_ELSEWHERE if height is None else max(2 * ROWS_MIN, height - used - 3)
    topics, groups = topic_rows(numbers), group_rows(numbers)
    left = numbers.value("seglog_topics_left_out") or 0, numbers.value("seglog_groups_left_out") or 0
    tables: RenderableType
    if width >= SIDE_BY_SIDE_WIDTH:
        half = (width - 2) // 2
        tables = Table.grid(padding=(0, 2, 0, 0))
        tables.add_column(width=half)
        tables.add_column(width=width - half - 2)
        rows = rows if height is None else rows + 2
        tables.add_row(_topics(topics, half, rows, left[0]), _groups(groups, half, rows, left[1]))
    else:
        for_groups = min(len(groups), max(ROWS_MIN, rows // 2))
        for_topics = rows if height is None else max(ROWS_MIN, rows - for_groups)
        tables = Group(
            _topics(topics, width, for_topics, left[0]),
            "",
            _groups(groups, width, rows if height is None else rows - min(len(topics), for_topics), left[1]),
        )
    return Group(*head, "", _grid(figures, width), "", tables)


# --- The head ---------------------------------------------------------------------------------------------------------


def _title(view: View, numbers: Numbers, width: int) -> Text:
    hello = view.now.hello
    up = seconds_text(numbers.value("seglog_uptime_seconds"))
    left = f"{printable(hello.broker)} at {printable(view.server)}, up {up}"
    right = time.strftime("%H:%M:%SZ", time.gmtime(view.now.wall))
    return Text(f"{left}{right.rjust(max(2 + len(right), width - len(left)))}", style="bold", no_wrap=True)


def _troubles(view: View) -> list[Text]:
    lines = [Text(f"no answer: {printable(view.trouble)}", style=_RED)] if view.trouble else []
    problems = view.now.hello.problems
    lines += [Text(f"problem: {printable(problem)}", style=_RED) for problem in problems[:PROBLEMS_SHOWN_MAX]]
    if len(problems) > PROBLEMS_SHOWN_MAX:
        lines.append(Text(f"{len(problems) - PROBLEMS_SHOWN_MAX} more problems: seglog ping", style=_RED))
    return lines


# --- Figures ----------------------------------------------------------------------------------------------------------

_FIGURE_WIDTH: Final = 38
_LABEL_WIDTH: Final = 12


def _figures(n: Numbers) -> list[Figure]:
    """In the order in which they are read: what comes in and goes out, how fast, how safe, how full."""
    errors = n.rate("seglog_request_errors_total")
    busy = n.rate("seglog_loop_busy_seconds_total")
    turn = n.value("seglog_loop_longest_turn_seconds")
    undurable = n.value("seglog_not_durable_seconds")
    return [
        Figure("appends", f"{rate_text(n.rate('seglog_append_bytes_total'), 'B')}, "
               f"{rate_text(n.rate('seglog_append_batches_total'))}"),
        Figure("fetches", f"{rate_text(n.rate('seglog_fetch_bytes_total'), 'B')}, "
               f"{count_text(n.value('seglog_fetches_waiting'))} waiting"),
        Figure("requests", f"{rate_text(n.rate('seglog_requests_total'))}, {rate_text(errors)} errors",
               _YELLOW if errors else ""),
        Figure("append p99", _quantiles(n, {"append", "Produce"})),
        Figure("fetch p99", _quantiles(n, {"fetch", "Fetch"})),
        Figure("fsync p99", _durations(n, "seglog_fsync_duration_seconds")),
        Figure("not on disk", f"{bytes_text(n.value('seglog_not_durable_bytes'))}, {seconds_text(undurable)}",
               _YELLOW if (undurable or 0) > NOT_DURABLE_SECONDS_WARNED else ""),
        Figure("loop busy", f"{percent_text(busy)}, longest turn {seconds_text(turn)}",
               _YELLOW if (turn or 0) > TURN_SECONDS_WARNED else ""),
        _disk(n),
        _share("connections", n.total("seglog_connections"), n.value("seglog_connections_limit")),
        _share("open files", n.value("seglog_open_files"), n.value("seglog_open_files_limit")),
        _memory(n),
        _partitions(n),
        Figure("next expiry", f"in {seconds_text(n.value('seglog_retention_next_loss_seconds'))}".replace("in -", NONE)
               .replace("in never", "never")),
        *_recovery(n),
        Figure("damage", count_text(n.value("seglog_damaged_ranges")),
               _RED if n.value("seglog_damaged_ranges") else ""),
    ]  # fmt: skip


def _quantiles(n: Numbers, apis: set[str]) -> str:
    return _durations(n, "seglog_request_duration_seconds", apis)


def _durations(n: Numbers, name: str, apis: set[str] | None = None) -> str:
    def wanted(labels: Sequence[str]) -> bool:
        return apis is None or labels[-1] in apis

    return f"{seconds_text(n.quantile(name, 0.99, wanted))} (p50 {seconds_text(n.quantile(name, 0.5, wanted))})"


def _disk(n: Numbers) -> Figure:
    free, size = n.value("seglog_disk_free_bytes"), n.value("seglog_disk_size_bytes")
    until = n.value("seglog_disk_full_in_seconds")
    if n.value("seglog_disk_full"):
        return Figure("disk", f"FULL, {bytes_text(free)} free", _RED)
    text = f"{bytes_text(free)} free of {bytes_text(size)}"
    if until is None or until == float("inf"):
        return Figure("disk", text)
    return Figure("disk full in", f"{seconds_text(until)}, {text}", _YELLOW if until < FULL_SECONDS_WARNED else "")


def _memory(n: Numbers) -> Figure:
    used, most = n.value("seglog_request_memory_bytes"), n.value("seglog_request_memory_limit_bytes")
    return Figure("memory", f"{bytes_text(used)} of {bytes_text(most)} for requests", _full(used, most))


def _share(label: str, used: float | None, most: float | None) -> Figure:
    return Figure(label, f"{count_text(used)} of {count_text(most)}", _full(used, most))


def _full(used: float | None, most: float | None) -> str:
    return _YELLOW if used and most and used > 0.9 * most else ""


def _partitions(n: Numbers) -> Figure:
    values = [pair for found in n.by("seglog_partitions", "state").values() for pair in found]
    states = {labels[0]: value for labels, value in values if value}
    serving = int(states.pop("serving", 0))
    others = ", ".join(f"{count_text(count)} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    topics = count_of(int(n.value("seglog_topics") or 0), "topic")
    if others:
        return Figure("partitions", others, _RED)
    return Figure("partitions", f"{serving:,} in {topics}")


def _recovery(n: Numbers) -> list[Figure]:
    """Nothing where there is none under way."""
    ratio = n.value("seglog_recovery_ratio")
    return [] if ratio is None or ratio >= 1 else [Figure("recovered", percent_text(ratio), _YELLOW)]


def _grid(figures: Sequence[Figure], width: int) -> Columns:
    cells = [
        Text.assemble(
            (f"{figure.label:<{_LABEL_WIDTH}} ", "dim"), (figure.value, figure.style), no_wrap=True, overflow="crop"
        )
        for figure in figures
    ]
    per_row = max(1, width // _FIGURE_WIDTH)
    return Columns(cells, width=max(1, width // per_row - 1), padding=(0, 1, 0, 0))


# --- Tables -----------------------------------------------------------------------------------------------------------


def _table(width: int, *titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), collapse_padding=True, width=width, header_style="bold")
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if not place else "right", no_wrap=True, ratio=None if place else 1)
    return table


def _name(name: str, width: int) -> Text:
    return Text(shortened(printable(name), max(16, width // 2)), overflow="crop")


def _topics(rows: Sequence[TopicRow], width: int, most: int, left_out: float) -> Table:
    table = _table(
        width, f"TOPIC ({len(rows) + int(left_out):,})", "PARTS", "SIZE", "RECORDS/S", "RECORDS", "NOT ON DISK"
    )
    for row in rows[:most]:
        table.add_row(
            _name(row.name, width),
            str(row.partitions),
            bytes_text(row.size),
            rate_text(row.rate).removesuffix("/s"),
            count_text(row.records),
            count_text(row.not_durable) if row.not_durable else NONE,
        )
    return table


def _groups(rows: Sequence[GroupRow], width: int, most: int, left_out: float) -> Table:
    table = _table(width, f"GROUP ({len(rows) + int(left_out):,})", "STATE", "MEMBERS", "LAG", "BEHIND", "LOSS IN")
    for row in rows[: max(ROWS_MIN, most)]:
        is_losing = row.to_loss is not None and row.to_loss < LOSS_SECONDS_WARNED and bool(row.lag)
        table.add_row(
            _name(row.name, width),
            printable(row.state) or NONE,
            str(row.members),
            count_text(row.lag),
            seconds_text(row.behind),
            seconds_text(row.to_loss),
            style=_RED if is_losing else "",
        )
    return table
