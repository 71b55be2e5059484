"""A streaming read, planned: where it begins, how far each micro-batch goes, and the ranges of its tasks.

Spark keeps the offsets; what is here is only what one run of a query has to remember: the target of
Trigger.AvailableNow and since when ``minOffsetsPerTrigger`` waits. Spark asks for a micro-batch that it has planned
before with the same start and end, possibly in another process, and gets the same tasks: they follow from offsets and
options alone. Bytes have no say in that, because what the broker tells of them changes; the sink's marks count on it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from seglog_spark.admission import lag, limit_bytes, limit_offsets
from seglog_spark.catalog import Log
from seglog_spark.offsets import OffsetRange, Offsets, shown
from seglog_spark.options import ReadOptions
from seglog_spark.planning import GOING_ON, DataLossError, pinned, resolve, split

STREAM_TASK_OFFSETS: Final = 250_000
"""A task of a micro-batch has no more, unless ``maxRecordsPerPartition`` says otherwise."""


@dataclass(slots=True)
class StreamPlan:
    """One run of a query. ``clock`` gives seconds that only ever rise."""

    log: Log
    options: ReadOptions
    clock: Callable[[], float] = time.monotonic
    _target: Offsets | None = None
    _advanced_at: float | None = None

    def initial(self) -> Offsets:
        """Where a new query begins. Raises OptionError, and what the log raises."""
        ends = self.log.ends(self.log.partitions(self.options.selection))
        names = ("startingOffsets", "startingOffsetsByTimestamp")
        starts = resolve(self.options.starting, ends, self.log.find_times, names)
        fail = self.options.fail_on_data_loss
        return {p: pinned(p, start, start, ends[p], fail_on_data_loss=fail).start for p, start in starts.items()}

    def stop_at_latest(self) -> None:
        """Trigger.AvailableNow: what is appended from now on is not for this run."""
        self._target = self.latest()

    def latest(self) -> Offsets:
        """The end of every partition there is."""
        ends = self.log.ends(self.log.partitions(self.options.selection))
        return {partition: latest for partition, (_, latest) in ends.items()}

    def next_end(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """The end of the micro-batch that begins at ``start``; ``start`` itself when it is not time yet.

        A partition that is new joins at its earliest offset, and its records come with the micro-batch after that: a
        range is pinned by two offsets that Spark has kept. Without ``is_limited`` the end is the latest, whatever the
        options say. DataLossError where a log ends before ``start``.
        """
        latest = self._reachable(start)
        new = sorted(latest.keys() - start.keys())
        end = {p: offset for p, offset in latest.items() if p in start}
        if is_limited:
            begin = {p: min(start[p], offset) for p, offset in end.items()}
            if not new and self._is_waiting(sum(lag(begin, end).values())):
                return start
            end = self._limited(begin, end)
        if new:
            end |= {p: min(found.earliest, latest[p]) for p, found in self.log.ends(new).items()}
        return end

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets:
        options = self.options
        if options.max_offsets_per_trigger is not None:
            end = limit_offsets(begin, end, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None and lag(begin, end):
            extents = self.log.extents(self.log.ends(sorted(lag(begin, end))))
            end = limit_bytes(begin, end, options.max_bytes_per_trigger, extents)
        return end

    def _reachable(self, start: Offsets) -> Offsets:
        latest = self.latest() if self._target is None else dict(self._target)
        fail = self.options.fail_on_data_loss
        gone = start.keys() - latest.keys()
        if gone and fail:
            raise DataLossError(f"{shown(gone)} was read before and is not there any more. {GOING_ON}")
        shorter = {p for p in start.keys() & latest.keys() if latest[p] < start[p]}
        if shorter and self._target is not None:
            now = self.latest()  # a target of this run is not above what an earlier run has read
            latest |= {p: start[p] for p in shorter if now.get(p, 0) >= start[p]}
            shorter = {p for p in shorter if latest[p] < start[p]}
        if shorter and fail:
            first = min(shorter)
            raise DataLossError(
                f"{first} has been read up to offset {start[first]}, and its log ends at {latest[first]}: records were "
                f"lost, or the topic was created anew. {GOING_ON}"
            )
        return latest | {p: start[p] for p in gone}

    def _is_waiting(self, offsets: int) -> bool:
        """Whether to wait for more, which AvailableNow never does: nothing more is coming."""
        least, now = self.options.min_offsets_per_trigger, self.clock()
        if least is None or self._target is not None:
            return False
        if self._advanced_at is None:
            self._advanced_at = now
        if offsets >= least or (offsets and now >= self._advanced_at + self.options.max_trigger_delay):
            self._advanced_at = now
            return False
        return True

    def tasks(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """The ranges of a micro-batch. DataLossError when not all of it is there any more."""
        fail = self.options.fail_on_data_loss
        there = set(self.log.partitions(self.options.selection))
        wanted = {p: stop for p, stop in end.items() if p in there}
        gone = {p for p in end.keys() - there if start.get(p, end[p]) != end[p]}
        if gone and fail:
            raise DataLossError(f"{shown(gone)} is not there any more. {GOING_ON}")
        ends = self.log.ends(sorted(wanted))
        ranges = [
            pinned(p, start[p], stop, ends[p], fail_on_data_loss=fail)
            for p, stop in wanted.items()
            if start.get(p, stop) != stop
        ]
        most = self.options.max_records_per_partition or STREAM_TASK_OFFSETS
        return split(ranges, {}, replace(self.options, max_records_per_partition=most))
