"""What of a compacted log can be cleaned now, and whether it is worth it. Source: storage-format §9.1.

Decides for the compaction task and tells ``explain segments`` the same. Offsets below ``first_dirty_offset`` have been
through a round already; the segments from ``until_offset`` on are not touched: the active one, and those that hold
records younger than ``min.compaction.lag.ms``.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from seglog_broker.config import TopicConfig
from seglog_broker.storage.retention import Aging


class Cleaning(Aging, Protocol):
    """As much of a segment as is looked at; what the lags do not ask for is not read."""

    @property
    def first_timestamp(self) -> int:
        """The maxTimestamp of its first batch, in ms; -1 when it has none."""
        ...


class Cleanable(NamedTuple):
    """What a round could do. Sizes are in bytes; a segment that straddles ``first_dirty_offset`` counts in both."""

    first_dirty_offset: int
    until_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # a dirty record is older than max.compaction.lag.ms, or a tombstone has outlived its time

    @property
    def dirty_ratio(self) -> float:
        """Share of what could be cleaned that has not been through a round; 0 where there is nothing."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worth_it(self, config: TopicConfig) -> bool:
        """Whether a round is due."""
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def find_cleanable(
    segments: Sequence[Cleaning],
    config: TopicConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    checkpoint: int | None,
    tombstones_due_ms: int | None,
    now_ms: int,
) -> Cleanable:
    """Look at a log: ``segments`` in order, the last one active, and where its last round ended (``checkpoint``).

    ``tombstones_due_ms`` is when the first of the tombstones that were kept may go, None when there are none.
    """
    first_dirty = log_start_offset if checkpoint is None else checkpoint
    if not log_start_offset <= first_dirty <= log_end_offset:
        first_dirty = log_start_offset
    closed = segments[:-1]
    ends = [segment.base_offset for segment in segments[1:]]
    dirty = [segment for segment, end in zip(closed, ends, strict=True) if end > first_dirty]
    until = segments[-1].base_offset
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        until = next((segment.base_offset for segment in dirty if segment.largest_timestamp > youngest), until)
    clean_bytes = sum(segment.size for segment in segments if segment.base_offset < min(first_dirty, until))
    dirty_bytes = sum(segment.size for segment in dirty if segment.base_offset < until)
    oldest = now_ms - config.max_compaction_lag_ms
    is_overdue = dirty_bytes > 0 and any(
        0 < segment.first_timestamp < oldest for segment in dirty if oldest > 0 and segment.base_offset < until
    )
    if tombstones_due_ms is not None and tombstones_due_ms <= now_ms and until > segments[0].base_offset:
        is_overdue = True  # Kafka waits for new records; in a quiet log tombstones would then stay for ever
    return Cleanable(first_dirty, until, clean_bytes, dirty_bytes, is_overdue)
