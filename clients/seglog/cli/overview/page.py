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

from seglog.cli.figures import NONE, bytes_text, count_text, rate_text, seconds_text
from seglog.cli.overview.headline import RED, YELLOW, Figure, figures_of
from seglog.cli.overview.readings import GroupRow, Numbers, Reading, TopicRow, families_of, group_rows, topic_rows
from seglog_protocol.texts import printable, shortened

PROBLEMS_SHOWN_MAX: Final = 5
LOSS_SECONDS_WARNED: Final = 3600.0
"""Where rows become red."""
SIDE_BY_SIDE_WIDTH: Final = 150
"""From this width on groups stand beside topics."""
NAME_WIDTH_MIN: Final = 16
"""Of the name of a topic or group; where there is less room, or the longest is shorter, columns are left out."""
ROWS_MIN: Final = 3
ROWS_ELSEWHERE: Final = 20
"""Rows of a table where the height is nobody's: in a pipe."""

_GAP: Final = 2
"""Between columns of a table."""


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
    return families_of(lambda reading: page_of(View("", reading), SIDE_BY_SIDE_WIDTH, None))


def page_of(view: View, width: int, height: int | None) -> RenderableType:
    """The whole page."""
    numbers = Numbers(view.now, view.before)
    head = [_title(view, numbers, width), *_troubles(view)]
    figures = figures_of(numbers)
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
        lines.append(Text(f"no answer: {printable(view.trouble)}", style=RED))
        lines.append(Text(f"what follows is of {_moment(view)}, {seconds_text(view.age)} old", style=YELLOW))
    problems = view.now.hello.problems
    lines += [Text(f"problem: {printable(problem)}", style=RED) for problem in problems[:PROBLEMS_SHOWN_MAX]]
    if len(problems) > PROBLEMS_SHOWN_MAX:
        lines.append(Text(f"{len(problems) - PROBLEMS_SHOWN_MAX} more problems: seglog ping", style=RED))
    return lines


# --- Figures ----------------------------------------------------------------------------------------------------------

_FIGURE_WIDTH: Final = 38
_LABEL_WIDTH: Final = 12


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
        [RED if row.lag and row.to_loss is not None and row.to_loss < LOSS_SECONDS_WARNED else "" for row in shown],
    )
