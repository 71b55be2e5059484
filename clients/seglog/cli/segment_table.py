"""The table of ``seglog explain segments``: a row for each segment, and why it is there and when it goes.

Moments are shown twice: from the broker's now, and as times with their zone.

A broker says between which times that is. Checks come at fixed times: the first one after a segment is due removes it,
unless something may hold that up.
"""

from collections.abc import Iterator
from datetime import tzinfo
from typing import Final

from seglog.cli.lags import fate_of
from seglog.cli.tables import aligned, labelled, wrapped
from seglog.core.errors import count_of, duration_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import format_time
from seglog_protocol.messages import ExplainedSegment, ExplainSegmentsReply, PartitionCompaction

_TITLES: Final = ("SEGMENT", "NEXT", "BYTES", "STATE", "LEAVES THE LOG", "LEAVES THE DISK")
_ROLLED: Final = {"time": ", because record timestamps spanned more than segment.ms"}
"""What a reason for a roll means, where its name alone is taken for another."""
_WIDTH_MIN: Final = 40


def lines_of(explained: PartitionExplanation, zone: tzinfo | None, width: int) -> Iterator[str]:
    """The lines for one partition, none wider than ``width`` columns where words let them be."""
    yield from _Table(explained, zone, max(width, _WIDTH_MIN)).lines()


def facts_of(segment: ExplainedSegment, log: ExplainSegmentsReply, zone: tzinfo | None) -> Iterator[tuple[str, str]]:
    """The lines below the row of a segment, as labels ("": that of the one before) and sentences."""
    yield from _Table(PartitionExplanation(log, [segment]), zone, _WIDTH_MIN).details(segment)


def partition_facts(explained: PartitionExplanation, zone: tzinfo | None) -> list[tuple[str, str]]:
    """The lines above the table, each with its label; ``doubt`` and ``problem`` say what is wrong."""
    return list(_Table(explained, zone, _WIDTH_MIN).facts())


