"""Tables for a terminal: rows in aligned columns, as wide as their cells or of given widths, whole or as a stream.

A table that is wider than the terminal keeps its first columns; the others stand below each row, with their titles.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

ROWS_BEFORE_WIDTHS: Final = 256
"""Rows of a stream that are held back to find the widths; a wider cell after them only shifts its own line."""


_GAP: Final = "  "
_FOLD: Final = "    "
"""Before what stands below a row."""


class Column(NamedTuple):
    """A heading; ``right`` aligns it and its cells, such as numbers, to the right.

    ``right`` None: each cell by itself, to the right if it begins with a digit.
    """

    title: str
    right: bool | None = False


def columns(*titles: str) -> tuple[Column, ...]:
    """Columns for the titles; ``>`` before one aligns its column to the right."""
    return tuple(Column(title.removeprefix(">"), title.startswith(">")) for title in titles)


def table_lines(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table that is nothing but its rows."""
    table = Table(columns)
    for cells in rows:
        yield from table.row(cells)
    yield from table.flush()


def titles_of(columns: Iterable[Column]) -> list[str]:
    """The cells of the line above the rows."""
    return [column.title for column in columns]


def widths_of(rows: Iterable[Sequence[str]]) -> list[int]:
    """The widths of columns that hold these rows, one of which may be that of the titles."""
    return [max(map(len, cells)) for cells in zip(*rows, strict=True)]


def columns_that_fit(widths: Sequence[int], width: int | None) -> int:
    """How many of the first columns stand side by side in ``width`` columns of a terminal; at least one.

    All of them where the width is None.
    """
    if width is None:
        return len(widths)
    ends = accumulate(widths, lambda end, next_width: end + len(_GAP) + next_width)
    return max(1, sum(end <= width for end in ends))


def row_lines(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], count: int, width: int | None
) -> Iterator[str]:
    """The line of a row with the first ``count`` columns, and lines below it with what the others have to say."""
    yield table_line(columns[:count], widths[:count], cells[:count])
    below = ""
    for column, cell in zip(columns[count:], cells[count:], strict=True):
        if not cell or cell == "-":
            continue
        named = f"{column.title} {cell}".lstrip()
        if below and width is not None and len(_FOLD) + len(below) + len(named) + len(", ,") > width:
            yield f"{_FOLD}{below},"
            below = ""
        below += f"{', ' if below else ''}{named}"
    if below:
        yield f"{_FOLD}{below}"


def table_line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], gap: str = _GAP) -> str:
    """One line of a table: the cells in columns of these widths. A cell that is wider shifts those after it."""
    return gap.join(
        cell.rjust(width) if column.right or (column.right is None and cell[:1].isdigit()) else cell.ljust(width)
        for cell, width, column in zip(cells, widths, columns, strict=True)
    ).rstrip()


class Table:
    """A stream of rows, and of lines between rows, as lines. The titles come before the first row.

    ``width``: that of the terminal, None for any.
    """

    def __init__(self, columns: Sequence[Column], indent: str = "", width: int | None = None) -> None:
        self._columns = columns
        self._indent = indent
        self._width = None if width is None else width - len(indent)
        self._count = len(columns)  # of columns side by side
        self._held: list[Sequence[str] | str] | None = []
        self._widths: list[int] = []

    def row(self, cells: Sequence[str]) -> Iterator[str]:
        """A cell for each column."""
        return self._take(cells)

    def between(self, line: str) -> Iterator[str]:
        """A line that is not a row, in its place among the rows."""
        return self._take(line)

    def flush(self) -> Iterator[str]:
        """The rows held back; the widths are fixed from here on."""
        if self._held is None:
            return
        held, self._held = self._held, None
        rows = [titles_of(self._columns), *(item for item in held if not isinstance(item, str))]
        self._widths = widths_of(rows)
        self._count = columns_that_fit(self._widths, self._width)
        if len(rows) > 1:
            first = self._count
            yield self._indent + table_line(self._columns[:first], self._widths[:first], rows[0][:first])
        for item in held:
            yield from self._lines(item)

    def _take(self, item: Sequence[str] | str) -> Iterator[str]:
        if self._held is None:
            yield from self._lines(item)
            return
        self._held.append(item)
        if len(self._held) >= ROWS_BEFORE_WIDTHS:
            yield from self.flush()

    def _lines(self, item: Sequence[str] | str) -> Iterator[str]:
        if isinstance(item, str):
            yield item
            return
        for line in row_lines(self._columns, self._widths, item, self._count, self._width):
            yield (self._indent + line).rstrip()
