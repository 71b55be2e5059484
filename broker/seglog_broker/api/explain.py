"""Explanations: how a seek finds its batch, why a segment is kept, and when it will be deleted.

Nothing is computed a second time. A seek is explained by the trace that the read path records, retention by the
verdicts that its task acts on (``storage.log.truncation``) and by its schedule (``partitions.segment_expiry``). This
module turns them into sentences and replies.

Predictions hold if nothing changes: unless the topic's configuration is altered, records are deleted by hand, or the
broker is restarted. Appends postpone the expiry of the active segment, and may add the bytes that the size rule waits
for. The predicted times are those of the time rule; the missing bytes are reported beside them.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Final, NamedTuple, TypeVar

import trio

from seglog_broker.api.compaction_preview import CompactionPreviews, DryRun
from seglog_broker.config import TopicConfig
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import ExpiredSegment, PendingDeletions
from seglog_broker.partitions.scheduler import Common
from seglog_broker.partitions.segment_expiry import RetentionSchedule
from seglog_broker.runtime import budget
from seglog_broker.storage.compaction.cleanable import Cleanable
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.truncation import KEEP_FOR_EVER, Age, AgeSource, DeletionRule, Kept, Verdict
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.storage.segment.traced_steps import SeekTrace
from seglog_protocol import errors, messages
from seglog_protocol.record_batch import NO_TIMESTAMP, BatchHeader

_TOPIC_KEYS: Final = (
    *("cleanup.policy", "retention.ms", "retention.bytes"),
    *("segment.ms", "segment.bytes", "file.delete.delay.ms"),
)
ResultT = TypeVar("ResultT")

_CHECK_KEY: Final = "log.retention.check.interval.ms"

SEGMENTS_SHOWN_MAX: Final = 500
"""The most segments in one reply. A client gets further ones with further requests."""

SEGMENTS_A_TURN: Final = budget.items_of(cost=20)
"""Segments that are loaded, judged or explained before other tasks run."""

_TRIES_IN_TURNS: Final = 5
"""If a segment leaves the log in between, all are judged again; after so many tries without letting other tasks run."""


# --- Seeks ------------------------------------------------------------------------------------------------------------


def explain_seek(partition: Partition, request: messages.ExplainRequest, log_dir: str) -> messages.ExplainReply:
    """Seek as a fetch does, and describe the seek; paths in the reply are relative to ``log_dir``.

    Raises InvalidRequestError, and what a fetch raises.
    """
    if (request.offset is None) == (request.timestamp is None):
        raise errors.InvalidRequestError("a seek goes either to an offset or to a timestamp", field="offset")
    trace = SeekTrace()
    try:
        if request.timestamp is not None:
            partition.log.traced(trace).find_timestamp(request.timestamp)
        elif request.offset is not None:
            partition.log.traced(trace).seek(request.offset)
    except errors.SeglogError as error:
        raise partition.with_partition(error) from error
    below = f"{log_dir}/"
    lookups = [
        messages.ExplainedLookup(
            found.index,
            found.path.removeprefix(below),
            found.entries,
            found.wanted,
            found.probes,
            None if found.entry is None else found.entry[0],
            None if found.entry is None else found.entry[1],
            [messages.ExplainedProbe(*probe) for probe in found.trail],
        )
        for found in trace.lookups
    ]
    of_trace = {each.name: getattr(trace, each.name) for each in fields(trace)}
    files = [path.removeprefix(below) for path in trace.files]
    of_trace |= {"why": of_trace.pop("why_segment"), "lookups": lookups, "files": files}
    return messages.ExplainReply(request.topic, request.partition, **of_trace)


class ExplainContext(NamedTuple):
    """The parts of the broker that explanations of segments use."""

    common: Common
    schedule: RetentionSchedule
    deletions: PendingDeletions
    previews: CompactionPreviews


# --- Segments ---------------------------------------------------------------------------------------------------------


async def explain_segments(
    context: ExplainContext, partition: Partition, request: messages.ExplainSegmentsRequest
) -> tuple[messages.ExplainSegmentsReply, bytes]:
    """The reply about the partition, and as its payload a page of segments: those that left the log, then the others.

    Raises OSError and StorageError if a segment cannot be read, UnknownTopicError if the topic is deleted.
    """
    after = -1 if request.after is None else request.after
    limit = min(request.limit, SEGMENTS_SHOWN_MAX)
    log, scheduler = partition.log, context.common.scheduler
    bases = list(log.segments.bases)
    first_shown = bisect_right(bases, after)
    first_timestamps: dict[int, int | None] = {}
    for number, base_offset in enumerate(bases[: first_shown + limit]):
        if number % SEGMENTS_A_TURN == 0:
            await scheduler.turn()
        segment = log.segments.at(base_offset)
        if segment is None:
            continue  # deleted meanwhile
        try:
            load = partial(load_segment_facts, segment, is_shown=number >= first_shown)
            first = await scheduler.retry_after_cold_read(load)
        except OSError:
            if segment in log.segments and not partition.is_deleted:
                raise
            continue  # deleted meanwhile
        first_timestamps[base_offset] = first
    if partition.is_deleted:
        raise errors.UnknownTopicError(f"topic {partition.topic} was deleted", topic=partition.topic)
    await scheduler.learn_sizes([log])
    drops = DryRun({})
    if "compact" in log.config.cleanup_policy:
        await scheduler.turn()
        drops = await context.previews.preview(partition, insist=bool(request.drops))
        await scheduler.turn()  # finding what can be compacted takes some time, and is done again for the reply

    async def explain(in_turns: bool) -> tuple[messages.ExplainSegmentsReply, bytes]:
        report = await scheduler.retry_after_cold_read(
            lambda: _SegmentReport(context, partition, drops, in_turns=in_turns)
        )
        return await report.page(after, limit, first_timestamps)

    return await _repeat_if_segments_leave(partition, explain)


async def _repeat_if_segments_leave(partition: Partition, explain: Callable[[bool], Awaitable[ResultT]]) -> ResultT:
    """The result of a call of ``explain`` during which no segment left the log. With True it lets other tasks run.

    Raises UnknownTopicError if the topic is deleted, and what ``explain`` raises.
    """
    segments = partition.log.segments
    tries = 0
    while True:
        removals = segments.removals
        tries += 1
        result: ResultT | None = None
        try:
            result = await explain(tries <= _TRIES_IN_TURNS)
        except OSError:
            if segments.removals == removals and not partition.is_deleted:
                raise
        if partition.is_deleted:
            raise errors.UnknownTopicError(f"topic {partition.topic} was deleted", topic=partition.topic)
        if result is not None and segments.removals == removals:
            return result


def load_segment_facts(segment: Segment, *, is_shown: bool) -> int | None:
    """Load the size and the largest timestamp of a segment, which then stay in memory.

    Returns the timestamp of its first record; None if that is not known, or the segment is not to be shown.
    """
    size, largest = segment.size, segment.largest_timestamp
    if not size or largest == NO_TIMESTAMP or not is_shown:
        return None
    try:
        found = segment.find(segment.base_offset)
    except (errors.CorruptRecordError, errors.SegmentAwaitedError):
        return None
    return None if found is None else _first_timestamp(found.header)


def _first_timestamp(header: BatchHeader) -> int | None:
    """The timestamp of a batch's first record; None if there is none, or the header has something else in its place."""
    if header.is_log_append_time:
        return header.max_timestamp
    return None if header.has_delete_horizon or header.base_timestamp == NO_TIMESTAMP else header.base_timestamp


