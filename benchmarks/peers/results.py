"""Results of a run beside peers: rows with one measurement a round and server, as a table and as JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.harness import Goal, Row
from benchmarks.table import number
from seglog_protocol.tables import columns, table_line, titles_of

SEGLOG: Final = "seglog"
KAFKA: Final = "Kafka"
NATS: Final = "NATS"
REDIS: Final = "Redis"
BARE: Final = "bare loop"
PEERS: Final = (KAFKA, NATS, REDIS)

BUSY_CLIENT: Final = 0.9
"""A load process that is busy for this share of the time is what was measured."""

_COLUMNS: Final = columns(
    *("", "unit", ">seglog", ">±", ">Kafka", ">ratio", "goal", ">CPU µs", ">of bare", "goal", ">NATS", ">Redis")
)
_WIDTHS: Final = (31, 9, 6, 4, 6, 6, 7, 13, 7, 7, 6, 6)


@dataclass(frozen=True, slots=True)
class Measure:
    """One round of one server; ``value`` in the unit of its row."""

    value: float
    client_busy: float | None = None
    """Share of the time in which the load process computed."""
    server_cpu_us: float | None = None
    """Processor time of the server for each request, in µs; /proc counts it in steps of 10 ms."""
    p50_us: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One line: for each server its rounds. ``goal`` is for seglog beside Kafka, or for the value alone."""

    group: str
    name: str
    unit: str
    sides: Mapping[str, Sequence[Measure]]
    goal: Goal | None = None
    bare_goal: Goal | None = None
    notes: Sequence[str] = ()

    def against(self, other: str, goal: Goal | None = None) -> Row:
        """Our rounds beside those of another server, or of none where that was not measured."""
        return Row(self.name, self.unit, self.values(SEGLOG), self.values(other), other, goal)

    def values(self, side: str) -> list[float]:
        """One a round; empty where it was not measured."""
        return [measure.value for measure in self.sides.get(side, ())]

    def median(self, side: str) -> float | None:
        """Of the rounds; None where it was not measured."""
        values = self.values(side)
        return statistics.median(values) if values else None

    def ratio(self, side: str, to: str = KAFKA) -> float | None:
        """The median of the rounds' own ratios of two servers; None where one of them was not measured."""
        return Row(self.name, self.unit, self.values(side), self.values(to)).ratio

    def server_cpu_us(self, side: str) -> float | None:
        """Processor time of a server for each request, the median of the rounds; None where it was not taken."""
        times = [measure.server_cpu_us for measure in self.sides.get(side, ()) if measure.server_cpu_us is not None]
        return statistics.median(times) if times else None

    def busy_clients(self) -> list[str]:
        """The servers whose load process was busy nearly all of the time, in the median of the rounds."""
        found = []
        for side, measures in self.sides.items():
            shares = [measure.client_busy for measure in measures if measure.client_busy is not None]
            if shares and statistics.median(shares) >= BUSY_CLIENT:
                found.append(side)
        return found

    def all_notes(self) -> list[str]:
        """Those of the row, and one where the load processes were the limit."""
        busy = self.busy_clients()
        return [*self.notes, *([f"the load process was the limit: {', '.join(busy)}"] if busy else [])]


@dataclass(slots=True)
class Results:
    """All of a run."""

    facts: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Peers that could not be measured, and why."""
    rows: list[PeerRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def beside_kafka(self) -> list[PeerRow]:
        """The rows in which both seglog and Kafka were measured."""
        return [row for row in self.rows if row.ratio(SEGLOG)]


# --- For people -------------------------------------------------------------------------------------------------------


def heading() -> str:
    """The line above the rows."""
    return table_line(_COLUMNS, _WIDTHS, titles_of(_COLUMNS), gap=" ")


def line(row: PeerRow) -> str:
    """One row, its notes beneath."""
    beside_kafka, beside_bare = row.against(KAFKA, row.goal), row.against(BARE, row.bare_goal)
    spread = beside_kafka.spread
    text = table_line(
        _COLUMNS,
        _WIDTHS,
        (
            row.name,
            row.unit,
            number(row.median(SEGLOG)) if row.values(SEGLOG) else "n/a",
            "" if spread is None else f"{spread:.0%}",
            number(row.median(KAFKA)),
            _ratio(beside_kafka.ratio),
            _judged(beside_kafka),
            " : ".join(number(cpu) for side in (SEGLOG, KAFKA) if (cpu := row.server_cpu_us(side)) is not None),
            _ratio(beside_bare.ratio),
            _judged(beside_bare),
            number(row.median(NATS)),
            number(row.median(REDIS)),
        ),
        gap=" ",
    )
    return "\n".join([text, *(f"    ({note})" for note in row.all_notes())])


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _judged(row: Row) -> str:
    return "" if row.goal is None else f"{row.goal}{' !' if row.goal.is_met(row) is False else ''}"


def versions_line(results: Results) -> str:
    """What was measured, and what was left out and why."""
    lines = [", ".join(f"{name} {version}" for name, version in results.versions.items())]
    lines += [f"left out: {name}: {reason}" for name, reason in results.left_out.items()]
    return "\n".join(lines)


LEGEND: Final = """\
Values are medians of the rounds, in which the servers take turns; ±: (largest - smallest) / median, of seglog;
ratio: seglog to Kafka, of bare: seglog to the bare loop, each the median of the rounds' own ratios; goal: of the
ratio before it where it has an x, else of seglog's value, ! not reached. CPU µs: processor time of the server for a
request, seglog : Kafka. os: what is acknowledged survives a crash of the server, disk: a loss of power. seglog, Kafka
and the bare loop get ready-made requests from one load process; NATS and Redis are driven by their Python clients,
which are part of their figures. See NOTES.md."""

# --- For machines -----------------------------------------------------------------------------------------------------


def as_json(results: Results) -> dict[str, Any]:
    """Everything, every round included."""
    return {
        "machine": results.facts,
        "versions": results.versions,
        "left_out": results.left_out,
        "rows": [_row_as_json(row) for row in results.rows],
        "problems": results.problems,
    }


def _row_as_json(row: PeerRow) -> dict[str, Any]:
    beside_kafka, beside_bare = row.against(KAFKA, row.goal), row.against(BARE, row.bare_goal)
    return {
        "group": row.group,
        "name": row.name,
        "unit": row.unit,
        "ratio_to_kafka": beside_kafka.ratio,
        "goal": None if row.goal is None else str(row.goal),
        "goal_met": None if row.goal is None else row.goal.is_met(beside_kafka),
        "ratio_to_bare_loop": beside_bare.ratio,
        "bare_goal": None if row.bare_goal is None else str(row.bare_goal),
        "bare_goal_met": None if row.bare_goal is None else row.bare_goal.is_met(beside_bare),
        "sides": {side: _side_as_json(row, side) for side in row.sides},
        "notes": row.all_notes(),
    }


def _side_as_json(row: PeerRow, side: str) -> dict[str, Any]:
    measures = row.sides[side]
    kept: dict[str, Any] = {"median": row.median(side), "values": row.values(side)}
    for name in ("client_busy", "server_cpu_us", "p50_us", "p99_us"):
        values = [getattr(measure, name) for measure in measures]
        if any(value is not None for value in values):
            kept[name] = values
    return kept
