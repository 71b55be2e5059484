"""A picture: strips of rows, in which spans and marks lie on one scale. Places are from 0, at its left end, to 1."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from seglog.cli.pictures.scales import NumberScale, TimeScale


class Kind(Enum):
    """What a span or a mark shows: its sentence in the legend, its character as a box and in ASCII, and its colour."""

    RECORDS = "records, from the first to the newest", "█", "#", "blue"
    ROLLED = "rolled", "◆", "R", "violet"
    KEPT = "kept by retention", "─", "-", "green"
    KEPT_FOR_EVER = "kept, no time is set", "╌", "~", "green"
    DUE = "may go, waits for a check", "░", ".", "yellow"
    GOING = "out of the log, files wait", "▒", "%", "red"
    GONE = "files gone", "x", "x", "red"
    NOW = "now", "│", "|", "ink"
    CHECK = "next check", "┊", ":", "yellow"
    FILE = "the file", "─", "-", "line"
    RANGE = "still possible", "━", "=", "blue"
    PROBE = "entry read", "●", "o", "yellow"
    FOUND = "found", "◆", "*", "green"
    SCAN = "scanned", "▒", "%", "yellow"
    HEADER = "batch header read", "▼", "v", "violet"
    BATCH = "batch found", "█", "#", "green"
    OLDER = "older segments, together", "░", ".", "ink"
    CLOSED = "closed segment", "█", "#", "blue"
    DIRTY = "closed, not compacted yet", "▓", "&", "blue"
    CLEAN = "compacted", "▒", "%", "violet"
    ACTIVE = "active segment", "▇", "+", "green"
    FRONTIER = "retention reaches to here", "┊", "!", "red"
    WRONG = "something is wrong", "✕", "x", "red"
    READER = "next record of a group", "▲", "^", "ink"
    ENTRY = "entry of the index", "│", "|", "yellow"
    BATCHES = "batches", "█", "#", "blue"
    AMOUNT = "the higher, the more", "█", "#", "green"
    MOMENT = "the higher, the later", "█", "#", "violet"

    def __init__(self, sentence: str, box: str, ascii_text: str, colour: str) -> None:
        self.sentence, self.box, self.ascii, self.colour = sentence, box, ascii_text, colour


LEFT_OUT = "time left out: nothing happens"
"""What the legend says of a break in an axis."""


class Span(NamedTuple):
    """From one place to another, the smaller one first. However short, it is drawn.

    ``height`` is its share of the height of its row. ``name`` says what it is, beside its kind, where it can be pointed
    at; there it may lead to the address ``link``.
    """

    first: float
    last: float
    kind: Kind
    height: float = 1.0
    name: str = ""
    link: str = ""


class Mark(NamedTuple):
    """One place. ``letter`` stands in the mark, ``name`` is what it stands for."""

    at: float
    kind: Kind
    name: str = ""
    letter: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """``spans`` lie side by side, from left to right. ``label`` and ``details`` are cells, as the strip has titles.

    A row with a ``note`` is nothing but that sentence. Its first label leads to the address ``link``; it is as high as
    ``lines`` of text.
    """

    label: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    details: tuple[str, ...] = ()
    note: str = ""
    link: str = ""
    lines: int = 1


@dataclass(frozen=True, slots=True)
class Strip:
    """Rows on one scale. ``guides`` are drawn through all of them; ``after`` are sentences below.

    ``room`` is how many columns the scale needs for the details to stand beside it; else they are a table below. A
    detail in ``spare`` (its number) is left out of a table that is too wide, the first of them first.
    """

    scale: TimeScale | NumberScale
    rows: tuple[Row, ...]
    title: str = ""
    label_titles: tuple[str, ...] = ()
    detail_titles: tuple[str, ...] = ()
    guides: tuple[Mark, ...] = ()
    after: tuple[str, ...] = ()
    room: int = 24
    spare: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """``title`` and ``facts`` stand above the strips, the legend below them has each of ``kinds``."""

    title: str
    facts: tuple[str, ...]
    strips: tuple[Strip, ...]

    @property
    def is_broken(self) -> bool:
        """Whether an axis leaves something out."""
        return any(strip.scale.breaks for strip in self.strips)

    @property
    def kinds(self) -> list[Kind]:
        """What is drawn in rows, in the order of ``Kind``."""
        rows = [row for strip in self.strips for row in strip.rows]
        seen = {span.kind for row in rows for span in row.spans} | {mark.kind for row in rows for mark in row.marks}
        return [kind for kind in Kind if kind in seen]
