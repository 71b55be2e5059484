"""The plans of reads: a batch, fixed when Spark asks for its partitions, and a stream with the end of each micro-batch.

Of a stream Spark stores the offsets. The state here is that of one run of a query: the target of Trigger.AvailableNow,
and since when ``minOffsetsPerTrigger`` waits. A micro-batch that Spark repeats with the same start and end, possibly in
another process, has the same tasks, because they depend on offsets and options only, not on byte estimates, which
change. The sink's marks rely on that.

Every partition with a lag gets a share in proportion to it, and at least one offset while the limit allows, so that
none starves behind a busy one. Limits in offsets are exact, limits in bytes as exact as sizes are known.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from seglog_protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from seglog_spark.catalog import Log
from seglog_spark.extents import bytes_between, offset_behind
from seglog_spark.filters import Wanted
from seglog_spark.offsets import OffsetRange, Offsets, TopicPartition, shown
from seglog_spark.options import OptionError, ReadOptions
from seglog_spark.planning import GOING_ON, DataLossError, Extents, pinned, resolve, split

STREAM_TASK_OFFSETS: Final = 250_000
"""Default of ``maxRecordsPerPartition`` for a task of a micro-batch."""


def plan_batch(log: Log, options: ReadOptions, wanted: Wanted) -> list[OffsetRange]:
    """The ranges to read, one per task. Raises OptionError, DataLossError, and what ``log`` raises."""
    assert options.ending is not None
    ends = log.ends(log.partitions(options.selection))
    starts = resolve(options.starting, ends, log.find_times, ("startingOffsets", "startingOffsetsByTimestamp"))
    stops = resolve(options.ending, ends, log.find_times, ("endingOffsets", "endingOffsetsByTimestamp"))
    ranges: list[OffsetRange] = []
    for partition in sorted(ends):
        start, stop = starts[partition], stops[partition]
        if start > stop:
            raise OptionError(f"the read of {partition} begins at {start}, after its end {stop}")
        found = pinned(partition, start, stop, ends[partition], fail_on_data_loss=options.fail_on_data_loss)
        ranges += wanted.cut(found)
    extents = log.extents({r.topic_partition: ends[r.topic_partition] for r in ranges})
    for r in ranges:
        partition = r.topic_partition
        if bytes_between(extents.get(partition, ()), r.start, r.end) > options.target_task_bytes:
            # Worth a request: the range will be split, best at starts of segments, where a read needs no search.
            extents[partition] = log.segments(partition, ends[partition]) or extents[partition]
    return split(ranges, extents, options)


@dataclass(slots=True)
class StreamPlan:
    """One run of a query. ``clock`` is a monotonic clock in seconds."""

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
        """Trigger.AvailableNow: exclude records appended from now on from this run."""
        self._target = self.latest()

    def latest(self) -> Offsets:
        """The end of every existing partition."""
        ends = self.log.ends(self.log.partitions(self.options.selection))
        return {partition: latest for partition, (_, latest) in ends.items()}

    def next_end(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """The end of the micro-batch that begins at ``start``; ``start`` itself when none is due.

        A new partition is added at its earliest offset, and read in the next micro-batch, because a range needs two
        offsets stored by Spark. Without ``is_limited`` the end is the latest, whatever the options. Raises
        DataLossError where a log ends before ``start``.
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
        lost = {p for p in gone if not self.log.is_internal(p.topic)}  # read by versions whose patterns matched them
        if lost and fail:
            raise DataLossError(f"{shown(lost)} was read before and no longer exists. {GOING_ON}")
        shorter = {p for p in start.keys() & latest.keys() if latest[p] < start[p]}
        if shorter and self._target is not None:
            now = self.latest()  # a target of this run is not above what an earlier run has read
            latest |= {p: start[p] for p in shorter if now.get(p, 0) >= start[p]}
            shorter = {p for p in shorter if latest[p] < start[p]}
        if shorter and fail:
            first = min(shorter)
            why = "records were lost, or the topic was recreated"
            if self.options.isolation == READ_COMMITTED:
                why += f", or the query began at {READ_UNCOMMITTED} and has read of a transaction that is still open"
            raise DataLossError(
                f"{first} has been read up to offset {start[first]}, and its log ends at {latest[first]}: {why}. "
                f"{GOING_ON}"
            )
        return latest | {p: start[p] for p in gone}

    def _is_waiting(self, offsets: int) -> bool:
        """Whether to wait for more records; never with AvailableNow."""
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
        """The ranges of a micro-batch. Raises DataLossError when some of its records have been deleted."""
        fail = self.options.fail_on_data_loss
        wanted = {p for p, stop in end.items() if start.get(p, stop) != stop}
        there = set(self.log.partitions(self.options.selection))
        there |= {p for p in wanted - there if self.log.is_internal(p.topic)}  # planned as in ``_reachable``
        gone = wanted - there
        if gone and fail:
            raise DataLossError(f"{shown(gone)} is not there any more. {GOING_ON}")
        ends = self.log.ends(sorted(wanted & there))
        ranges = [pinned(p, start[p], end[p], ends[p], fail_on_data_loss=fail) for p in sorted(ends)]
        most = self.options.max_records_per_partition or STREAM_TASK_OFFSETS
        return split(ranges, {}, replace(self.options, max_records_per_partition=most))


def lag(start: Offsets, latest: Offsets) -> Offsets:
    """The lag in offsets of each partition that has any."""
    return {partition: end - start[partition] for partition, end in latest.items() if end > start[partition]}


def limit_offsets(start: Offsets, latest: Offsets, limit: int) -> Offsets:
    """An end for every partition of ``latest``, at most ``limit`` offsets after ``start`` in total."""
    shares = _shares(lag(start, latest), limit)
    return {p: start[p] + shares[p] if p in shares else end for p, end in latest.items()}


def limit_bytes(start: Offsets, latest: Offsets, limit: int, extents: Extents) -> Offsets:
    """An end for every partition of ``latest``, about ``limit`` bytes after ``start`` in total.

    Each partition with a lag advances by at least one offset, so that a record larger than its share does not stop it.
    """
    behind = lag(start, latest)
    sizes = {p: max(1, bytes_between(extents.get(p, ()), start[p], latest[p])) for p in behind}
    shares = _shares(sizes, limit)
    ends = dict(latest)
    for p in behind:
        end = offset_behind(extents.get(p, ()), start[p], shares.get(p, 0), latest[p])
        ends[p] = max(end, start[p] + 1)
    return ends


def _shares(wanted: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """``limit`` divided in proportion to ``wanted``; the largest first where there is not one for each."""
    total = sum(wanted.values())
    if total <= limit:
        return dict(wanted)
    order = sorted(wanted, key=lambda p: (-wanted[p], p))
    shares = dict.fromkeys(wanted, 0)
    for p in order[:limit]:
        shares[p] = 1
    left = limit - min(limit, len(order))
    more = {p: wanted[p] - shares[p] for p in order}
    open_total = sum(more.values())
    for p in order:
        shares[p] += left * more[p] // max(1, open_total)
    rest = limit - sum(shares.values())
    for p in order:  # what rounding left
        extra = min(rest, wanted[p] - shares[p])
        shares[p] += extra
        rest -= extra
    return shares
