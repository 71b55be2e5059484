"""Tables for a terminal: rows in aligned columns, as wide as their cells or of given widths, whole or as a stream."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

ROWS_BEFORE_WIDTHS: Final = 256
"""Rows of a stream that are held back to find the widths; a wider cell after them only shifts its own line."""


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


def table_line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], gap: str = "  ") -> str:
    """One line of a table: the cells in columns of these widths. A cell that is wider shifts those after it."""
    return gap.join(
        cell.rjust(width) if column.right or (column.right is None and cell[:1].isdigit()) else cell.ljust(width)
        for cell, width, column in zip(cells, widths, columns, strict=True)
    ).rstrip()


class Table:
    """A stream of rows, and of lines between rows, as lines. The titles come before the first row."""

    def __init__(self, columns: Sequence[Column], indent: str = "") -> None:
        self._columns = columns
        self._indent = indent
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
        if len(rows) > 1:
            yield self._line(rows[0])
        for item in held:
            yield item if isinstance(item, str) else self._line(item)

    def _take(self, item: Sequence[str] | str) -> Iterator[str]:
        if self._held is None:
            yield item if isinstance(item, str) else self._line(item)
            return
        self._held.append(item)
        if len(self._held) >= ROWS_BEFORE_WIDTHS:
            yield from self.flush()

    def _line(self, cells: Sequence[str]) -> str:
        return (self._indent + table_line(self._columns, self._widths, cells)).rstrip()
