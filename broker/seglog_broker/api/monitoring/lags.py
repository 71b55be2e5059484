"""Groups of any kind that have samples: how far they are behind, how old that is, and how long it is kept."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from seglog_broker.api.lag import LAG_PARTITIONS_MAX
from seglog_broker.api.monitoring.samples import NAME_CHARACTERS_MAX, SAMPLES_MAX, KeptRows, Source, select
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_protocol.messages import LagPartition, LagReply, LagRequest

GROUP_COST: Final = 5.0
ROW_COST: Final = 1.5
"""Microseconds to look at a group, and at a row of it."""

MeasureLag = Callable[[LagRequest], Awaitable[LagReply]]


class Row(Protocol):
    """A partition that a group reads, and that can be read."""

    @property
    def group(self) -> str: ...  # noqa: D102

    @property
    def partition(self) -> Partition: ...  # noqa: D102

    @property
    def offset(self) -> int | None:
        """The next one that the group has not done with; None where that is not known."""


RowT = TypeVar("RowT", bound=Row)


class Groups(NamedTuple, Generic[RowT]):
    """Groups of a kind, and how they are looked at."""

    count_at_most: Callable[[], int]
    """Costs nothing; some may count twice."""
    names: Callable[[], Collection[str]]
    has: Callable[[str], bool]
    size_of: Callable[[str], int]
    """How many partitions a group reads."""
    rows_of: Callable[[str], Iterator[RowT | None]]
    """These, None where one cannot be read; other tasks may run between two of them."""
    changes: Callable[[], object]
    """Another value when a row has come or gone."""


class Measured(NamedTuple):
    """What was found of the record at an offset, at ``at_ms``; all times are ms of the wall clock."""

    offset: int
    at_ms: int
    timestamp: int | None
    lost_from_ms: int | None
    """When retention may delete it; None: time does not."""


@dataclass(eq=False, repr=False)
class Lags(Service, Generic[RowT]):
    """Makes samples of a kind of groups. Ages are as the last measurement found them, and go on from there."""

    _groups: Groups[RowT]
    _measure_lag: MeasureLag

    def __post_init__(self) -> None:
        self._largest: list[str] | None = None  # groups by lag, as last measured; None: not yet
        self._count = 0  # groups then
        self._measured: dict[tuple[str, str, int], Measured] = {}
        self._rows: KeptRows[RowT] = KeptRows(
            self.rows, lambda: (self._table.changes, self._groups.changes(), self._limit, self._largest)
        )
        self.each = self._rows.each

    @property
    def _limit(self) -> int:
        return self._config.current.seglog_metrics_groups_max

    def shown(self) -> Sequence[str]:
        """The groups with samples."""
        groups, limit = self._groups, self._limit
        if groups.count_at_most() <= 2 * limit:
            names = groups.names()
            if len(names) <= limit and sum(map(groups.size_of, names)) <= SAMPLES_MAX:
                return [name for name in names if len(name) <= NAME_CHARACTERS_MAX]
        return [] if self._largest is None else [name for name in self._largest if groups.has(name)][:limit]

    def left_out(self) -> int:
        """How many groups have none."""
        groups, shown = self._groups, len(self.shown())
        count = len(groups.names()) if groups.count_at_most() <= 2 * self._limit else self._count
        return max(0, count - shown)

    def of_lag(self, without: float, of: Callable[[RowT, int], float | None]) -> Source:
        """The source of a family with a value for a row and its offset, ``without`` where there is no lag."""

        def value(row: RowT) -> float | None:
            offset = row.offset
            if offset is None:
                return None
            return of(row, offset) if offset < row.partition.log.offsets.end else without

        return self.each(value)

    def rows(self) -> Iterator[tuple[tuple[str, str, str], RowT] | None]:
        """Their rows with labels, None where there is none; other tasks may run between two of them."""
        for name in self.shown():
            yield None
            for row in self._groups.rows_of(name):
                yield None if row is None else ((name, row.partition.topic, str(row.partition.number)), row)

    async def measure(self) -> None:
        """Find the groups with the largest lag, and of those that are shown what they read next, in turns."""
        turns = budget.Turns(self._scheduler.quiet_turn)
        groups = self._groups
        sizes: dict[str, int] = {}
        lags: dict[str, int] = {}
        for name in list(groups.names()):
            sizes[name] = groups.size_of(name)
            await turns.spend(GROUP_COST + ROW_COST * sizes[name])
            lags[name] = sum(behind for _, _, behind in self._behind(name))
        self._largest = select(lags, sizes, self._limit)
        self._count = len(lags)
        behind: list[tuple[LagPartition, str]] = []
        for name in self.shown():
            await turns.spend(GROUP_COST + ROW_COST * groups.size_of(name))
            behind += [
                (LagPartition(row.partition.topic, row.partition.number, offset), name)
                for row, offset, _ in self._behind(name)
            ]
        behind.sort(key=lambda one: (one[0].topic, one[0].partition))  # those of a partition are measured together
        measured: dict[tuple[str, str, int], Measured] = {}
        for begin in range(0, len(behind), LAG_PARTITIONS_MAX):
            some = behind[begin : begin + LAG_PARTITIONS_MAX]
            reply = await self._measure_lag(LagRequest([asked for asked, _ in some]))
            for (asked, name), found in zip(some, reply.partitions, strict=True):
                if found.error is None:
                    made = Measured(asked.offset, reply.now_ms, found.timestamp, found.lost_from_ms)
                    measured[name, asked.topic, asked.partition] = made
        self._measured = measured

    def _behind(self, group: str) -> Iterator[tuple[RowT, int, int]]:
        """Rows that are behind, each with its offset and its lag."""
        for row in self._groups.rows_of(group):
            offset = None if row is None else row.offset
            if row is not None and offset is not None and (behind := lag(row)):
                yield row, offset, behind

    def _found(self, row: RowT) -> Measured | None:
        return self._measured.get((row.group, row.partition.topic, row.partition.number))

    def seconds(self, row: RowT, offset: int) -> float | None:
        """The age of the record at ``offset``, the row's."""
        found = self._found(row)
        if found is None or found.timestamp is None:
            return None
        now_ms = self._clock.now_ms() if found.offset == offset else found.at_ms
        return max(0, now_ms - found.timestamp) / 1000

    def time_to_loss(self, row: RowT, offset: int) -> float | None:
        """Seconds until retention deletes the record at ``offset``, the row's; 0 if it is gone, infinite if never."""
        if offset < row.partition.log.log_start_offset:
            return 0.0
        found = self._found(row)
        if found is None:
            return None
        if found.lost_from_ms is None:
            return math.inf
        return max(0, found.lost_from_ms - self._clock.now_ms()) / 1000


def lag(row: RowT) -> int | None:
    """Offsets up to the log end."""
    offset = row.offset
    return None if offset is None else max(0, row.partition.log.offsets.end - offset)
