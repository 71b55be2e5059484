"""Tables for a terminal: rows in columns, and lines behind a label that are wrapped beside it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from seglog.cli.terminal import columns_of_terminal, print_line
from seglog_protocol.tables import Column, columns_that_fit, row_lines, table_line, titles_of, widths_of
from seglog_protocol.texts import printable, shortened

NAME_MAX: Final = 64
"""How wide a name that others chose may be in a column: one long name would widen every row."""


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print what ``aligned`` gives, on a terminal in its width."""
    print_lines(aligned(titles, rows, width=columns_of_terminal()))


def print_lines(lines: Iterable[str]) -> None:
    """Print the lines of a table, of which the first one has the titles."""
    style = {"bold": True}
    for line in lines:
        print_line(line, **style)
        style = {}


def aligned(titles: Sequence[str], rows: Iterable[Sequence[Any]], *, width: int | None = None) -> Iterator[str]:
    """The lines of a table, titles first: columns as wide as they need to be, numbers to the right.

    ``>`` before a title aligns its whole column to the right. What would not print is escaped. Columns for which a
    terminal of ``width`` columns has no room stand below each row.
    """
    columns = [Column(title.removeprefix(">"), right=title.startswith(">") or None) for title in titles]
    texts = [
        titles_of(columns),
        *([f"{cell:,}" if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in rows),
    ]
    widths = widths_of(texts)
    count = columns_that_fit(widths, width)
    yield table_line(columns[:count], widths[:count], texts[0][:count])
    for row in texts[1:]:
        yield from row_lines(columns, widths, row, count, width)


def named(text: str) -> str:
    """A name that others chose as a cell: printable, and not wider than ``NAME_MAX``."""
    return shortened(printable(text), NAME_MAX)


def labelled(
    lines: Iterable[tuple[str, str]], *, indent: int = 2, label_width: int = 9, width: int | None = None
) -> Iterator[str]:
    """Lines of a label and a text each; a text that is wider than ``width`` columns goes on below itself.

    A word that is wider than that stays whole. ``width`` None: nothing is wrapped. What would not print is escaped.
    """
    for label, text in ((label, printable(text)) for label, text in lines):
        head = " " * indent + f"{label.ljust(label_width)}{' ' if len(label) >= label_width else ''}"
        yield from [head + text] if width is None else wrapped(text, width, head=head)


def wrapped(text: str, width: int, *, head: str = "") -> list[str]:
    """``text`` behind ``head``, on lines of at most ``width`` columns; those after the first are indented as it is.

    What would not print is escaped.
    """
    import textwrap

    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=head,
        subsequent_indent=" " * (len(head) or 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