Holders = Mapping[int, messages.ExplainedSegment]
"""Offset -> explanation of its segment."""


async def explain_holders(context: ExplainContext, partition: Partition, offsets: Collection[int]) -> Holders:
    """Explanations of the segments with these offsets, without first timestamps and compaction.

    Offsets that are not in the log are left out. Each segment is judged once, and other tasks run meanwhile. Raises
    what ``explain_segments`` raises.
    """

    async def explain(in_turns: bool) -> Holders:
        wanted: dict[int, list[int]] = {}  # by the base offset of a segment
        bases = partition.log.segments.bases
        for offset in offsets:
            number = bisect_right(bases, offset) - 1
            if number >= 0 and offset < partition.log.log_end_offset:
                wanted.setdefault(bases[number], []).append(offset)
        found = await _explain_some(context, partition, wanted.keys(), in_turns=in_turns)
        return {offset: found[base] for base, some in wanted.items() if base in found for offset in some}

    return await _repeat_if_segments_leave(partition, explain)


async def _explain_some(
    context: ExplainContext, partition: Partition, base_offsets: Collection[int], *, in_turns: bool
) -> dict[int, messages.ExplainedSegment]:
    """Base offset -> explanation, for these segments. Raises OSError if a segment cannot be read."""
    if not base_offsets:
        return {}
    last, scheduler = max(base_offsets), context.common.scheduler
    for number, segment in enumerate(partition.log.segments):
        if segment.base_offset > last:
            break
        await scheduler.retry_after_cold_read(partial(load_segment_facts, segment, is_shown=False))
        if in_turns and number % SEGMENTS_A_TURN == SEGMENTS_A_TURN - 1:
            await scheduler.turn()
    await scheduler.learn_sizes([partition.log])
    report = await scheduler.retry_after_cold_read(
        lambda: _SegmentReport(context, partition, DryRun({}), in_turns=in_turns)
    )
    explained = await report.explain_kept(last, {}, base_offsets.__contains__)
    return {segment.base_offset: segment for segment in explained}


