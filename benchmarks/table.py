"""Rows for people, in 100 columns, and for machines, as JSON."""

import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Bench, Benchmark, Row
from seglog_broker.runtime.interpreter import is_profile_optimized
from seglog_protocol.tables import columns, table_line, titles_of

WIDTH: Final = 100
_COLUMNS: Final = columns("", "unit", ">median", ">±", ">beside", "which is", ">ratio", "goal")
_WIDTHS: Final = (35, 9, 8, 5, 8, 16, 5, 0)  # what is left is for the goal


def heading(benchmark: Benchmark) -> str:
    """The lines above a group's rows."""
    first = f"{benchmark.name}: {benchmark.title}"
    lines = ["", first, f"  beside: {benchmark.beside}" if benchmark.beside else "", _line(titles_of(_COLUMNS))]
    return "\n".join(line for number, line in enumerate(lines) if line or number == 0)


def line(row: Row) -> str:
    """One row, and its note beneath."""
    goal = ""
    if row.goal is not None:
        goal = f"{row.goal}{' !' if row.goal.is_met(row) is False else ''}"
    text = _line(
        (
            row.name,
            row.unit,
            number(row.median) if row.values else "n/a",
            "" if row.spread is None else f"{row.spread:.0%}",
            number(row.beside_median),
            row.beside_name,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            goal,
        )
    )
    return f"{text}\n    ({row.note})" if row.note else text


def number(value: float | None) -> str:
    """Three significant digits, as many as a noisy machine can promise."""
    if value is None:
        return ""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.2f}M"
    if value >= 10_000:
        return f"{value / 1_000:.1f}k" if value < 100_000 else f"{value / 1_000:.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return table_line(_COLUMNS, _WIDTHS, cells, gap=" ")


_BUILDS: Final = {True: "with PGO", False: "without PGO", None: "(PGO unknown)"}


def machine(bench: Bench) -> dict[str, Any]:
    """What a reader must know before believing a figure."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "profile_optimized": is_profile_optimized(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "file_system": _file_system(bench.directory),
        "load_average": os.getloadavg()[0],
        "rounds": bench.rounds,
        "quick": bench.quick,
    }


def machine_line(facts: dict[str, Any]) -> str:
    """The same on one or two lines."""
    build = _BUILDS[facts["profile_optimized"]]
    text = (
        f"{facts['implementation']} {facts['python']} {build}, {facts['cores']} cores ({facts['cpu']}), Linux "
        f"{facts['kernel']}\n{facts['file_system']}; {facts['rounds']} rounds{', quick' if facts['quick'] else ''}; "
        f"load {facts['load_average']:.2f}"
    )
    if facts["load_average"] > 0.5:
        text += "\nThe machine was busy at the start: compare these figures with each other alone."
    return text


def as_json(facts: dict[str, Any], measured: Sequence[tuple[Benchmark, Sequence[Row]]], bench: Bench) -> dict[str, Any]:
    """Everything, every round included."""
    return {
        "machine": facts,
        "rows": [_row_as_json(benchmark, row) for benchmark, rows in measured for row in rows],
        "loop_busy_seconds": bench.stalls or None,
        "problems": bench.problems,
    }


def _row_as_json(benchmark: Benchmark, row: Row) -> dict[str, Any]:
    return {
        "group": benchmark.name,
        "name": row.name,
        "unit": row.unit,
        "median": row.median,
        "values": list(row.values),
        "beside": list(row.beside),
        "beside_median": row.beside_median,
        "beside_name": row.beside_name,
        "ratio": row.ratio,
        "goal": None if row.goal is None else str(row.goal),
        "goal_met": None if row.goal is None else row.goal.is_met(row),
        "note": row.note,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [entry.partition(":")[2].strip() for entry in lines if entry.startswith("model name")]
    return names[0][:40] if names else platform.machine()


def _file_system(directory: Path) -> str:
    """Type of the file system that holds ``directory``; memory is no disk, and the line says so."""
    best, kind = "", "unknown file system"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for mount in mounts:
        _, where, found = mount.split()[:3]
        prefix = where.rstrip("/") + "/"
        if f"{directory}/".startswith(prefix) and len(prefix) >= len(best):
            best, kind = prefix, found
    return f"{kind} (no disk!)" if kind in {"tmpfs", "ramfs"} else kind
