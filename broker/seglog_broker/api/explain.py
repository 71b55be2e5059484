"""Telling why: why a seek went where it went, why a segment is still here and when it goes.

Nothing is worked out a second time here. A seek is told by the trace that the read path keeps of itself, retention by
the verdicts that its task acts on (``storage.retention``) and the schedule it keeps (``tasks.retention``): this module
puts their figures into sentences and replies.

What is told of the future holds as things stand: unless the topic's configuration changes, records are deleted by
hand, or the broker is restarted. Appends put off the moment of the active segment, and may bring the bytes that the
size rule waits for; how many these are is told beside the moments, which are those of the time rule.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from seglog_broker.api.compaction_preview import CompactionPreviews, DryRun
from seglog_broker.config import TopicConfig
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import ExpiredSegment, PendingDeletions
from seglog_broker.partitions.retention_schedule import CLOCK_LEAP_MS_MAX, RetentionSchedule
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.compaction.cleanable import Cleanable
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.retention import KEEP_FOR_EVER, Age, AgeSource, DeletionRule, Kept, Verdict
from seglog_broker.storage.segment.seek_trace import SeekTrace
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import CorruptRecordError, InvalidRequestError, SeglogError, UnknownTopicError
from seglog_protocol.messages import (
    INT64_MAX,
    ConfigEntry,
    ExplainedLookup,
    ExplainedSegment,
    ExplainReply,
    ExplainRequest,
    ExplainSegmentsReply,
    ExplainSegmentsRequest,
    PartitionCompaction,
    SegmentCompaction,
    pack_page,
)
from seglog_protocol.record_batch import NO_TIMESTAMP

_TOPIC_KEYS: Final = (
    *("cleanup.policy", "retention.ms", "retention.bytes"),
    *("segment.ms", "segment.bytes", "file.delete.delay.ms"),
)
_CHECK_KEY: Final = "log.retention.check.interval.ms"

SEGMENTS_TOLD_MAX: Final = 500
"""Segments that one reply tells of, whatever was asked for; there is more for who asks on."""

SEGMENTS_A_TURN: Final = 100
"""Looked into, judged or told of before others get their turn."""

_TRIES_IN_TURNS: Final = 5
"""While segments leave the log the others are judged once more; after so many times all at once."""


# --- Seeks ------------------------------------------------------------------------------------------------------------


def explain_seek(partition: Partition, request: ExplainRequest, log_dir: str) -> ExplainReply:
    """Seek as a fetch does, and tell how it went, with files named below ``log_dir``.

    Raises InvalidRequestError, and what a fetch raises.
    """
    if (request.offset is None) == (request.timestamp is None):
        raise InvalidRequestError("a seek goes either to an offset or to a timestamp", field="offset")
    trace = SeekTrace()
    try:
        if request.timestamp is not None:
            partition.log.traced(trace).find_timestamp(request.timestamp)
        elif request.offset is not None:
            partition.log.traced(trace).seek(request.offset)
    except SeglogError as error:
        raise partition.with_partition(error) from error
    below = f"{log_dir}/"
    lookups = [
        ExplainedLookup(
            found.index,
            found.path.removeprefix(below),
            found.entries,
            found.wanted,
            found.probes,
            *(found.entry or (None, None)),
        )
        for found in trace.lookups
    ]
    return ExplainReply(
        request.topic,
        request.partition,
        trace.segments,
        trace.why_segment,
        segment=trace.segment,
        passed_over=trace.passed_over,
        lookups=lookups,
        scan_start=trace.scan_start,
        scanned_bytes=trace.scanned_bytes,
        scanned_batches=trace.scanned_batches,
        read_bytes=trace.read_bytes,
        position=trace.position,
        base_offset=trace.base_offset,
        last_offset=trace.last_offset,
        record_offset=trace.record_offset,
        record_timestamp=trace.record_timestamp,
        rebuilt_indexes=trace.rebuilt_indexes,
        files=[path.removeprefix(below) for path in trace.files],
    )


class ExplainContext(NamedTuple):
    """What explanations of segments are made from, besides the partition."""

    config: LiveConfig
    clock: Clock
    schedule: RetentionSchedule
    deletions: PendingDeletions
    reads: ColdReads
    previews: CompactionPreviews


# --- Segments ---------------------------------------------------------------------------------------------------------


async def explain_segments(
    context: ExplainContext, partition: Partition, request: ExplainSegmentsRequest
) -> tuple[ExplainSegmentsReply, bytes]:
    """The partition, and a page of its segments as the payload: those on their way off the disk, then the log's own.

    Raises OSError and StorageError where a segment cannot be looked into, UnknownTopicError if the topic is deleted.
    """
    after = -1 if request.after is None else request.after
    limit = min(request.limit, SEGMENTS_TOLD_MAX)
    log = partition.log
    bases = list(log.segments.bases)
    first_told = bisect_right(bases, after)
    first_timestamps: dict[int, int | None] = {}
    for number, base_offset in enumerate(bases[: first_told + limit]):
        if number % SEGMENTS_A_TURN == 0:
            await context.reads.turn()
        segment = log.segments.at(base_offset)
        if segment is None:
            continue  # it is gone meanwhile
        try:
            first = await context.reads.retry_after_cold_read(partial(look_into, segment, is_told=number >= first_told))
        except OSError:
            if segment in log.segments and not partition.is_deleted:
                raise
            continue  # it is gone meanwhile
        first_timestamps[base_offset] = first
    if partition.is_deleted:
        raise UnknownTopicError(f"topic {partition.topic} was deleted", topic=partition.topic)
    await context.reads.learn_sizes([log])
    drops = DryRun({})
    if "compact" in log.config.cleanup_policy:
        await context.reads.turn()
        drops = await context.previews.preview(partition, insist=bool(request.drops))
        await (
            context.reads.turn()
        )  # to find out what could be compacted takes some time, and is done again for the reply

    async def tell(*, in_turns: bool) -> tuple[ExplainSegmentsReply, bytes]:
        telling = await context.reads.retry_after_cold_read(
            lambda: _Telling(context, partition, drops, in_turns=in_turns)
        )
        return await telling.page(after, limit, first_timestamps)

    return await _while_none_leaves(partition, tell)


ToldT_co = TypeVar("ToldT_co", covariant=True)


class _Tell(Protocol[ToldT_co]):
    """Tells of segments, and lets others have their turn meanwhile unless that is not wanted."""

    async def __call__(self, *, in_turns: bool) -> ToldT_co: ...


async def _while_none_leaves(partition: Partition, tell: _Tell[ToldT_co]) -> ToldT_co:
    """What ``tell`` tells while no segment leaves the log: where one does, all is told once more.

    Raises UnknownTopicError if the topic is deleted, and what ``tell`` does.
    """
    segments = partition.log.segments
    tries = 0
    while True:
        removals = segments.removals
        tries += 1
        told: ToldT_co | None = None
        try:
            told = await tell(in_turns=tries <= _TRIES_IN_TURNS)
        except OSError:
            if segments.removals == removals and not partition.is_deleted:
                raise
        if partition.is_deleted:
            raise UnknownTopicError(f"topic {partition.topic} was deleted", topic=partition.topic)
        if told is not None and segments.removals == removals:
            return told


def look_into(segment: Segment, *, is_told: bool) -> int | None:
    """Bring what is to be known of a segment into memory; the largest timestamp of its first batch, None for none."""
    size, largest = segment.size, segment.largest_timestamp
    if not size or largest == NO_TIMESTAMP or not is_told:
        return None
    try:
        found = segment.find(segment.base_offset)
    except CorruptRecordError:
        return None
    return None if found is None or found.header.max_timestamp == NO_TIMESTAMP else found.header.max_timestamp


Holders = Mapping[int, ExplainedSegment]
"""By offset, what is told of the segment that holds it."""


async def explain_holders(context: ExplainContext, partition: Partition, offsets: Collection[int]) -> Holders:
    """What is told of the segments that hold these offsets, but for their first timestamps and compaction.

    Offsets that are not in the log are left out. Segments up to the newest of these are judged once, and others get
    their turn meanwhile. Raises what ``explain_segments`` does.
    """

    async def tell(*, in_turns: bool) -> Holders:
        wanted = _by_segment(partition.log, offsets)
        found = await _explain_some(context, partition, wanted.keys(), in_turns=in_turns)
        return {offset: found[base] for base, some in wanted.items() if base in found for offset in some}

    return await _while_none_leaves(partition, tell)


def _by_segment(log: PartitionLog, offsets: Collection[int]) -> dict[int, list[int]]:
    """These offsets, as far as they are in the log, by the base offset of their segment."""
    found: dict[int, list[int]] = {}
    bases = log.segments.bases
    for offset in offsets:
        number = bisect_right(bases, offset) - 1
        if number >= 0 and offset < log.log_end_offset:
            found.setdefault(bases[number], []).append(offset)
    return found


async def _explain_some(
    context: ExplainContext, partition: Partition, base_offsets: Collection[int], *, in_turns: bool
) -> dict[int, ExplainedSegment]:
    """What is told of the segments with these base offsets, by base offset; OSError where one cannot be looked into."""
    if not base_offsets:
        return {}
    last = max(base_offsets)
    for number, segment in enumerate(partition.log.segments):
        if segment.base_offset > last:
            break
        await context.reads.retry_after_cold_read(partial(look_into, segment, is_told=False))
        if in_turns and number % SEGMENTS_A_TURN == SEGMENTS_A_TURN - 1:
            await context.reads.turn()
    await context.reads.learn_sizes([partition.log])
    telling = await context.reads.retry_after_cold_read(
        lambda: _Telling(context, partition, DryRun({}), in_turns=in_turns)
    )
    kept = await telling.kept(last, {}, base_offsets.__contains__)
    return {told.base_offset: told for told in kept}


class _Interval(NamedTuple):
    """Between which moments (wall time, ms) something happens; None: as things stand, it does not."""

    from_ms: int | None
    by_ms: int | None

    @classmethod
    def between(cls, from_ms: int, by_ms: int) -> "_Interval":
        """What would happen beyond any date does not: settings may be as large as a number can be."""
        return cls(None, None) if from_ms > INT64_MAX else cls(from_ms, min(by_ms, INT64_MAX))

    def later(self, ms: int) -> "_Interval":
        """As much later."""
        if self.from_ms is None or self.by_ms is None:
            return self
        return _Interval.between(self.from_ms + ms, self.by_ms + ms)


class _Telling:
    """What is said of one partition at one moment; to be asked once, before anything else happens.

    With ``in_turns`` others get their turn while segments are judged. What is told then is worth nothing if one has
    left the log meanwhile. What is appended meanwhile makes no difference but to the size of the active segment.
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
        self._now_ms = context.clock.now_ms()
        self._cleanable = self._log.find_cleanable() if "compact" in self._config.cleanup_policy else None

    async def page(
        self, after: int, limit: int, first_timestamps: dict[int, int | None]
    ) -> tuple[ExplainSegmentsReply, bytes]:
        """The reply, and as a msgpack list at most ``limit`` segments with base offsets above ``after``."""
        gone = [(due, segment) for due, segment in self._gone() if segment.base_offset > after]
        told = [self._tell_gone(due, segment) for due, segment in gone[:limit]]
        bases = self._log.segments.bases
        following = bases[bisect_right(bases, after) :]
        reply = self._reply(more=len(gone) + len(following) > limit)
        room = limit - len(told)
        if room and following:
            last = following[min(room, len(following)) - 1]
            told += await self.kept(last, first_timestamps, lambda base_offset: base_offset > after)
        return reply, pack_page(told)

    def _reply(self, *, more: bool) -> ExplainSegmentsReply:
        log, gone = self._log, [segment for _, segment in self._gone()]
        config = {
            line.key: ConfigEntry(line.value, str(line.origin.kind), line.origin.where)
            for line in self._config.describe()
            if line.key in _TOPIC_KEYS
        }
        origin = self._context.config.current.origin(_CHECK_KEY)
        config[_CHECK_KEY] = ConfigEntry(str(self._schedule.interval_ms), str(origin.kind), origin.where)
        return ExplainSegmentsReply(
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
            min(self._now_ms + self._schedule.ms_to_next[0], INT64_MAX),
            earliest_reason=log.state.log_start_reason,
            more=more,
            config=config,
            doubts=self._doubts(),
            problems=self._partition.what_is_wrong(),
            compaction=self._compaction(),
        )

    def _doubts(self) -> list[str]:
        doubts, leap = [], self._schedule.leap_ms
        if leap > CLOCK_LEAP_MS_MAX:
            doubts.append(f"the clock was set forward by {_span(leap)}: nothing expires by age at the next check")
        if leap < -CLOCK_LEAP_MS_MAX:
            doubts.append(f"the clock was set back by {_span(-leap)}: moments count by the clock as it is now")
        if self._partition.is_being_cleaned:
            doubts.append("it is being compacted: nothing leaves the log before that is done")
        return doubts

    def _compaction(self) -> PartitionCompaction | None:
        found, cleaner = self._cleanable, self._log.state.cleaner
        if found is None:
            return None
        has_run = cleaner.last_run_ms is not None
        return PartitionCompaction(
            found.dirty_ratio,
            found.first_dirty_offset,
            found.until_offset,
            cleaner.last_run_ms,
            cleaner.bytes_before if has_run else None,
            cleaner.bytes_after if has_run else None,
            cleaner.last_error,
            self._why_no_round(found),
            self._drops.why_untold,
        )

    def _why_no_round(self, found: Cleanable) -> str | None:
        if self._partition.is_being_cleaned or found.is_worth_it(self._config):
            return None
        if not found.dirty_bytes:
            return "no closed segment that is old enough has records that compaction has not seen"
        return f"the dirty ratio is not above min.cleanable.dirty.ratio = {self._config.min_cleanable_dirty_ratio:g}"

    # --- Segments that have left the log

    def _gone(self) -> list[tuple[float, ExpiredSegment]]:
        """(time of the loop when it goes, segment), in the order of their offsets."""
        waiting = self._context.deletions.waiting_in(self._partition)
        gone = [(due, segment) for due, deletion in waiting for segment in deletion.segments]
        return sorted(gone, key=lambda going: going[1].base_offset)

    def _tell_gone(self, due: float, segment: ExpiredSegment) -> ExplainedSegment:
        at_ms = self._now_ms + max(0, round((due - trio.current_time()) * 1000))
        return ExplainedSegment(
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

    async def kept(
        self, last: int, first_timestamps: dict[int, int | None], is_told: Callable[[int], bool]
    ) -> list[ExplainedSegment]:
        """Those that are to be told of, up to and including the one with base offset ``last``.

        Each before them has to be judged as well: see ``PartitionLog.judge_segments``.
        """
        log = self._log
        ends = [*log.segments.bases[1:], log.log_end_offset]
        is_age_known = True
        told: list[ExplainedSegment] = []
        for number, ((segment, verdict), end) in enumerate(zip(log.judge_segments(), ends, strict=False), start=1):
            if segment.base_offset > last:
                break
            if verdict.age is not None and verdict.age.is_unknown:
                is_age_known = False  # nor when it goes, and what is behind it goes no sooner
            if is_told(segment.base_offset):
                known = verdict if is_age_known else verdict._replace(due_ms=None)
                told.append(self._tell(segment, known, end, first_timestamps.get(segment.base_offset)))
            if self._in_turns and number % SEGMENTS_A_TURN == 0:
                await self._context.reads.turn()
        return told

    def _tell(self, segment: Segment, verdict: Verdict, end: int, first_timestamp: int | None) -> ExplainedSegment:
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
        return ExplainedSegment(
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
            deletable_ms=None if due_ms is None or due_ms > INT64_MAX else due_ms,
            leaves_from_ms=leaves.from_ms,
            leaves_by_ms=leaves.by_ms,
            gone_from_ms=gone.from_ms,
            gone_by_ms=gone.by_ms,
            bytes_to_come=verdict.bytes_to_come,
            idle_roll_ms=self._log.idle_roll_ms if is_active else None,
            warnings=[] if age is None or age.warning is None else [age.warning],
            compaction=None if loss is None else SegmentCompaction(loss.records, loss.size),
        )

    def _leaves(self, verdict: Verdict) -> _Interval:
        """When a check takes the segment out of the log: one that comes after the moment it is due, by then or later.

        A moment that has passed is found by the next check. One to come is found at most an interval later, whatever
        the phase of the checks will be by then.
        """
        due_ms = verdict.due_ms
        if due_ms is None:
            return _Interval(None, None)
        interval = self._schedule.interval_ms
        soonest, latest = (self._now_ms + left for left in self._schedule.ms_to_next)
        if self._cleanable is not None:
            soonest = self._now_ms  # a round of compaction ends with a look, too
        if verdict.rule in {None, DeletionRule.TIME} and self._schedule.leap_ms > CLOCK_LEAP_MS_MAX:
            soonest, latest = soonest + interval, latest + interval
        if due_ms < soonest:
            return _Interval.between(soonest, latest)
        return _Interval.between(due_ms, max(due_ms + interval, latest))

    def _why(self, verdict: Verdict, *, is_active: bool) -> str:
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
            return f"cleanup.policy = {policy} deletes no segments" if policy else "cleanup.policy is empty: none goes"
        reasons = []
        if age is not None:
            left = age.since_ms + config.retention_ms - self._now_ms
            reasons.append(f"{old} and {retention} keeps it" if left >= 0 else f"{old}, longer than {retention}")
            if is_active:
                reasons.append("appends put that off")
            if verdict.due_ms is not None and verdict.due_ms - age.since_ms > config.retention_ms:
                reasons.append(_why_later(verdict))
        else:
            reasons.append("retention.ms = -1 lets it grow as old as it will")
        if verdict.bytes_to_come is not None:
            reasons.append(f"without it the log is smaller than retention.bytes = {config.retention_bytes}")
        elif age is None and config.retention_bytes == KEEP_FOR_EVER:
            reasons.append("retention.bytes = -1 sets no limit to the log")
        return "; ".join(reasons)


def _why_later(verdict: Verdict) -> str:
    if verdict.behind is None:
        return "its largest timestamp counts as soon as it does not lie in the future"
    return f"it must wait for segment {verdict.behind}, a log goes from its oldest end only"


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