class _Table:
    def __init__(self, explained: PartitionExplanation, zone: tzinfo | None, width: int) -> None:
        self._partition = explained.partition
        self._segments = explained.segments
        self._now = explained.partition.now_ms
        self._zone = zone
        self._width = width

    def lines(self) -> Iterator[str]:
        """All of them."""
        yield from wrapped(f"{title_of(self._partition)}, next offset {self._partition.latest:,}", self._width)
        yield from labelled(self.facts(), width=self._width)
        rows = list(aligned(_TITLES, [self._row(segment) for segment in self._segments]))
        if max(map(len, rows)) > self._width:  # each segment has the last column again below
            rows = list(aligned(_TITLES[:-1], [self._row(segment)[:-1] for segment in self._segments]))
        yield ""
        yield rows[0]
        for row, segment in zip(rows[1:], self._segments, strict=True):
            yield row
            yield from labelled(self.details(segment), indent=4, width=self._width)

    def facts(self) -> Iterator[tuple[str, str]]:
        """What holds for the partition, each with its label."""
        log = self._partition
        if log.waiting:
            waiting = f"{count_of(log.waiting, 'segment')}, {count_of(log.waiting_size, 'byte')}"
            yield "on disk", f"also {waiting} that left the log"
        if log.earliest and log.earliest_reason:
            yield "begins", f"at {log.earliest:,}, the records before it {fate_of(log.earliest_reason)}"
        yield "settings", ", ".join(f"{key}={entry.value} ({entry.origin})" for key, entry in log.config.items())
        yield "now", format_time(self._now, self._zone)
        yield "check", f"{self._when(log.next_check_ms)}; every {duration_of(log.check_interval_ms)}"
        if log.compaction is not None:
            yield "cleaner", self._cleaner(log.compaction)
        for doubt in log.doubts:
            yield "doubt", doubt
        for problem in log.problems:
            yield "problem", problem

    def _cleaner(self, state: PartitionCompaction) -> str:
        parts = []
        if state.dirty_ratio is not None:
            parts.append(f"dirty ratio {state.dirty_ratio:.2f}")
        if state.first_dirty_offset is not None and state.cleanable_until is not None:
            parts.append(f"dirty from offset {state.first_dirty_offset:,}, cleanable up to {state.cleanable_until:,}")
        if state.last_run_ms is not None:
            parts.append(f"last run {self._ago(state.last_run_ms)}")
        if state.last_bytes_before is not None and state.last_bytes_after is not None:
            parts.append(f"{state.last_bytes_before:,} bytes before and {state.last_bytes_after:,} after it")
        if state.last_error is not None:
            parts.append(f"last error: {state.last_error}")
        if state.why_not_now is not None:
            parts.append(state.why_not_now)
        if state.drops_untold is not None:
            parts.append(state.drops_untold)
        return "; ".join(parts)

    def _row(self, segment: ExplainedSegment) -> tuple[object, ...]:
        log = self._in(*leaves_log(segment, self._partition))
        disk = self._in(*leaves_disk(segment, self._partition))
        if segment.state == "deleted":
            log = "has left"
        elif segment.leaves_by_ms is None and segment.bytes_to_come is not None:
            log = f"after {count_of(segment.bytes_to_come, 'byte')}"
        return segment.base_offset, segment.next_offset, segment.size, segment.state, log, disk

    def details(self, segment: ExplainedSegment) -> Iterator[tuple[str, str]]:
        """All else that is said of a segment, each with its label."""
        if segment.largest_timestamp is not None:
            first = segment.largest_timestamp if segment.first_timestamp is None else segment.first_timestamp
            yield "records", self._span(first, segment.largest_timestamp)
        if segment.rolled is not None and segment.rolled_ms is not None:
            yield "rolled", f"{segment.rolled}{_ROLLED.get(segment.rolled, '')}, {self._ago(segment.rolled_ms)}"
        elif segment.state == "closed":
            yield "rolled", "for a reason that was not recorded"
        elif segment.idle_roll_ms is not None:
            yield "rolls", f"{self._when(segment.idle_roll_ms)}, by the idle timer, if nothing closes it before"
        yield "why", segment.why
        label = "leaves"
        due, (leaves, by) = segment.leaves_from_ms, leaves_log(segment, self._partition)
        if due is not None and leaves is not None and by is not None:
            after = f", at the check after {format_time(due, self._zone)}" if due < leaves else ""
            yield label, f"the log {self._span(leaves, by)}{after}"
            label = ""
        gone, gone_by = leaves_disk(segment, self._partition)
        if gone is not None and gone_by is not None:
            yield label, f"the disk {self._span(gone, gone_by)}"
            label = "or"
        if segment.bytes_to_come is not None and segment.rule is None:
            yield label, f"by the check after {count_of(segment.bytes_to_come, 'more byte')}"
        if segment.compaction is not None:
            dropped = f"{count_of(segment.compaction.records, 'record')}, {count_of(segment.compaction.size, 'byte')}"
            yield "cleaner", f"would drop {dropped}"
        for warning in segment.warnings:
            yield "warning", warning

    # --- Words

    def _span(self, first: int, last: int) -> str:
        times = [format_time(moment, self._zone) for moment in (first, last)]
        return times[0] if first == last else " to ".join(times)

    def _in(self, first: int | None, last: int | None) -> str:
        if first is None or last is None:
            return "-"
        near, far = duration_of(max(0, first - self._now)), duration_of(max(0, last - self._now))
        if near == far:
            return "now" if far == "0 s" else f"in {far}"
        return f"in {near} to {far}" if first > self._now else f"within {far}"

    def _when(self, moment: int) -> str:
        return f"in {duration_of(max(0, moment - self._now))}, at {format_time(moment, self._zone)}"

    def _ago(self, moment: int) -> str:
        return f"{duration_of(max(0, self._now - moment))} ago, at {format_time(moment, self._zone)}"


def title_of(log: ExplainSegmentsReply) -> str:
    """A partition, its offsets, its segments and their size."""
    offsets = f"offsets {log.earliest:,} to {log.latest - 1:,}" if log.earliest < log.latest else "empty"
    return f"{log.topic}-{log.partition}: {offsets}, {count_of(log.segments, 'segment')}, {count_of(log.size, 'byte')}"


Interval = tuple[int | None, int | None]
"""From when to when, epoch ms: one moment, if a check whose time is known lies between; None if it is not known."""


def leaves_log(segment: ExplainedSegment, log: ExplainSegmentsReply) -> Interval:
    """When its offsets become out of range."""
    return _narrowed(log, segment.leaves_from_ms, segment.leaves_by_ms, 0)


def leaves_disk(segment: ExplainedSegment, log: ExplainSegmentsReply) -> Interval:
    """When its files are gone: so much later as they wait."""
    first, leaves = segment.gone_from_ms, segment.leaves_from_ms
    if first is None or leaves is None:
        return first, segment.gone_by_ms
    return _narrowed(log, first, segment.gone_by_ms, first - leaves)


def _narrowed(log: ExplainSegmentsReply, first: int | None, last: int | None, delay_ms: int) -> Interval:
    is_running = log.next_check_ms <= log.now_ms
    if first is None or last is None or is_running or log.doubts or log.problems or log.check_interval_ms <= 0:
        return first, last
    checks = max(0, -((log.next_check_ms + delay_ms - first) // log.check_interval_ms))
    check = log.next_check_ms + delay_ms + checks * log.check_interval_ms
    return (check, check) if first <= check <= last else (first, last)
