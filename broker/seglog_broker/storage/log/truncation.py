"""The beginning of a log: where it is, which of the oldest segments are deleted, and how, and when that changes.

``log-start-offset-checkpoint`` has no checksum, so one flipped bit in it must neither hide records nor get their files
deleted. ``seglog-partition.json`` has a checksum and is written before the checkpoint. If Kafka moved the log start,
the first leader epoch moved with it.

The same code decides and predicts retention: its task asks for verdicts up to the first segment that stays, ``explain
segments`` asks for all. No verdict deletes anything. See "Retention" in docs/STORAGE.md.

The three rules; each deletes segments from the oldest on, up to the first it does not apply to:

    log start   the next segment begins at or below the log start offset
    size        without it the log still has ``retention.bytes``
    time        its newest record is older than ``retention.ms``

The age of a segment counts from its largest timestamp. If there is none, or it cannot be true, the age counts from the
last write, so that one bad record cannot keep a log for ever:

    no timestamp at all         the last write
    a timestamp in the future   the last write; once it is no longer in the future, the timestamp

The last write is the broker's own record for the active segment and the file's modification time for a closed one. A
last write in the future is useless: the retention task sets it to now (see ``Age.is_unknown``) for the oldest segment
that stays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.leader_epochs import EpochEntry
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.texts import time_text
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT
from seglog_protocol.errors import StorageError
from seglog_protocol.record_batch import NO_TIMESTAMP

KEEP_FOR_EVER: Final = -1
"""The value of ``retention.ms`` or ``retention.bytes`` for no limit."""


class DeletionRule(StrEnum):
    """The rule by which a segment is deleted."""

    LOG_START = "log start"
    SIZE = "size"
    TIME = "time"


class AgeSource(StrEnum):
    """What the age of a segment counts from."""

    LARGEST_TIMESTAMP = "largest timestamp"
    LAST_APPEND = "last append"
    MODIFICATION_TIME = "modification time"


class Kept(StrEnum):
    """The reason why a segment stays."""

    AGE = "age"  # not old enough yet
    OLDER_SEGMENT = "older segment"  # an older one stays, and segments are deleted from the oldest on
    EMPTY_ACTIVE = "empty active segment"
    NO_LIMIT = "no limit"  # retention.ms is -1 and retention.bytes is not exceeded
    POLICY = "policy"  # cleanup.policy has no delete


class LastWrite(NamedTuple):
    """The time of the last write to a segment, in ms of wall time, and its source."""

    at_ms: int
    source: AgeSource


class Age(NamedTuple):
    """``since_ms`` is the time from which a segment's age counts now; ``warning`` says why it may be wrong."""

    since_ms: int
    source: AgeSource
    is_unknown: bool = False  # the last write is useless, too: since_ms is now
    warning: str | None = None


class Verdict(NamedTuple):
    """What retention does with a segment at this time.

    ``rule`` is the rule by which it is deleted, None if it stays; ``kept`` is why it stays. ``due_ms`` is the time
    after which the time rule deletes it if nothing else changes, None for never. ``behind`` is the base offset of the
    oldest segment that stays, if that is what keeps this one. ``bytes_to_come`` is the number of bytes that must still
    be appended before the size rule deletes it, None if it never does: the rule is off, or the appends go to this
    segment.
    """

    rule: DeletionRule | None
    kept: Kept | None
    due_ms: int | None
    age: Age | None
    behind: int | None = None
    bytes_to_come: int | None = None


