"""An ordered map from offsets to how far their delivery is: runs of neighbours that share their state."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

AVAILABLE: Final = 0
ACQUIRED: Final = 1
ACKNOWLEDGED: Final = 2
ARCHIVING: Final = 3
ARCHIVED: Final = 4
"""Kafka's delivery states, as records hold them; from ACKNOWLEDGED on none is left for an earlier one."""

NO_BATCH: Final = -1


class Run:
    """Offsets ``first`` to ``last`` in one state.

    ``count`` is the number of deliveries so far. ``batch`` is the first offset of what was acquired, or loaded, as one
    with them, and ``batch_size`` the number of its offsets. ``member`` has them until ``deadline_ms``, in ACQUIRED.
    """

    __slots__ = ("batch", "batch_size", "count", "deadline_ms", "first", "last", "member", "state")

    def __init__(self, first: int, last: int, state: int, count: int, batch: int, batch_size: int) -> None:
        self.first, self.last = first, last
        self.state, self.count = state, count
        self.batch, self.batch_size = batch, batch_size
        self.member = ""
        self.deadline_ms = 0

    def goes_with(self, other: "Run") -> bool:
        """True if ``other``, the next one, can become a part of this."""
        if self.last + 1 != other.first or self.state != other.state or self.count != other.count:
            return False
        if self.state >= ACKNOWLEDGED:
            return True
        return self.batch == other.batch and self.deadline_ms == other.deadline_ms and self.member == other.member


class Runs:
    """The runs by offset, as few as can be. An index is valid until something is cut, joined or inserted."""

    __slots__ = ("_firsts", "_runs", "records")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[Run] = []
        self.records = [0] * (ARCHIVED + 1)
        """How many offsets are in each state."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, index: int) -> Run:
        return self._runs[index]

    def index(self, offset: int) -> int:
        """The index of the first run that ends at ``offset`` or behind it."""
        index = bisect_right(self._firsts, offset)
        if index > 0 and self._runs[index - 1].last >= offset:
            return index - 1
        return index

    def within(self, first: int, last: int) -> list[Run]:
        """The runs that have some of these offsets, also if they have others."""
        return self._runs[self.index(first) : bisect_right(self._firsts, last)]

    def insert(self, run: Run) -> None:
        """Add a run for offsets that none has; it stays one of its own."""
        index = bisect_right(self._firsts, run.first)
        self._firsts.insert(index, run.first)
        self._runs.insert(index, run)
        self.records[run.state] += run.last - run.first + 1

    def cut(self, first: int, last: int) -> list[Run]:
        """Have runs begin at ``first`` and end at ``last``: those within. ``join`` follows."""
        low = self._cut_before(first)
        return self._runs[low : self._cut_before(last + 1)]

    def _cut_before(self, offset: int) -> int:
        index = self.index(offset)
        if index == len(self._runs):
            return index
        run = self._runs[index]
        if run.first >= offset:
            return index
        rest = Run(offset, run.last, run.state, run.count, run.batch, run.batch_size)
        rest.member, rest.deadline_ms = run.member, run.deadline_ms
        run.last = offset - 1
        self._firsts.insert(index + 1, offset)
        self._runs.insert(index + 1, rest)
        return index + 1

    def change(self, run: Run, state: int, count: int) -> None:
        """Put a run into another state, in which no member has it."""
        size = run.last - run.first + 1
        self.records[run.state] -= size
        self.records[state] += size
        run.state, run.count = state, count
        run.member, run.deadline_ms = "", 0

    def join(self, first: int, last: int) -> None:
        """Join the runs of these offsets that go together, also with their neighbours."""
        low = max(self.index(first) - 1, 0)
        high = min(bisect_right(self._firsts, last) + 1, len(self._runs))
        if high - low < 2:
            return
        kept = [self._runs[low]]
        for index in range(low + 1, high):
            run = self._runs[index]
            if kept[-1].goes_with(run):
                kept[-1].last = run.last
            else:
                kept.append(run)
        if len(kept) < high - low:
            self._runs[low:high] = kept
            self._firsts[low:high] = [run.first for run in kept]

    def overlay(self, first: int, last: int, state: int, count: int) -> None:
        """Note what a record says of offsets: of two the higher count is the later, then the higher state.

        It is for runs without batches. Source: Kafka's PersisterStateBatchCombiner.
        """
        free = first
        for run in self.cut(first, last):
            if free < run.first:
                self.insert(Run(free, run.first - 1, state, count, NO_BATCH, 0))
            if count > run.count or (count == run.count and state > run.state):
                self.change(run, state, count)
            free = run.last + 1
        if free <= last:
            self.insert(Run(free, last, state, count, NO_BATCH, 0))
        self.join(first, last)

    def drop_before(self, offset: int) -> None:
        """Remove what is known of offsets before ``offset``."""
        end = self._cut_before(offset)
        for index in range(end):
            run = self._runs[index]
            self.records[run.state] -= run.last - run.first + 1
        del self._runs[:end]
        del self._firsts[:end]
