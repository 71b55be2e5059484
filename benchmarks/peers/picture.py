"""Rows as a picture: how many times as fast as Apache Kafka each server is, case by case."""

from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.peers.results import BARE, KAFKA, NATS, REDIS, SEGLOG, PeerRow, Results
from benchmarks.table import machine_line, number

# Okabe and Ito's colours, which colour-blind people can distinguish too; and a shape for each server.
_MARKS: Final = {
    BARE: ("#9a9a9a", "|", 11, "a bare loop (no broker)"),
    NATS: ("#e69f00", "^", 6, "NATS JetStream, its Python client included"),
    REDIS: ("#009e73", "s", 5, "Redis Streams, its Python client included"),
    SEGLOG: ("#0072b2", "o", 9, "seglog"),
}
_GREY: Final = "#5a5a5a"
_ROW_INCHES: Final = 0.34
_BELOW_INCHES: Final = 0.6
_GAP: Final = 0.7
"""Between groups, in rows."""


def draw(results: Results, path: Path) -> None:
    """Write the rows in which seglog and Kafka were measured, one at least, to ``path``; its suffix is the format."""
    rows = results.beside_kafka()
    places = _places(rows)
    height = _ROW_INCHES * (places[-1] + 1) + _BELOW_INCHES + 1.6
    below = _BELOW_INCHES / height
    figure = Figure(figsize=(11, height), layout=ConstrainedLayoutEngine(rect=(0, below, 1, 1 - below)))
    axes = figure.add_subplot()
    for row, place in zip(rows, places, strict=True):
        _row(axes, row, place)
    _frame(axes, rows, places)
    figure.suptitle(f"Times as fast as Apache Kafka {results.versions.get(KAFKA, '').split()[0]}", fontsize=13)
    figure.text(0.01, 0.08 / height, _footer(results), fontsize=7.5, color=_GREY, va="bottom")
    figure.savefig(path, dpi=150)


def _places(rows: list[PeerRow]) -> list[float]:
    """From the top down, with a gap between groups."""
    places: list[float] = []
    for number_, row in enumerate(rows):
        is_new = number_ > 0 and rows[number_ - 1].group != row.group
        places.append((places[-1] + 1 if places else 0) + (_GAP if is_new else 0))
    return places


def _row(axes: Axes, row: PeerRow, place: float) -> None:
    ours = row.ratio(SEGLOG)
    assert ours is not None
    axes.plot([1, ours], [place, place], color=_MARKS[SEGLOG][0], linewidth=4, alpha=0.3, solid_capstyle="butt")
    if row.goal is not None and row.goal.of == "ratio":
        axes.plot([row.goal.limit] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.2)
    for side, (colour, mark, size, _) in _MARKS.items():
        ratio = row.ratio(side)
        if ratio:
            axes.plot(ratio, place, mark, color=colour, markersize=size, markeredgewidth=2 if mark == "|" else 0)
    values = f"{number(row.median(SEGLOG))} : {number(row.median(KAFKA))} {row.unit}"
    axes.annotate(
        values, (1.01, place), xycoords=("axes fraction", "data"), fontsize=8, va="center", annotation_clip=False
    )


def _frame(axes: Axes, rows: list[PeerRow], places: list[float]) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color="#d55e00", linewidth=1.2, zorder=0)
    axes.set_yticks(places, [row.name for row in rows], fontsize=9)
    axes.set_ylim(places[-1] + 0.7, -0.7)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", color="#e4e4e4", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.annotate(
        "seglog : Kafka",
        (1.01, -0.75),
        xycoords=("axes fraction", "data"),
        fontsize=8,
        color=_GREY,
        va="bottom",
        annotation_clip=False,
    )
    shown: list[Any] = [
        axes.plot([], [], mark, color=colour, markersize=size, label=label, markeredgewidth=2 if mark == "|" else 0)[0]
        for side, (colour, mark, size, label) in reversed(_MARKS.items())
        if any(row.ratio(side) for row in rows)
    ]
    shown.append(axes.plot([], [], color="#d55e00", linewidth=1.2, label="Apache Kafka")[0])
    shown.append(axes.plot([], [], "|", color="black", markersize=9, label="goal")[0])
    axes.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, fontsize=8, frameon=False)


def _footer(results: Results) -> str:
    """What a reader must know before believing the picture."""
    left_out = [f"left out: {', '.join(results.left_out)}"] if results.left_out else []
    machine, *rest = machine_line(results.facts).splitlines()
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return "\n".join([versions, machine, "; ".join([results.facts["time"], *rest, *left_out])])
