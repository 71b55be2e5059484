"""Cells in columns, as lines of one width."""

from collections.abc import Sequence
from itertools import zip_longest

from seglog_protocol.tables import Column, table_line, widths_of


def in_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The titles, empty if there are none, then the rows; cells that begin with a digit are aligned to the right."""
    count = max([len(titles), *map(len, rows)])
    columns = [Column(title, right=None) for title, _ in zip_longest(titles, range(count), fillvalue="")]
    texts = [[*cells, *[""] * (count - len(cells))] for cells in (titles, *rows)]
    widths = widths_of(texts)
    lines = [table_line(columns, widths, cells) for cells in texts]
    width = max(map(len, lines))
    return [line.ljust(width) for line in lines]