class RetentionJudge:
    """Judges the segments of one log, oldest first, each given to ``judge`` exactly once."""

    def __init__(self, config: TopicConfig, *, log_start_offset: int, total_size: int, now_ms: int) -> None:
        """``total_size`` are the bytes of all segments; it is not used if ``retention.bytes`` is -1."""
        self._retention_ms = config.retention_ms
        self._deletes = "delete" in config.cleanup_policy
        self._log_start_offset = log_start_offset
        self._now_ms = now_ms
        self._limits_size = self._deletes and config.retention_bytes > KEEP_FOR_EVER
        self._excess = total_size - config.retention_bytes
        self._excess_if_all_go = self._excess  # if everything seen so far were deleted
        self._rules = [DeletionRule.LOG_START, DeletionRule.SIZE, DeletionRule.TIME]
        self._behind: int | None = None  # the oldest segment that stays
        self._due_ms: int | None = 0  # of everything seen so far: a segment is deleted after all before it

    def judge(self, segment: Segment, last_write: Callable[[], LastWrite], *, next_base: int | None) -> Verdict:
        """The verdict on the next segment; ``next_base`` is the base of the one after it, None for the active one.

        ``last_write`` is called only if the timestamps cannot be used.
        """
        if next_base is None and not segment.size:
            return Verdict(None, Kept.EMPTY_ACTIVE, None, None)
        age = self._age(segment, last_write) if self._deletes and self._retention_ms > KEEP_FOR_EVER else None
        self._due_ms = None if age is None or self._due_ms is None else self._due(segment, age, self._due_ms)
        self._excess_if_all_go -= segment.size if self._limits_size else 0
        to_come = max(0, -self._excess_if_all_go) if self._limits_size and next_base is not None else None
        if self._behind is not None:
            return Verdict(None, Kept.OLDER_SEGMENT, self._due_ms, age, self._behind, to_come)
        while self._rules:
            if self._takes(self._rules[0], segment, next_base, age):
                if self._rules[0] is not DeletionRule.TIME:
                    self._due_ms = 0
                self._excess -= segment.size
                return Verdict(self._rules[0], None, self._due_ms, age)
            del self._rules[0]  # a rule ends at the first segment it does not apply to
        self._behind = segment.base_offset
        if not self._deletes:
            return Verdict(None, Kept.POLICY, None, age)
        return Verdict(None, Kept.NO_LIMIT if age is None else Kept.AGE, self._due_ms, age, bytes_to_come=to_come)

    def _takes(self, rule: DeletionRule, segment: Segment, next_base: int | None, age: Age | None) -> bool:
        if rule is DeletionRule.LOG_START:
            return next_base is not None and next_base <= self._log_start_offset
        if rule is DeletionRule.SIZE:
            return self._limits_size and self._excess >= segment.size
        return age is not None and self._now_ms - age.since_ms > self._retention_ms

    def _age(self, segment: Segment, last_write: Callable[[], LastWrite]) -> Age:
        largest = segment.largest_timestamp
        if NO_TIMESTAMP < largest <= self._now_ms:
            return Age(largest, AgeSource.LARGEST_TIMESTAMP)
        written = last_write()
        doubt = (
            "none of its records has a timestamp"
            if largest <= NO_TIMESTAMP
            else f"its largest timestamp, {time_text(largest)}, lies in the future"
        )
        if written.at_ms <= self._now_ms:
            return Age(*written, warning=f"{doubt}: it ages from its {written.source}")
        return Age(
            self._now_ms,
            written.source,
            is_unknown=True,
            warning=f"{doubt}, and its {written.source} lies in the future: it ages from the next retention check",
        )

    def _due(self, segment: Segment, age: Age, before_ms: int) -> int:
        """When the time rule deletes this segment, if the one before it is deleted at ``before_ms``."""
        due = max(before_ms, age.since_ms + self._retention_ms)
        largest = segment.largest_timestamp
        if largest > self._now_ms and due + 1 >= largest:
            return max(due, largest + self._retention_ms)  # by then it is no longer in the future, and used
        return due


@dataclass(slots=True, eq=False)
class LogRetention:
    """Judges the segments of one log by its current configuration."""

    _log: LoadedLog

    def judge_segments(self) -> Iterator[tuple[Segment, Verdict]]:
        """Each segment and its verdict, from the oldest on.

        Lazy: a caller that stops early causes no reads of later segments. It ends at a segment that has left the log
        meanwhile. May raise ColdReadError.
        """
        config = self._log.settings.config
        judge = RetentionJudge(
            config,
            log_start_offset=self._log.offsets.start,
            total_size=self._log.segments.total_size if config.retention_bytes >= 0 else 0,
            now_ms=self._log.clock.now_ms(),
        )
        bases = list(self._log.segments.bases)
        next_bases: list[int | None] = [*bases[1:], None]
        for base, next_base in zip(bases, next_bases, strict=True):
            segment = self._log.segments.at(base)  # not by number: the oldest may be deleted meanwhile
            if segment is None:
                return
            yield segment, judge.judge(segment, partial(self.last_write, segment), next_base=next_base)

    def last_write(self, segment: Segment) -> LastWrite:
        """The time of the last append to ``segment``, by the best source there is."""
        if segment is self._log.segments.active and self._log.state_file.state.last_append_ms is not None:
            return LastWrite(self._log.state_file.state.last_append_ms, AgeSource.LAST_APPEND)
        return LastWrite(segment.log.modified_ms, AgeSource.MODIFICATION_TIME)


class LogStart(NamedTuple):
    """``offset`` is the log start, perhaps below the first segment; ``problem`` names a value that was ignored."""

    offset: int
    problem: str | None = None


class GoneRecords(NamedTuple):
    """Offsets [start, end) at the beginning of the log that no file holds any more, by the file ``source``."""

    start: int
    end: int
    source: str


