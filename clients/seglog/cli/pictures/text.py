"""A picture as lines of text, none wider than the terminal, with box characters or in ASCII."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

import click

from seglog.cli.pictures.model import LEFT_OUT, Kind, Mark, Picture, Row, Span, Strip
from seglog_protocol.tables import Column, table_line, widths_of

WIDTH_MIN: Final = 40
"""Columns that a picture takes even where there are fewer."""
_BAR_MIN: Final = 12
_TICK_COLUMNS: Final = 12
_GAP: Final = "  "


class Glyphs(NamedTuple):
    """The characters of a picture: of each kind, of the scale and its breaks, and what stands for what is left out."""

    kinds: dict[Kind, str]
    line: str
    tick: str
    broken: str
    ellipsis: str


BOXES: Final = Glyphs({kind: kind.box for kind in Kind}, line="─", tick="┴", broken="≈", ellipsis="…")
ASCII: Final = Glyphs({kind: kind.ascii for kind in Kind}, line="-", tick="+", broken="/", ellipsis="...")
_COLOURS: Final = {"violet": "magenta", "ink": "cyan", "line": None}
"""A terminal's names for colours that it calls otherwise, or does not give to what is drawn."""


def glyphs_for(encoding: str | None) -> Glyphs:
    """Box characters where the encoding has them all."""
    every = "".join((*BOXES.kinds.values(), *BOXES[1:]))
    try:
        every.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOXES


def lines_of(picture: Picture, width: int, glyphs: Glyphs = BOXES, *, colours: bool = False) -> list[str]:
    """The lines; with ``colours`` they have escape sequences for a terminal, which take no room."""
    return list(_Text(max(width, WIDTH_MIN), glyphs, colours=colours).lines(picture))


class _Part(NamedTuple):
    """A piece of a line, in the colour of its kind."""

    text: str
    kind: Kind | None = None


