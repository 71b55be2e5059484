"""What every benchmark shares: rows, rounds that take turns, percentiles, a place on the disk, deadlines.

A benchmark is a function from ``Bench`` to rows. A row holds one value a round, and where there is something to compare
with, one value of that *beside* it, taken in the same round. Nothing here judges speed: a goal is printed, no more.
"""

import math
import shutil
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Literal, TypeVar

REPOSITORY: Final = Path(__file__).resolve().parent.parent
MB: Final = 1_000_000
MIB: Final = 1024 * 1024

ResultT = TypeVar("ResultT")
ValueT = TypeVar("ValueT")


class BenchmarkError(Exception):
    """A benchmark could not be run to its end: an error reply, a dead process, a deadline."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a row's median (``of`` "value") or on its ratio to what stands beside it."""

    sign: Literal["≥", "≤"]
    limit: float
    of: Literal["value", "ratio"]

    def __str__(self) -> str:
        return f"{self.sign}{self.limit:g}{'x' if self.of == 'ratio' else ''}"

    def is_met(self, row: "Row") -> bool | None:
        """Whether the row reaches it; None when there is nothing to judge."""
        reached = row.ratio if self.of == "ratio" else row.median
        if reached is None:
            return None
        return reached >= self.limit if self.sign == "≥" else reached <= self.limit


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: ``values`` in ``unit``, one a round; ``beside`` likewise, or nothing.

    Without values the row was not measured, and ``note`` says why.
    """

    name: str
    unit: str
    values: Sequence[float] = ()
    beside: Sequence[float] = ()
    beside_name: str = ""
    goal: Goal | None = None
    note: str = ""

    @property
    def median(self) -> float | None:
        """Of the rounds."""
        return statistics.median(self.values) if self.values else None

    @property
    def beside_median(self) -> float | None:
        """Of the rounds."""
        return statistics.median(self.beside) if self.beside else None

    @property
    def ratio(self) -> float | None:
        """Value to what stands beside it: the median of the rounds' own ratios, so that a slow round hits both."""
        if not self.values or not self.beside:
            return None
        if len(self.values) == len(self.beside):
            pairs = [v / b for v, b in zip(self.values, self.beside, strict=True) if b]
            return statistics.median(pairs) if pairs else None
        below = statistics.median(self.beside)
        return statistics.median(self.values) / below if below else None

    @property
    def spread(self) -> float | None:
        """(largest - smallest) / median of the rounds; None for a single round."""
        middle = self.median
        return (max(self.values) - min(self.values)) / middle if middle and len(self.values) > 1 else None


@dataclass(slots=True)
class Bench:
    """How to measure, where, and what was noticed on the way."""

    rounds: int
    quick: bool
    directory: Path
    peers_python: str | None = None
    kafka_scripts: Path | None = None
    """The directory with ``kafka/kafka``, which runs a real Kafka; None: nothing stands beside one."""
    backup_gigabytes: float = 10
    """What is restored."""
    group: str = ""
    problems: list[str] = field(default_factory=list)
    """Errors of the daemon under test, never its slowness."""
    stalls: dict[str, float] = field(default_factory=dict)
    """Longest turn of the daemon's loop in seconds of processor time, by benchmark, where the broker tells."""

    def pick(self, full: ValueT, quick: ValueT) -> ValueT:
        """The value for the kind of run this is."""
        return quick if self.quick else full

    def report(self, problem: str) -> None:
        """Note that the daemon did something wrong."""
        self.problems.append(f"{self.group}: {problem}")

    @contextmanager
    def fresh_directory(self) -> Iterator[Path]:
        """An empty directory on the disk to be measured; removed afterwards."""
        path = Path(tempfile.mkdtemp(prefix=f"{self.group}-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A group of rows that one function measures; ``beside`` says what stands in the column of that name.

    ``seconds``: behind them it counts as hanging, in a run that is not quick.
    """

    name: str
    title: str
    beside: str
    run: Callable[[Bench], Iterable[Row]]
    seconds: int = 300


def take_turns(rounds: int, *sides: Callable[[], ResultT]) -> list[list[ResultT]]:
    """For each side its result of every round. Within a round all sides run once; who begins changes each time."""
    results: list[list[ResultT]] = [[] for _ in sides]
    for number in range(rounds):
        for step in range(len(sides)):
            which = (number + step) % len(sides)
            results[which].append(sides[which]())
    return results


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of ``values`` do not exceed."""
    if not values:
        raise BenchmarkError("nothing was measured")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_rows(
    what: str, rounds: Sequence[Sequence[float]], beside: Sequence[Sequence[float]], beside_name: str
) -> "Iterator[Row]":
    """Median, 99th percentile and maximum in ms, of seconds by round; ``what`` is what they are of."""
    for part, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        ours, theirs = ([percentile(one, share) * 1000 for one in each] for each in (rounds, beside))
        yield Row(f"{what}: {part}", "ms", ours, theirs, beside_name)


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Raise BenchmarkError in the main thread when the block takes longer: an answer that never comes is an error."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise BenchmarkError(f"{what} did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