class _Interval(NamedTuple):
    """The earliest and the latest wall time (ms) at which something happens; None if it does not happen."""

    from_ms: int | None
    by_ms: int | None

    @classmethod
    def between(cls, from_ms: int, by_ms: int) -> "_Interval":
        """The interval; None for times beyond any date, because settings may be as large as an int64."""
        return cls(None, None) if from_ms > messages.INT64_MAX else cls(from_ms, min(by_ms, messages.INT64_MAX))

    def later(self, ms: int) -> "_Interval":
        """The interval, ``ms`` later."""
        if self.from_ms is None or self.by_ms is None:
            return self
        return _Interval.between(self.from_ms + ms, self.by_ms + ms)


class _SegmentReport:
    """Explains the segments of one partition as of the time of its construction. Use it once, and at once.

    With ``in_turns`` other tasks run while segments are judged. The result must be dropped if a segment left the log in
    that time. Appends change only the size of the active segment.
    """

    def __init__(self, context: ExplainContext, partition: Partition, drops: DryRun, *, in_turns: bool) -> None:
        self._context = context
        self._in_turns = in_turns
        self._drops = drops
        self._partition = partition
        self._log: PartitionLog = partition.log
        self._active = partition.log.active
        self._config: TopicConfig = partition.log.config
        self._schedule = context.schedule
        self._now_ms = context.common.clock.now_ms()
        self._cleanable = self._log.cleaning.find_cleanable() if "compact" in self._config.cleanup_policy else None

    async def page(
        self, after: int, limit: int, first_timestamps: dict[int, int | None]
    ) -> tuple[messages.ExplainSegmentsReply, bytes]:
        """The reply, and at most ``limit`` segments with base offsets above ``after``, as a msgpack list."""
        gone = [(due, segment) for due, segment in self._gone() if segment.base_offset > after]
        explained = [self._explain_gone(due, segment) for due, segment in gone[:limit]]
        bases = self._log.segments.bases
        following = bases[bisect_right(bases, after) :]
        reply = self._reply(more=len(gone) + len(following) > limit)
        room = limit - len(explained)
        if room and following:
            last = following[min(room, len(following)) - 1]
            explained += await self.explain_kept(last, first_timestamps, lambda base_offset: base_offset > after)
        return reply, messages.pack_page(explained)

    def _reply(self, *, more: bool) -> messages.ExplainSegmentsReply:
        """The header of the reply, whose segments are its payload."""
        log, gone = self._log, [segment for _, segment in self._gone()]
        config = {
            line.key: messages.ConfigEntry(line.value, str(line.origin.kind), line.origin.where)
            for line in self._config.describe()
            if line.key in _TOPIC_KEYS
        }
        origin = self._context.common.config.current.origin(_CHECK_KEY)
        config[_CHECK_KEY] = messages.ConfigEntry(str(self._schedule.interval_ms), str(origin.kind), origin.where)
        return messages.ExplainSegmentsReply(
            self._partition.topic,
            self._partition.number,
            self._now_ms,
            log.log_start_offset,
            log.log_end_offset,
            len(log.segments),
            log.size,
            len(gone),
            sum(segment.size for segment in gone),
            self._schedule.interval_ms,
            min(self._now_ms + self._schedule.ms_to_next[0], messages.INT64_MAX),
            earliest_reason=log.state.log_start_reason,
            more=more,
            config=config,
            doubts=self._doubts(),
            problems=[problem.sentence for problem in self._partition.what_is_wrong()],
            compaction=self._compaction(),
        )

    def _doubts(self) -> list[str]:
        doubts = []
        ahead, left = self._context.common.clock_trust.hold
        if ahead:
            doubts.append(
                f"the clock was set forward by {_span(ahead)}: nothing expires by age until it has held for "
                f"{_span(left)} more"
            )
        if self._partition.is_being_cleaned:
            doubts.append("it is being compacted: nothing leaves the log before that is done")
        return doubts

    def _compaction(self) -> messages.PartitionCompaction | None:
        found, cleaner = self._cleanable, self._log.state.cleaner
        if found is None:
            return None
        has_run = cleaner.last_run_ms is not None
        return messages.PartitionCompaction(
            found.dirty_ratio,
            found.first_dirty_offset,
            found.until_offset,
            cleaner.last_run_ms,
            cleaner.bytes_before if has_run else None,
            cleaner.bytes_after if has_run else None,
            cleaner.last_error,
            self._why_no_round(found),
            self._drops.why_missing,
        )

    def _why_no_round(self, found: Cleanable) -> str | None:
        if self._partition.is_being_cleaned or found.is_worth_it(self._config):
            return None
        if not found.dirty_bytes:
            return "no closed segment that is old enough has records that compaction has not seen"
        return f"the dirty ratio is not above min.cleanable.dirty.ratio = {self._config.min_cleanable_dirty_ratio:g}"

    # --- Segments that have left the log

    def _gone(self) -> list[tuple[float, ExpiredSegment]]:
        """(loop time at which its files are removed, segment), in the order of the offsets."""
        waiting = self._context.deletions.waiting_in(self._partition)
        gone = [(due, segment) for due, deletion in waiting for segment in deletion.segments]
        return sorted(gone, key=lambda going: going[1].base_offset)

    def _explain_gone(self, due: float, segment: ExpiredSegment) -> messages.ExplainedSegment:
        at_ms = self._now_ms + max(0, round((due - trio.current_time()) * 1000))
        return messages.ExplainedSegment(
            segment.base_offset,
            segment.next_offset,
            segment.size,
            "deleted",
            f"the {segment.rule} rule took it out of the log; its files wait for file.delete.delay.ms",
            rule=segment.rule,
            gone_from_ms=at_ms,
            gone_by_ms=at_ms,
        )

    # --- Segments of the log

    async def explain_kept(
        self, last: int, first_timestamps: dict[int, int | None], is_wanted: Callable[[int], bool]
    ) -> list[messages.ExplainedSegment]:
        """Explain the segments whose base offset ``is_wanted``, up to and including the one with ``last``.

        All segments before them are judged as well, see ``LogRetention.judge_segments``.
        """
        log = self._log
        ends = [*log.segments.bases[1:], log.log_end_offset]
        is_age_known = True
        explained: list[messages.ExplainedSegment] = []
        judged = zip(log.retention.judge_segments(), ends, strict=False)
        for number, ((segment, verdict), end) in enumerate(judged, start=1):
            if segment.base_offset > last:
                break
            if verdict.age is not None and verdict.age.is_unknown:
                is_age_known = False  # so it is unknown when it, and all later segments, will be deleted
            if is_wanted(segment.base_offset):
                known = verdict if is_age_known else verdict._replace(due_ms=None)
                explained.append(self._explain(segment, known, end, first_timestamps.get(segment.base_offset)))
            if self._in_turns and number % SEGMENTS_A_TURN == 0:
                await self._context.common.scheduler.turn()
        return explained

    def _explain(
        self, segment: Segment, verdict: Verdict, end: int, first_timestamp: int | None
    ) -> messages.ExplainedSegment:
        """The reply's entry for one segment of the log."""
        is_active = segment is self._active
        state = "active" if is_active else "closed"
        if self._partition.is_being_cleaned and self._cleanable and segment.base_offset < self._cleanable.until_offset:
            state = "compacting"
        roll = None if is_active else self._log.state.rolls.get(segment.base_offset)
        leaves = self._leaves(verdict)
        gone = leaves.later(self._config.file_delete_delay_ms)
        largest = segment.largest_timestamp
        age, due_ms = verdict.age, verdict.due_ms
        loss = self._drops.losses.get(segment.base_offset)
        if verdict.rule in {DeletionRule.LOG_START, DeletionRule.SIZE}:
            due_ms = self._now_ms
        return messages.ExplainedSegment(
            segment.base_offset,
            end,
            segment.size,
            state,
            self._why(verdict, is_active=is_active),
            first_timestamp=first_timestamp,
            largest_timestamp=None if largest == NO_TIMESTAMP else largest,
            rolled=None if roll is None else roll.reason,
            rolled_ms=None if roll is None else roll.at_ms,
            rule=None if verdict.rule is None else str(verdict.rule),
            kept=None if verdict.kept is None else str(verdict.kept),
            behind=verdict.behind,
            age_since_ms=None if age is None else age.since_ms,
            age_source=None if age is None else str(age.source),
            deletable_ms=None if due_ms is None or due_ms > messages.INT64_MAX else due_ms,
            leaves_from_ms=leaves.from_ms,
            leaves_by_ms=leaves.by_ms,
            gone_from_ms=gone.from_ms,
            gone_by_ms=gone.by_ms,
            bytes_to_come=verdict.bytes_to_come,
            idle_roll_ms=self._log.roller.idle_roll_ms if is_active else None,
            warnings=[] if age is None or age.warning is None else [age.warning],
            compaction=None if loss is None else messages.SegmentCompaction(loss.records, loss.size),
        )

    def _leaves(self, verdict: Verdict) -> _Interval:
        """When a check of retention removes the segment from the log.

        If the segment is due already, the next check removes it. Otherwise a check does at most one interval after it
        is due, whenever the checks will be by then.
        """
        due_ms = verdict.due_ms
        if due_ms is None:
            return _Interval(None, None)
        interval = self._schedule.interval_ms
        soonest, latest = (self._now_ms + left for left in self._schedule.ms_to_next)
        if self._cleanable is not None:
            soonest = self._now_ms  # a round of compaction ends with a check, too
        if verdict.rule in {None, DeletionRule.TIME} and (held := self._context.common.clock_trust.hold[1]):
            soonest, latest = max(soonest, self._now_ms + held), max(latest, self._now_ms + held + interval)
        if due_ms < soonest:
            return _Interval.between(soonest, latest)
        return _Interval.between(due_ms, max(due_ms + interval, latest))

    def _why(self, verdict: Verdict, *, is_active: bool) -> str:
        """The sentence that says why a segment is still there, or that the next check takes it."""
        config, age = self._config, verdict.age
        old = "" if age is None else _aged(age, self._now_ms)
        retention = f"retention.ms = {config.retention_ms} ({_span(config.retention_ms)})"
        match verdict.rule:
            case DeletionRule.LOG_START:
                return f"it lies below the log start offset, {self._log.log_start_offset}: the next check takes it"
            case DeletionRule.SIZE:
                return f"the log has retention.bytes = {config.retention_bytes} without it: the next check takes it"
            case DeletionRule.TIME:
                return f"{old}, longer than {retention}: the next check takes it"
        if verdict.kept is Kept.EMPTY_ACTIVE:
            return "nothing is in it yet; the next record goes there"
        if "delete" not in config.cleanup_policy:
            policy = ",".join(config.cleanup_policy)
            return (
                f"cleanup.policy = {policy} deletes no segments" if policy else "cleanup.policy is empty: no deletion"
            )
        reasons = []
        if age is not None:
            left = age.since_ms + config.retention_ms - self._now_ms
            reasons.append(f"{old} and {retention} keeps it" if left >= 0 else f"{old}, longer than {retention}")
            if is_active:
                reasons.append("appends put that off")
            if verdict.due_ms is not None and verdict.due_ms - age.since_ms > config.retention_ms:
                reasons.append(
                    "its largest timestamp counts once it is no longer in the future"
                    if verdict.behind is None
                    else f"it must wait for segment {verdict.behind}: segments are deleted from the oldest on"
                )
        else:
            reasons.append("retention.ms = -1 sets no limit to its age")
        if is_active and KEEP_FOR_EVER < config.retention_bytes < self._log.active.size:
            reasons.append(
                f"retention.bytes = {config.retention_bytes} takes it once it is closed (segment.bytes = "
                f"{config.segment_bytes}, segment.ms; or the disk is full) and as many bytes lie behind it"
            )
        if verdict.bytes_to_come is not None:
            reasons.append(f"without it the log is smaller than retention.bytes = {config.retention_bytes}")
        elif age is None and config.retention_bytes == KEEP_FOR_EVER:
            reasons.append("retention.bytes = -1 sets no limit to the log")
        return "; ".join(reasons)


def _aged(age: Age, now_ms: int) -> str:
    if age.is_unknown:
        return "its age is not known"
    source, age_ms = age.source, now_ms - age.since_ms
    if source is AgeSource.LARGEST_TIMESTAMP:
        return f"its newest record is {_span(age_ms)} old"
    return f"its {source} was {_span(age_ms)} ago"


_UNITS: Final[Sequence[tuple[int, str]]] = (
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "min"),
    (1000, "s"),
    (1, "ms"),
)


def _span(ms: int) -> str:
    """The two largest units of a duration that count: ``3 d 4 h``, ``5 min``, ``250 ms``."""
    for number, (size, unit) in enumerate(_UNITS):
        if ms >= size:
            whole, rest = divmod(ms, size)
            smaller, name = _UNITS[number + 1] if number + 2 < len(_UNITS) else (1, "")
            return f"{whole} {unit} {rest // smaller} {name}" if name and rest >= smaller else f"{whole} {unit}"
    return f"{max(0, ms)} ms"
