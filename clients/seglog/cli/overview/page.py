"""The page, drawn by rich: figures in as many columns as there is room for, problems, topics and groups.

Everything that others have named is shown as text, never read as markup, and escaped where it would not print.
"""

import io
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.styled import Styled
from rich.table import Table
from rich.text import Text

from seglog.cli.figures import NONE, bytes_text, count_text, percent_text, rate_text, seconds_text
from seglog.cli.overview.readings import GroupRow, Numbers, Reading, TopicRow, group_rows, topic_rows
from seglog.core.errors import count_of
from seglog_protocol.messages import HelloReply, MetricFamily
from seglog_protocol.texts import printable, shortened

PROBLEMS_SHOWN_MAX: Final = 5
LOSS_SECONDS_WARNED: Final = 3600.0
FULL_SECONDS_WARNED: Final = 24 * 3600.0
TURN_SECONDS_WARNED: Final = 0.1
NOT_DURABLE_SECONDS_WARNED: Final = 30.0
"""Where figures become yellow, or rows red."""
SIDE_BY_SIDE_WIDTH: Final = 150
"""From this width on groups stand beside topics."""
NAME_WIDTH_MIN: Final = 16
"""Of the name of a topic or group; where there is less room, or the longest is shorter, columns are left out."""
ROWS_MIN: Final = 3
ROWS_ELSEWHERE: Final = 20
"""Rows of a table where the height is nobody's: in a pipe."""

_GAP: Final = 2
"""Between columns of a table."""
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
    age: float = 0.0
    """Seconds since ``now`` was told, where there is trouble."""


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


def families() -> Sequence[str]:
    """The names of all families that the page shows: it looks them up, also where there are none."""
    asked = _Asked()
    page_of(View("", Reading(0.0, 0.0, HelloReply("", "", {}, {}), asked)), SIDE_BY_SIDE_WIDTH, None)
    return list(asked.names)


class _Asked(dict[str, MetricFamily]):
    """No families, and the names that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def get(self, name: str, *_: object) -> None:  # type: ignore[override]
        """Note the name."""
        self.names[name] = None


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
    told = Group("", _grid(figures, width), "", tables)
    return Group(*head, Styled(told, "dim") if view.trouble else told)


# --- The head ---------------------------------------------------------------------------------------------------------


def _title(view: View, numbers: Numbers, width: int) -> Text:
    hello = view.now.hello
    left = f"{printable(hello.broker)} at {printable(view.server)}"
    if view.trouble:
        return Text(f"{left}, away", style="bold", no_wrap=True)
    left += f", up {seconds_text(numbers.value('seglog_uptime_seconds'))}"
    right = _moment(view)
    return Text(f"{left}{right.rjust(max(2 + len(right), width - len(left)))}", style="bold", no_wrap=True)


def _moment(view: View) -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime(view.now.wall))


def _troubles(view: View) -> list[Text]:
    lines = []
    if view.trouble:
        lines.append(Text(f"no answer: {printable(view.trouble)}", style=_RED))
        lines.append(Text(f"what follows is of {_moment(view)}, {seconds_text(view.age)} old", style=_YELLOW))
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
        Figure("append p99", _durations(n, "seglog_request_duration_seconds", {"append", "Produce"})),
        Figure("fetch p99", _durations(n, "seglog_request_duration_seconds", {"fetch", "Fetch"})),
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
        *_transactions(n),
    ]  # fmt: skip


def _transactions(n: Numbers) -> list[Figure]:
    """Nothing where none is open."""
    hanging, held_up = n.value("seglog_transactions_hanging"), n.value("seglog_transactions_held_up")
    count, oldest = n.value("seglog_transactions_open"), n.value("seglog_transaction_oldest_seconds")
    if hanging or held_up:
        stuck = ((hanging, "hanging"), (held_up, "held up"))
        return [Figure("transactions", ", ".join(f"{count_text(count)} {how}" for count, how in stuck if count), _RED)]
    return [Figure("transactions", f"{count_text(count)} open, oldest {seconds_text(oldest)}")] if count else []


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
    states = {state: values[0][1] for state, values in n.by("seglog_partitions", "state").items() if values[0][1]}
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


class _Column(NamedTuple):
    """A column of numbers. The one of the highest ``spare`` is left out first where names would have no room."""

    title: str
    cells: Sequence[str]
    spare: int

    @property
    def width(self) -> int:
        """With the gap behind it."""
        return max(map(len, (self.title, *self.cells))) + _GAP


def _table(
    title: str, names: Sequence[str], columns: Sequence[_Column], width: int, styles: Sequence[str] = ()
) -> Table:
    """Names, as long as there is room for, and behind them the columns that leave it; numbers are never cut."""
    wanted = min(NAME_WIDTH_MIN, max(map(len, (title, *names)))) + _GAP
    kept = list(columns)
    while kept and sum(column.width for column in kept) + wanted > width:
        kept.remove(max(kept, key=lambda column: column.spare))
    room = max(1, width - _GAP - sum(column.width for column in kept))
    table = Table(box=None, padding=(0, _GAP, 0, 0), collapse_padding=True, width=width, header_style="bold")
    table.add_column(shortened(title, room), justify="left", no_wrap=True, ratio=1)
    for column in kept:
        table.add_column(column.title, justify="right", no_wrap=True)
    most = min(room, max(NAME_WIDTH_MIN, width // 2))
    for place, name in enumerate(names):
        cells = [column.cells[place] for column in kept]
        table.add_row(Text(shortened(name, most)), *cells, style=styles[place] if styles else None)
    return table


def _topics(rows: Sequence[TopicRow], width: int, most: int, left_out: float) -> Table:
    shown = rows[:most]
    return _table(
        f"TOPIC ({len(rows) + int(left_out):,})",
        [printable(row.name) for row in shown],
        [
            _Column("PARTS", [str(row.partitions) for row in shown], 4),
            _Column("SIZE", [bytes_text(row.size) for row in shown], 2),
            _Column("RECORDS/S", [rate_text(row.rate).removesuffix("/s") for row in shown], 1),
            _Column("RECORDS", [count_text(row.records) for row in shown], 5),
            _Column("NOT ON DISK", [count_text(row.not_durable) if row.not_durable else NONE for row in shown], 3),
        ],
        width,
    )


def _groups(rows: Sequence[GroupRow], width: int, most: int, left_out: float) -> Table:
    shown = rows[: max(ROWS_MIN, most)]
    of_queues = [
        _Column("DONE/S", [rate_text(row.rate).removesuffix("/s") for row in shown], 6),
        _Column("IN FLIGHT", [count_text(row.in_flight) for row in shown], 7),
    ]
    return _table(
        f"GROUP ({len(rows) + int(left_out):,})",
        [printable(row.name) for row in shown],
        [
            _Column("STATE", [printable(row.state) or NONE for row in shown], 5),
            _Column("MEMBERS", [str(row.members) for row in shown], 4),
            _Column("LAG", [count_text(row.lag) for row in shown], 1),
            _Column("BEHIND", [seconds_text(row.behind) for row in shown], 3),
            _Column("LOSS IN", [seconds_text(row.to_loss) for row in shown], 2),
            *(of_queues if any(row.in_flight is not None for row in shown) else ()),
        ],
        width,
        [_RED if row.lag and row.to_loss is not None and row.to_loss < LOSS_SECONDS_WARNED else "" for row in shown],
    )
