"""Retention: which of a log's oldest segments are deleted, which stay, and when that changes.

The same code decides and predicts: the retention task asks for verdicts up to the first segment that stays, ``explain
segments`` asks for all. Nothing is deleted here. See "Retention" in docs/STORAGE.md.

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.texts import time_text
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