class _Text:
    """Draws one picture."""

    def __init__(self, width: int, glyphs: Glyphs, *, colours: bool) -> None:
        self._width = width
        self._glyphs = glyphs
        self._colours = colours

    def lines(self, picture: Picture) -> Iterator[str]:
        """All of them."""
        yield from self._wrapped(picture.title)
        for fact in picture.facts:
            yield from self._wrapped(fact, "  ")
        for strip in picture.strips:
            yield ""
            yield from self._strip(strip)
        if picture.kinds:
            yield ""
            yield from self._legend(picture.kinds)
        if picture.is_broken:
            yield from self._wrapped(f"{self._glyphs.broken} {LEFT_OUT}")

    def _wrapped(self, text: str, indent: str = "") -> list[str]:
        return textwrap.wrap(text, self._width, initial_indent=indent, subsequent_indent=indent)

    def _line(self, *parts: _Part) -> str:
        """The parts, side by side, cut at the width."""
        left, texts = self._width, []
        for text, kind in parts:
            shown = text[:left]
            left -= len(shown)
            colour = _COLOURS.get(kind.colour, kind.colour) if self._colours and kind is not None else None
            texts.append(click.style(shown, fg=colour) if colour and shown else shown)
        return "".join(texts) if texts and texts[-1].endswith("\x1b[0m") else "".join(texts).rstrip()

    def _legend(self, kinds: Iterable[Kind]) -> Iterator[str]:
        parts: list[_Part] = []
        used = 0
        for kind in kinds:
            text = f" {kind.sentence}"
            if used and used + len(text) + 1 > self._width:
                yield self._line(*parts)
                parts, used = [], 0
            parts += [_Part(self._glyphs.kinds[kind], kind), _Part(f"{text}   ")]
            used += len(text) + 4
        yield self._line(*parts)

    # --- Strips

    def _strip(self, strip: Strip) -> Iterator[str]:
        yield from self._wrapped(strip.title)
        labels = _in_columns(strip.label_titles, [row.label for row in strip.rows if not row.note])
        details = _in_columns(strip.detail_titles, [row.details for row in strip.rows if not row.note])
        indent = len(labels[0]) + len(_GAP) if labels[0] or any(labels) else 0
        beside = self._width - indent - len(_GAP) - max(map(len, details))
        columns = max(_BAR_MIN, beside if beside >= strip.room else self._width - indent)
        tails = [f"{_GAP}{text}" for text in details] if beside >= strip.room else [""] * len(details)
        lines, axis = self._scale(strip, columns)
        for line in lines:
            yield self._line(_Part(" " * indent + line))
        yield self._line(_Part(labels[0].ljust(indent) + axis), _Part(tails[0]))
        number = 0
        for row in strip.rows:
            if row.note:
                yield self._line(_Part(f"{self._glyphs.ellipsis} {row.note}"))
                continue
            number += 1
            bar = _bar(row, strip.guides, columns, self._glyphs)
            yield self._line(_Part(labels[number].ljust(indent)), *bar, _Part(tails[number]))
        if beside < strip.room and number:
            yield ""
            yield from self._table(strip)
        if strip.after:
            yield ""
        for sentence in strip.after:
            yield from self._wrapped(sentence)

    def _scale(self, strip: Strip, columns: int) -> tuple[list[str], str]:
        """What stands above the axis, and the axis."""
        above, values = [[" "] * columns, [" "] * columns], [" "] * columns
        for at, kind, name, _ in strip.guides:
            column, text = _column(at, columns), name or kind.sentence
            any(_write(line, start, text) for line in above for start in (column, column - len(text) + 1))
        axis = [self._glyphs.line] * columns
        for at, text in strip.scale.ticks(columns // _TICK_COLUMNS):
            column = _column(at, columns)
            if _write(values, column, text):
                axis[column] = self._glyphs.tick
        for at in strip.scale.breaks:
            axis[_column(at, columns)] = self._glyphs.broken
        for at, kind, *_ in strip.guides:
            axis[_column(at, columns)] = self._glyphs.kinds[kind]
        lines = ["".join(line) for line in (*above[::-1], values)]
        return [line for line in lines if not line.isspace()], "".join(axis)

    def _table(self, strip: Strip) -> Iterator[str]:
        """Labels and details of the rows, without what is spare if there is no room for it."""
        rows = [(*row.label[:1], *row.details) for row in strip.rows if not row.note]
        titles = (*strip.label_titles[:1], *strip.detail_titles)
        first = len(titles) - len(strip.detail_titles)
        dropped: set[int] = set()
        spare = iter(strip.spare)
        lines = _in_columns(titles, rows)
        while len(lines[0]) > self._width and (number := next(spare, None)) is not None:
            dropped.add(number + first)
            lines = _in_columns(_without(titles, dropped), [_without(row, dropped) for row in rows])
        following = iter(lines)
        yield self._line(_Part(next(following)))
        for row in strip.rows:
            yield self._line(_Part(f"{self._glyphs.ellipsis} {row.note}" if row.note else next(following)))


def _in_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The titles, empty if there are none, then the rows; cells that begin with a digit are aligned to the right."""
    count = max([len(titles), *map(len, rows)])
    columns = [Column(title, right=None) for title, _ in zip_longest(titles, range(count), fillvalue="")]
    texts = [[*cells, *[""] * (count - len(cells))] for cells in (titles, *rows)]
    widths = widths_of(texts)
    lines = [table_line(columns, widths, cells) for cells in texts]
    width = max(map(len, lines))
    return [line.ljust(width) for line in lines]


def _without(cells: Sequence[str], dropped: set[int]) -> list[str]:
    return [cell for number, cell in enumerate(cells) if number not in dropped]


def _column(at: float, columns: int) -> int:
    return min(columns - 1, max(0, int(at * (columns - 1) + 0.5)))


def _write(line: list[str], start: int, text: str) -> bool:
    """Write ``text``, if it fits and stays apart from what is there."""
    end = start + len(text)
    if start < 0 or end > len(line) or any(cell != " " for cell in line[max(0, start - 1) : end + 1]):
        return False
    line[start:end] = text
    return True


def _bar(row: Row, guides: Iterable[Mark], columns: int, glyphs: Glyphs) -> list[_Part]:
    """A part for each column."""
    bar = [_Part(" ")] * columns
    for at, kind, *_ in guides:
        bar[_column(at, columns)] = _Part(glyphs.kinds[kind], kind)
    end = 0
    thin = set()  # columns of spans that have no other
    for (start, behind), span in zip(_extents(row.spans, columns - 1), row.spans, strict=True):
        end = behind
        bar[start:end] = [_Part(glyphs.kinds[span.kind], span.kind)] * (end - start)
        if end == start + 1:
            thin.add(start)
    for at, kind, _, letter in row.marks:
        column = _column(at, columns)
        if kind is Kind.GONE:
            column = max(column, end)
        while column in thin and column < columns - 1:
            column += 1
        bar[column] = _Part(letter or glyphs.kinds[kind], kind)
    return bar


def _extents(spans: Sequence[Span], columns: int) -> list[tuple[int, int]]:
    """The columns [start, end) of spans, side by side; each has one at least."""
    extents = []
    behind = 0
    for first, last, *_ in spans:
        start = max(behind, _column(first, columns + 1))
        behind = max(start + 1, _column(last, columns + 1))
        extents.append((start, behind))
    limit = max(columns, len(spans))
    for number in range(len(extents) - 1, -1, -1):
        start, end = extents[number]
        end = min(end, limit)
        limit = min(start, end - 1)
        extents[number] = limit, end
    return extents
