"""Tables of the daemon's commands: aligned columns for a stream of rows, whose first ones decide the widths."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

ROWS_BEFORE_WIDTHS: Final = 256
"""Rows that are held back to find the widths; a wider cell after them only shifts its own line."""


class Column(NamedTuple):
    """A heading; ``right`` aligns its cells, such as numbers, to the right."""

    title: str
    right: bool = False


def columns(*titles: str) -> tuple[Column, ...]:
    """Columns for the titles; ``>`` before one aligns its column to the right."""
    return tuple(Column(title.removeprefix(">"), title.startswith(">")) for title in titles)


def table_lines(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table that is nothing but its rows."""
    table = Table(columns)
    for cells in rows:
        yield from table.row(cells)
    yield from table.flush()


class Table:
    """Formats rows, and lines between rows, as lines."""

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
        rows = [[column.title for column in self._columns], *(item for item in held if not isinstance(item, str))]
        self._widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
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
        aligned = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(cells, self._widths, self._columns, strict=True)
        )
        return (self._indent + "  ".join(aligned)).rstrip()