def believed_start(
    claimed: int, state: PartitionState, epochs: Sequence[EpochEntry], first_base: int, *, is_empty: bool
) -> LogStart:
    """The log start to trust; the checkpoint says ``claimed``, 0 without an entry.

    ``epochs`` are those of Kafka's file. ``is_empty``: no segment has a byte, so nothing can be lost.
    """
    known = max(state.deleted_before, state.log_start or 0)
    if claimed <= max(known, first_base):
        return LogStart(max(claimed, known))
    if state.log_start is None and (is_empty or (epochs and epochs[0].start_offset >= claimed)):
        return LogStart(claimed)  # moved by Kafka, which trims its epochs before it writes the checkpoint
    if epochs and epochs[0].start_offset == claimed:
        return LogStart(claimed)
    begins = max(known, first_base)
    return LogStart(
        known,
        f"{LOG_START_CHECKPOINT} says {claimed}, but nothing says that the records from {begins} on were deleted: it "
        "is ignored, and they are served",
    )


def records_gone(
    claimed: int, state: PartitionState, epochs: Sequence[EpochEntry], first_base: int
) -> GoneRecords | None:
    """The records missing at the beginning of a log whose first segment has ``first_base``; None if none are known.

    The log start is saved before files below it are removed. Pass no ``epochs`` where they may be older than that.
    """
    if state.log_start is not None:
        start, source = max(state.log_start, state.deleted_before), PARTITION_STATE_FILE
    elif epochs:
        start, source = max(epochs[0].start_offset, state.deleted_before), LEADER_EPOCH_CHECKPOINT
    else:
        return None
    if claimed <= first_base:
        start = max(start, claimed)
    return GoneRecords(start, first_base, source) if start < first_base else None


@dataclass(slots=True, eq=False)
class LogTruncation:
    """Truncates one log at its start."""

    _log: LoadedLog
    _leaving: list[DeletedSegments] = field(default_factory=list, init=False)
    """Segments that are out of the log, but that a start may still find."""

    def truncate_before(self, offset: int) -> int:
        """As ``PartitionLog.truncate_before``, for an offset at or below the log end."""
        offsets, state = self._log.offsets, self._log.state_file.state
        if offset > offsets.start:
            offsets.start = state.deleted_before = offset
            state.log_start_reason = "truncated"
            self._log.state_file.mark_dirty()
            self._log.epochs.truncate_from_start(offset)
        if not self._log.state_file.start_is_proven:
            self._log.state_file.save()
        self._log.epochs.save()
        return offsets.start

    def close_unreadable(self) -> bool:
        """Roll if all records of the active segment are below the log start; return whether that was so.

        Retention removes a closed segment below the log start, but never the active one. StorageError when the disk has
        no room for the roll.
        """
        if not self._log.segments.active.size or self._log.offsets.start < self._log.offsets.end:
            return False
        return self._log.roller.roll_or_note(self._log.offsets.end, RollReason.RETENTION)

    def drop_oldest(self, count: int) -> DeletedSegments:
        """Remove the oldest ``count`` segments from the log, and move the log start up to the first that stays.

        If none would be left, a new active segment is begun first; the log end never changes. If that fails, as on a
        full disk, the active segment stays and the others are still removed. Look-ups no longer find them. Then write
        the state, which proves the log start, then the log start checkpoint, then set the result's files aside: in this
        order a crash at any moment leaves a log without a gap. StorageError: nothing has changed.
        """
        segments, offsets, state = self._log.segments, self._log.offsets, self._log.state_file.state
        if count == len(segments):
            assert segments.active.size, "an empty active segment is not dropped"
            try:
                self._log.roller.roll_or_note(offsets.end, RollReason.RETENTION)
            except StorageError:
                count -= 1
                if not count:
                    raise
        going = segments.drop_oldest(count)
        for segment in going:
            segment.forget()
            state.rolls.pop(segment.base_offset, None)
        first = segments.bases[0]
        if first > offsets.start:
            offsets.start = first
            state.log_start_reason = "expired"
            self._log.epochs.truncate_from_start(first)
        self._log.damage.forget_before(first)
        bases = [segment.base_offset for segment in going]
        self._log.snapshots.forget(bases)
        self._log.transactions.drop(bases)
        self._log.state_file.mark_dirty()
        deleted = DeletedSegments(
            self._log.files.fs, self._log.files.directory, bases, sync_survivors=self._log.flusher.directory_is_dirty
        )
        self._leaving = [*(d for d in self._leaving if not d.is_set_aside), deleted]
        return deleted

    @property
    def first_base_on_disk(self) -> int:
        """The base offset of the first segment that a start would find."""
        return next((d.base_offsets[0] for d in self._leaving if not d.is_set_aside), self._log.segments.bases[0])
