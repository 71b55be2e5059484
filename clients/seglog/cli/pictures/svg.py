"""Pictures as SVG: documents, and elements of pages. Readable on light and on dark, without scripts or fonts."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from seglog.cli.pictures.model import LEFT_OUT, Kind, Mark, Picture, Row, Span, Strip
from seglog_protocol.tables import widths_of
from seglog_protocol.texts import printable

_MARGIN: Final = 20
_SCALE: Final = 600
"""Width of a scale, px; everything here is."""
_CHARACTER: Final = 7.25
"""Of the monospaced font at 12 px."""
_LINE: Final = 18
_ROW: Final = 20
_THICK: Final = 12
_THIN: Final = 4
_SHORTEST: Final = 3
_GAP: Final = 2 * _CHARACTER
_TICK: Final = 90

_LINES: Final = frozenset({Kind.KEPT, Kind.KEPT_FOR_EVER, Kind.FILE, Kind.RANGE})
"""Spans that are thin."""
_MARKS: Final = frozenset(
    {
        *(Kind.ROLLED, Kind.GONE, Kind.NOW, Kind.CHECK, Kind.PROBE, Kind.FOUND, Kind.HEADER),
        *(Kind.FRONTIER, Kind.WRONG, Kind.READER, Kind.ENTRY),
    }
)
"""What is no span."""
_GUIDES: Final = frozenset({Kind.NOW, Kind.CHECK, Kind.FRONTIER})
_STRIPES: Final = {
    Kind.KEPT_FOR_EVER: "6 4",
    Kind.DUE: "2 2",
    Kind.GOING: "4 3",
    Kind.SCAN: "2 2",
    Kind.OLDER: "1 3",
    Kind.DIRTY: "3 1",
}
"""Spans that are striped, in px with and without ink: so they can be told apart without colours."""
_OUTLINED: Final = frozenset({Kind.ACTIVE, Kind.CLEAN})
"""Spans that are pale, with a line around them."""
_PARTED: Final = frozenset({Kind.CLOSED, Kind.AMOUNT, Kind.MOMENT})
"""Spans that are many, side by side."""

_LIGHT, _DARK = 0, 1
_COLOURS: Final = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#656d76", "#9198a1"),
    "line": ("#afb8c1", "#484f58"),
    "blue": ("#0969da", "#58a6ff"),
    "green": ("#1a7f37", "#3fb950"),
    "yellow": ("#bf8700", "#d29922"),
    "red": ("#cf222e", "#f85149"),
    "violet": ("#8250df", "#bc8cff"),
}
"""On a light background, and on a dark one."""


def svg_of(pictures: Sequence[Picture]) -> str:
    """One SVG document, the pictures below each other."""
    places = [_Places.of(picture) for picture in pictures]
    drawing = _Drawing(max([_SCALE, *(place.width for place in places)]))
    for picture, place in zip(pictures, places, strict=True):
        drawing.sentence(picture.title, "title")
        for fact in picture.facts:
            drawing.sentence(fact, "faint")
        drawing.picture(picture, place)
    return drawing.document("; ".join(picture.title for picture in pictures))


def element_of(picture: Picture) -> str:
    """An element of a page that uses ``picture_style``: a picture in its own size, without title and facts."""
    place = _Places.of(picture)
    drawing = _Drawing(max(_SCALE, place.width))
    drawing.picture(picture, place)
    return drawing.element(picture)


def picture_style() -> str:
    """The style sheet of all elements: its variables have the colours, on a light background and on a dark one."""
    light, dark = (
        "".join(f" --picture-{name}: {shades[background]};" for name, shades in _COLOURS.items())
        for background in (_LIGHT, _DARK)
    )
    rules = [
        f":root {{{light} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}",
        ".drawing { display: block; max-width: none }",
        ".drawing a:focus { outline: 2px solid var(--picture-blue) }",
        ".drawing a text { text-decoration: underline }",
        *(_within(".drawing", rule) for rule in (*_SHAPES, *_coloured("var(--picture-{})".format))),
    ]
    return "".join(f"{rule}\n" for rule in rules)


class _Places(NamedTuple):
    """Where the scales of a picture begin, and where their details; ``width`` is up to the end of these."""

    scale: float
    details: float
    width: float

    @classmethod
    def of(cls, picture: Picture) -> "_Places":
        """As wide as the widest cells need."""
        labels = max(
            [0.0, *(_Column.end(strip.label_titles, [row.label for row in strip.rows]) for strip in picture.strips)]
        )
        details = [_Column.end(strip.detail_titles, [row.details for row in strip.rows]) for strip in picture.strips]
        end = labels + _SCALE + 2 * _GAP
        return cls(_MARGIN + labels, _MARGIN + end, end + max([0.0, *details]))


class _Column(NamedTuple):
    """A column of cells, from ``left`` to ``right``; numbers stand at its right."""

    left: float
    right: float

    @classmethod
    def of(cls, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> "list[_Column]":
        """Side by side, from 0 on."""
        texts = [cells for cells in (titles, *rows) if cells]
        columns, left = [], 0.0
        for width in widths_of(texts) if texts else []:
            columns.append(cls(left, left + width * _CHARACTER))
            left += width * _CHARACTER + _GAP
        return columns

    @classmethod
    def end(cls, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
        """The end of the last of them, and a gap; 0 for none."""
        columns = cls.of(titles, rows)
        return columns[-1].right + _GAP if columns else 0.0


class _Drawing:
    """Elements from top to bottom; ``y`` is where the next one begins."""

    def __init__(self, width: float) -> None:
        self._width = width
        self._y = float(_MARGIN)
        self._elements: list[str] = []

    def document(self, title: str) -> str:
        """The whole document."""
        width, height = round(self._width + 2 * _MARGIN), round(self._y)
        size, name = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"', printable(title)
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(name)}>',
                f"<title>{escape(name)}</title>",
                f"<style>\n{_document_style()}</style>",
                f'<rect class="paper" width="{width}" height="{height}"/>',
                *self._elements,
                "</svg>\n",
            )
        )

    def element(self, picture: Picture) -> str:
        """The element. Where some of its parts are links it is no image, whose parts no screen reader tells."""
        width, height = round(self._width + 2 * _MARGIN), round(self._y)
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        role = "group" if any(element.startswith("<a ") for element in self._elements) else "img"
        return "\n".join(
            (
                f'<svg class="drawing" {size} role="{role}" aria-label={quoteattr(printable(picture.title))}>',
                f"<desc>{escape(printable('; '.join(picture.facts)))}</desc>",
                *self._elements,
                "</svg>\n",
            )
        )

    def picture(self, picture: Picture, places: _Places) -> None:
        """Add the strips of a picture, and its legend."""
        for strip in picture.strips:
            self._y += _LINE / 2
            self._strip(strip, places)
        self._legend(picture.kinds)
        if picture.is_broken:
            self.sentence(f"≈ {LEFT_OUT}", "faint")
        self._y += _LINE

    def _strip(self, strip: Strip, places: _Places) -> None:
        """Draw one strip: its title, its guides, its scale and its rows."""
        left = places.scale
        labels = _Column.of(strip.label_titles, [row.label for row in strip.rows])
        details = _Column.of(strip.detail_titles, [row.details for row in strip.rows])
        if strip.title:
            self.sentence(strip.title)
        for mark in strip.guides:
            anchor = "start" if mark.at < 0.5 else "end"
            said = mark.name or mark.kind.sentence
            self._text(left + mark.at * _SCALE, said, f"{_name(mark.kind)} small", anchor)
            self._y += _LINE * 0.75
        self._ticks(strip, left)
        self._y += _LINE
        axis = self._y
        self._elements.append(_line(left, axis, left + _SCALE, axis, "axis"))
        for at in strip.scale.breaks:
            self._elements.append(_text(left + at * _SCALE, axis + 4, "≈", "ink", "middle"))
        self._cells(_MARGIN, labels, strip.label_titles, "faint")
        self._cells(places.details, details, strip.detail_titles, "faint")
        guides = len(self._elements)  # they lie below the rows, and are as long
        self._y += _ROW
        for row in strip.rows:
            if row.note:
                self._text(left, f"… {row.note}", "faint")
            else:
                self._y += (row.lines - 1) * _ROW
                self._cells(_MARGIN, labels, row.label, link=row.link)
                self._cells(places.details, details, row.details)
                self._bar(row, left)
            self._y += _ROW
        lines = [
            _line(left + at * _SCALE, axis - 6, left + at * _SCALE, self._y - _ROW / 2, f"guide {_name(kind)}")
            for at, kind, *_ in strip.guides
        ]
        self._elements[guides:guides] = lines
        for sentence in strip.after:
            self.sentence(sentence)

    def _ticks(self, strip: Strip, left: float) -> None:
        end = -_GAP
        for at, text in strip.scale.ticks(_SCALE // _TICK):
            x = at * _SCALE
            if x < end + _GAP:
                continue
            end = x + len(text) * _CHARACTER
            anchor = "end" if x + len(text) * _CHARACTER > _SCALE else "start"
            self._text(left + x, text, "faint small", anchor)
            self._elements.append(_line(left + x, self._y + _LINE - 5, left + x, self._y + _LINE, "axis"))

    def _bar(self, row: Row, left: float) -> None:
        foot, room = self._y + 2.0, (row.lines - 1) * _ROW + _THICK
        behind = 0.0
        for span in row.spans:
            first = max(behind, span.first * _SCALE)
            behind = max(first + _SHORTEST, span.last * _SCALE)
            self._elements.append(_span(left + first, left + behind, foot, room, span))
        for mark in row.marks:
            x = mark.at * _SCALE
            if mark.kind is Kind.GONE:
                x = max(x, behind) + 4
            self._elements.append(_mark(left + x, foot, room, mark))

    def _legend(self, kinds: Iterable[Kind]) -> None:
        x = float(_MARGIN)
        self._y += _LINE / 2
        for kind in kinds:
            needed = (len(kind.sentence) + 6) * _CHARACTER
            if x > _MARGIN and x + needed > _MARGIN + self._width:
                x = _MARGIN
                self._y += _LINE
            foot = self._y + 2
            is_mark = kind in _MARKS
            drawn = (
                _mark(x + 9, foot, _THICK, Mark(0, kind))
                if is_mark
                else _span(x, x + 18, foot, _THICK, Span(0, 0, kind))
            )
            self._elements.append(drawn)
            self._text(x + 26, kind.sentence, "faint")
            x += needed + _GAP
        self._y += _LINE

    def sentence(self, text: str, kind: str = "ink") -> None:
        """Add a sentence, in as many lines as it needs."""
        for line in textwrap.wrap(printable(text), int(self._width / _CHARACTER)):
            self._text(_MARGIN, line, kind)
            self._y += _LINE

    def _cells(
        self, x: float, columns: Sequence[_Column], cells: Sequence[str], kind: str = "ink", *, link: str = ""
    ) -> None:
        for (left, right), cell in zip(columns, cells, strict=False):
            is_number = cell[:1].isdigit()
            self._text(x + (right if is_number else left), cell, kind, "end" if is_number else "start", link=link)
            link = ""  # of the first cell alone

    def _text(self, x: float, text: str, kind: str = "ink", anchor: str = "start", *, link: str = "") -> None:
        if text.strip():
            self._elements.append(_linked(_text(x, self._y, text, kind, anchor), link))


def _name(kind: Kind) -> str:
    return kind.name.lower().replace("_", "-")


def _linked(element: str, link: str, name: str = "") -> str:
    title = f"<title>{escape(name)}</title>" if name else ""
    return f"<a href={quoteattr(link)}>{title}{element}</a>" if link else element


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    at = f'x="{x:.1f}" y="{y:.1f}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text class="{kind}" {at}>{escape(printable(text))}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _span(first: float, last: float, foot: float, room: float, span: Span) -> str:
    """A span that stands on ``foot``, at most ``room`` high."""
    kind = span.kind
    if kind is Kind.KEPT_FOR_EVER:
        return _line(first, foot - _THICK / 2, last, foot - _THICK / 2, _name(kind))
    height = _THIN if kind in _LINES else max(_SHORTEST, room * span.height)
    top = foot - (_THICK + _THIN) / 2 if kind in _LINES else foot - height
    said = printable(f"{span.name}, {kind.sentence}" if span.name else kind.sentence)
    title = "" if span.link else f"<title>{escape(said)}</title>"
    if kind in _STRIPES:
        middle = top + height / 2
        place = f'x1="{first:.1f}" y1="{middle:.1f}" x2="{last:.1f}" y2="{middle:.1f}" stroke-width="{height:.4g}"'
        return _linked(f'<line class="{_name(kind)}" {place}>{title}</line>', span.link, said)
    place = f'x="{first:.1f}" y="{top:.1f}" width="{last - first:.1f}" height="{height:.4g}"'
    return _linked(f'<rect class="{_name(kind)}" {place}>{title}</rect>', span.link, said)


def _mark(x: float, foot: float, room: float, mark: Mark) -> str:
    """A mark in the middle of the lowest line; one of a reader is a pin, as high as there is ``room``."""
    kind, middle = mark.kind, foot - _THICK / 2
    head = foot - room + 7
    shapes = {
        Kind.ROLLED: f"M{x:.1f} {middle - 7:.1f}l5 7l-5 7l-5 -7z",
        Kind.FOUND: f"M{x:.1f} {middle - 7:.1f}l5 7l-5 7l-5 -7z",
        Kind.HEADER: f"M{x - 4:.1f} {middle - 8:.1f}h8l-4 8z",
        Kind.GONE: f"M{x - 4:.1f} {middle - 4:.1f}l8 8m0 -8l-8 8",
        Kind.WRONG: f"M{x - 4:.1f} {middle - 4:.1f}l8 8m0 -8l-8 8",
        Kind.ENTRY: f"M{x - 0.5:.1f} {foot - room:.1f}h1v{room:.4g}h-1z",
        Kind.FRONTIER: f"M{x - 1:.1f} {foot - room:.1f}h2v{room:.4g}h-2z",
        Kind.READER: f"M{x:.1f} {foot:.1f}V{head + 7:.1f}a7 7 0 1 0 -.1 0z",
    }
    dot = f"M{x - 4:.1f} {middle:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
    said = printable(mark.name or kind.sentence)
    drawn = f'<path class="{_name(kind)}" d="{shapes.get(kind, dot)}"><title>{escape(said)}</title></path>'
    return drawn + (_text(x, head + 4, mark.letter, "letter", "start") if mark.letter else "")


_SHAPES: Final = (
    'text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }',
    "text.title { font-size: 14px; font-weight: bold }",
    "text.small { font-size: 11px }",
    "text.letter { font-size: 11px; text-anchor: middle }",
    ".gone, .wrong { stroke-width: 2; fill: none }",
    ".kept-for-ever { stroke-width: 3 }",
    ".guide { stroke-dasharray: 3 3 }",
    *(f"line.{_name(kind)} {{ stroke-dasharray: {stripes} }}" for kind, stripes in _STRIPES.items()),
    *(f"rect.{_name(kind)} {{ fill-opacity: 0.35 }}" for kind in sorted(_OUTLINED, key=_name)),
)
"""The rules without colours."""


def _within(element: str, rule: str) -> str:
    selectors, _, rest = rule.partition(" {")
    return ", ".join(f"{element} {selector}" for selector in selectors.split(", ")) + f" {{{rest}"


def _document_style() -> str:
    light, dark = (
        _coloured({name: shades[background] for name, shades in _COLOURS.items()}.__getitem__)
        for background in (_LIGHT, _DARK)
    )
    rules = [*_SHAPES, *light, "@media (prefers-color-scheme: dark) {", *(f"  {rule}" for rule in dark), "}"]
    return "".join(f"{rule}\n" for rule in rules)


def _coloured(colour: Callable[[str], str]) -> list[str]:
    """The rules with colours, each of which has a name."""
    rules = [
        f".paper, .letter {{ fill: {colour('paper')} }}",
        f".ink, .title {{ fill: {colour('ink')} }}",
        f".faint {{ fill: {colour('faint')} }}",
        f".axis {{ stroke: {colour('line')} }}",
    ]
    for kind in Kind:
        is_stroked = kind in _STRIPES or kind in {Kind.GONE, Kind.WRONG}
        rules.append(f".{_name(kind)} {{ {'stroke' if is_stroked else 'fill'}: {colour(kind.colour)} }}")
        if kind in _GUIDES:
            rules.append(f"line.{_name(kind)} {{ stroke: {colour(kind.colour)} }}")
        if kind is Kind.READER:
            rules.append(f"path.{_name(kind)} {{ stroke: {colour(kind.colour)} }}")
        if kind in _OUTLINED:
            rules.append(f"rect.{_name(kind)} {{ stroke: {colour(kind.colour)} }}")
        if kind in _PARTED:
            rules.append(f"rect.{_name(kind)} {{ stroke: {colour('paper')} }}")
    return rules
