"""Rows as a picture: how many times as fast as Apache Kafka each server is, case by case."""

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.peers.cases import LISTENER, LISTENER_COMPILED, NATIVE, NATIVE_COMPILED
from benchmarks.peers.results import BARE, KAFKA, NATS, REDIS, PeerRow, Results, versions_line
from benchmarks.table import machine_line, number

# Okabe and Ito's colours, which the colour-blind can tell apart; and a shape for each server. Open: the sources.
_BLUE, _RED, _GREY = "#0072b2", "#d55e00", "#5a5a5a"
_MARKS: Final = {
    BARE: ("#9a9a9a", "|", 11, "full"),
    NATS: ("#e69f00", "^", 6, "full"),
    REDIS: ("#009e73", "s", 5, "full"),
    NATIVE: (_BLUE, "o", 8, "none"),
    LISTENER: (_RED, "D", 7, "none"),
    NATIVE_COMPILED: (_BLUE, "o", 8, "full"),
    LISTENER_COMPILED: (_RED, "D", 7, "full"),
}
_LABELS: Final = {
    BARE: "a bare loop (no broker)",
    NATS: "NATS JetStream, its Python client included",
    REDIS: "Redis Streams, its Python client included",
}
_OTHER: Final = ("#cc79a7", "X", 6, "full")
"""Whatever else speaks Kafka's protocol."""

_ROW_INCHES: Final = 0.34
_FOOTER_LINE_INCHES: Final = 0.15
_GAP: Final = 0.7
"""Between groups, in rows."""


def draw(results: Results, path: Path) -> None:
    """Write the rows in which Kafka was measured, one at least, to ``path``; its suffix is the format."""
    rows = results.beside_kafka()
    footer = _footer(results)
    places = _places(rows)
    below = _FOOTER_LINE_INCHES * (footer.count("\n") + 2)
    height = _ROW_INCHES * (places[-1] + 1) + below + 1.8
    with mpl.rc_context({"svg.hashsalt": "seglog"}):
        figure = Figure(
            figsize=(11, height), layout=ConstrainedLayoutEngine(rect=(0, below / height, 1, 1 - below / height))
        )
        axes = figure.add_subplot()
        for row, place in zip(rows, places, strict=True):
            _row(axes, row, place)
        _frame(axes, rows, places)
        figure.suptitle(f"Times as fast as Apache Kafka {results.versions.get(KAFKA, '').split()[0]}", fontsize=13)
        figure.text(0.01, 0.08 / height, footer, fontsize=7.5, color=_GREY, va="bottom")
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _places(rows: list[PeerRow]) -> list[float]:
    """From the top down, with a gap between groups."""
    places: list[float] = []
    for number_, row in enumerate(rows):
        is_new = number_ > 0 and rows[number_ - 1].group != row.group
        places.append((places[-1] + 1 if places else 0) + (_GAP if is_new else 0))
    return places


def _mark(side: str) -> dict[str, Any]:
    colour, shape, size, fill = _MARKS.get(side, _OTHER)
    width = 2 if shape == "|" else 1.4
    return {"color": colour, "marker": shape, "markersize": size, "fillstyle": fill, "markeredgewidth": width}


def _row(axes: Axes, row: PeerRow, place: float) -> None:
    for side in (*(other for other in row.sides if other not in _MARKS), *_MARKS):
        ratio = row.ratio(side)
        if ratio:
            axes.plot(ratio, place, linestyle="none", **_mark(side))
    values = " · ".join(number(row.median(side)) for side in (*_shown_values(row), KAFKA))
    axes.annotate(
        f"{values} {row.unit}",
        (1.01, place),
        xycoords=("axes fraction", "data"),
        fontsize=8,
        va="center",
        annotation_clip=False,
    )


def _shown_values(row: PeerRow) -> list[str]:
    """The native side and Kafka's wire, each compiled where that was measured."""
    pairs = ((NATIVE_COMPILED, NATIVE), (LISTENER_COMPILED, LISTENER))
    return [found for pair in pairs if (found := next((side for side in pair if row.values(side)), None))]


def _frame(axes: Axes, rows: list[PeerRow], places: list[float]) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1.2, zorder=0)
    axes.set_yticks(places, [row.name for row in rows], fontsize=9)
    axes.set_ylim(places[-1] + 0.7, -0.7)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="both", color="#e4e4e4", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.annotate(
        "native · Kafka's wire · Kafka",
        (1.01, -0.75),
        xycoords=("axes fraction", "data"),
        fontsize=8,
        color=_GREY,
        va="bottom",
        annotation_clip=False,
    )
    measured = {side: None for row in rows for side in row.sides if row.ratio(side) and side != KAFKA}
    order = [*reversed([side for side in _MARKS if side in measured]), *(s for s in measured if s not in _MARKS)]
    shown: list[Any] = [
        axes.plot([], [], linestyle="none", label=_LABELS.get(side, side), **_mark(side))[0] for side in order
    ]
    shown.append(axes.plot([], [], color="black", linewidth=1.2, label="Apache Kafka")[0])
    axes.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, -0.04), ncols=3, fontsize=8, frameon=False)


def _footer(results: Results) -> str:
    """What a reader must know before believing the picture."""
    return "\n".join([versions_line(results), machine_line(results.facts), str(results.facts["time"])])
