"""Results of a run beside peers: rows with one measurement a round and server, as a table and as JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchmarks.harness import Goal, Row
from benchmarks.peers.cases import Goals
from benchmarks.table import number
from seglog_protocol.tables import columns, table_line, titles_of

KAFKA: Final = "Kafka"
REDIS: Final = "Redis"
RABBITMQ: Final = "RabbitMQ"
BARE: Final = "bare loop"

BUSY_CLIENT: Final = 0.9
"""A load process that is busy for this share of the time is what was measured."""

_COLUMNS: Final = columns(*("", ">median", "unit", ">±", ">to Kafka", "goal", ">CPU µs", ">p50 µs", ">p99 µs"))
_WIDTHS: Final = (34, 8, 9, 5, 8, 8, 7, 7, 7)
_TIMES: Final = ("client_busy", "server_cpu_us", "p50_us", "p99_us")


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
    note: str = ""
    count: int = 0
    """What was answered, or counted otherwise; not in JSON."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One case: for each server its rounds. A goal is for the ratio of its side to Kafka, or for its value."""

    group: str
    name: str
    unit: str
    sides: Mapping[str, Sequence[Measure]]
    goals: Goals = field(default_factory=dict)
    notes: Sequence[str] = ()

    def beside_kafka(self, side: str) -> Row:
        """The rounds of a server beside Kafka's, or beside none where Kafka was not measured."""
        beside = [] if side == KAFKA else self.values(KAFKA)
        return Row(self.name, self.unit, self.values(side), beside, KAFKA, self.goals.get(side))

    def values(self, side: str) -> list[float]:
        """One a round; empty where it was not measured."""
        return [measure.value for measure in self.sides.get(side, ())]

    def median(self, side: str) -> float | None:
        """Of the rounds; None where it was not measured."""
        return _median(self.values(side))

    def ratio(self, side: str) -> float | None:
        """The median of the rounds' own ratios of a server to Kafka; None where one of them was not measured."""
        return self.beside_kafka(side).ratio

    def time(self, side: str, what: Literal["client_busy", "server_cpu_us", "p50_us", "p99_us"]) -> float | None:
        """The median of the rounds; None where it was not taken."""
        found = [getattr(measure, what) for measure in self.sides.get(side, ())]
        return _median([value for value in found if value is not None])

    def all_notes(self) -> list[str]:
        """Those of the row and of its measurements, and one where the load processes were the limit."""
        busy = [side for side in self.sides if (self.time(side, "client_busy") or 0) >= BUSY_CLIENT]
        found = [*self.notes, *(measure.note for measures in self.sides.values() for measure in measures)]
        found += [f"the load process was the limit: {'; '.join(busy)}"] if busy else []
        return list(dict.fromkeys(filter(None, found)))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


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
        """The rows in which Kafka was measured, and somebody else."""
        return [row for row in self.rows if row.values(KAFKA) and len(row.sides) > 1]


# --- For people -------------------------------------------------------------------------------------------------------


def heading() -> str:
    """The line above the rows."""
    return table_line(_COLUMNS, _WIDTHS, titles_of(_COLUMNS), gap=" ")


def line(row: PeerRow) -> str:
    """The name of a row, a line for each server, its notes beneath."""
    lines = [row.name, *(_side_line(row, side) for side in row.sides), *(f"    ({note})" for note in row.all_notes())]
    return "\n".join(lines)


def _side_line(row: PeerRow, side: str) -> str:
    beside = row.beside_kafka(side)
    return table_line(
        _COLUMNS,
        _WIDTHS,
        (
            f"  {side}",
            number(beside.median),
            row.unit,
            "" if beside.spread is None else f"{beside.spread:.0%}",
            "" if beside.ratio is None else f"{beside.ratio:.2f}",
            _judged(beside),
            number(row.time(side, "server_cpu_us")),
            number(row.time(side, "p50_us")),
            number(row.time(side, "p99_us")),
        ),
        gap=" ",
    ).rstrip()


def _judged(row: Row) -> str:
    return "" if row.goal is None else f"{row.goal}{' !' if row.goal.is_met(row) is False else ''}"


def versions_line(results: Results) -> str:
    """What was measured, and what was left out and why."""
    lines = [f"{name}: {version}" for name, version in results.versions.items()]
    lines += [f"left out: {name}: {reason}" for name, reason in results.left_out.items()]
    return "\n".join(lines)


LEGEND: Final = """\
Values are medians of the rounds, in which the servers take turns; ±: (largest - smallest) / median; to Kafka: the
median of the rounds' own ratios; goal: of that ratio where it has an x, else of the value, ! not reached. CPU µs:
processor time of the server for a request. os: what is acknowledged survives a crash of the server, disk: a loss of
power. All get ready-made requests from one load process. See NOTES.md."""

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


def from_json(found: Mapping[str, Any]) -> Results:
    """What ``as_json`` gave."""
    rows = [_row_from_json(row) for row in found["rows"]]
    return Results(found["machine"], found["versions"], found["left_out"], rows, found["problems"])


def _row_as_json(row: PeerRow) -> dict[str, Any]:
    return {
        "group": row.group,
        "name": row.name,
        "unit": row.unit,
        "sides": {side: _side_as_json(row, side) for side in row.sides},
        "notes": row.all_notes(),
    }


def _side_as_json(row: PeerRow, side: str) -> dict[str, Any]:
    beside = row.beside_kafka(side)
    kept: dict[str, Any] = {"median": beside.median, "values": list(beside.values)}
    if beside.ratio is not None:
        kept["ratio_to_kafka"] = beside.ratio
    if beside.goal is not None:
        goal = beside.goal
        kept |= {"goal": [goal.sign, goal.limit, goal.of], "goal_met": goal.is_met(beside)}
    for name in _TIMES:
        values = [getattr(measure, name) for measure in row.sides[side]]
        if any(value is not None for value in values):
            kept[name] = values
    return kept


def _row_from_json(found: Mapping[str, Any]) -> PeerRow:
    sides: dict[str, list[Measure]] = {}
    goals: dict[str, Goal] = {}
    for side, kept in found["sides"].items():
        times = {name: kept[name] for name in _TIMES if name in kept}
        sides[side] = [
            Measure(value, **{name: values[number_] for name, values in times.items()})
            for number_, value in enumerate(kept["values"])
        ]
        if "goal" in kept:
            goals[side] = Goal(*kept["goal"])
    return PeerRow(found["group"], found["name"], found["unit"], sides, goals, found["notes"])
