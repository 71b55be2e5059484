"""Facts as text: headings, aligned tables, damage and notes between rows, findings with advice. Times are UTC."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from seglog_broker.inspect import facts as f
from seglog_protocol.tables import Table
from seglog_protocol.texts import printable

_RECORD_INDENT: Final = " " * 12


def readable(facts: Iterable[f.Fact], width: int | None = None) -> Iterator[str]:
    """Lines without their newlines, in ``width`` columns (None: any).

    Streamed, except that the first rows of a table wait until its widths are known.
    """
    for line in _Writer(width).lines(facts):
        if width is None or len(line) <= width:
            yield line
        else:
            indent = " " * (len(line) - len(line.lstrip()) + 2)
            yield from textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )


class _Writer:
    def __init__(self, width: int | None) -> None:
        self._width = width
        self._table: Table | None = None
        self._table_of: type[f.Fact] | None = None
        self._path = ""  # what the last heading named
        self._indent = ""
        self._is_first = True

    def lines(self, facts: Iterable[f.Fact]) -> Iterator[str]:
        for fact in facts:
            if fact.table:
                yield from self._row(fact)
            elif isinstance(fact, f.Damage | f.Note):
                below = f"{self._path}/" if self._path else ""  # before the first heading the whole path is shown
                where = "" if fact.path == self._path else f"{printable(fact.path.removeprefix(below))}: "
                yield from self._between(self._indent + ("  " if self._table else "") + fact.remark(where))
            elif isinstance(fact, f.RecordFound):
                yield from (line for text in fact.lines() for line in self._between(_RECORD_INDENT + text))
            elif isinstance(fact, f.FileFound | f.LogDirectoryFound | f.PartitionFound):
                yield from self._heading(fact)
            else:
                yield from self._end_table()
                yield from (self._indent + line for line in fact.lines())
        yield from self._end_table()

    def _row(self, fact: f.Fact) -> Iterator[str]:
        indent = "  " if fact.title else ""
        if self._table is None or self._table_of is not type(fact):
            yield from self._end_table()
            self._table, self._table_of = Table(fact.table, self._indent + indent, self._width), type(fact)
            if fact.title:
                yield ""
                yield self._indent + fact.title
        yield from self._table.row(fact.row())

    def _between(self, line: str) -> Iterator[str]:
        if self._table is None:
            yield line
        else:
            yield from self._table.between(line)

    def _end_table(self) -> Iterator[str]:
        if self._table is not None:
            yield from self._table.flush()
            self._table = self._table_of = None

    def _heading(self, fact: f.FileFound | f.LogDirectoryFound | f.PartitionFound) -> Iterator[str]:
        yield from self._end_table()
        if not self._is_first:
            yield ""
        self._is_first = False
        self._path, self._indent = fact.path, "  " if isinstance(fact, f.PartitionFound) else ""
        yield from fact.lines()
