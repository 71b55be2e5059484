"""The part of a compacted log that can be cleaned now, and whether a round is due; see docs/STORAGE.md, "Compaction".

The compaction task and ``explain segments`` use the same decision. Offsets below ``first_dirty_offset`` have been
through a round already; the segments from ``until_offset`` on are not cleaned: the active one, and those that hold
records younger than ``min.compaction.lag.ms`` or of a transaction that is still open, which may yet be aborted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from seglog_broker.config import TopicConfig


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
    bases: Sequence[int],
    size_between: Callable[[int, int], int],
    largest_timestamp: Callable[[int], int],
    first_timestamp: Callable[[int], int],
    config: TopicConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    checkpoint: int | None,
    tombstones_due_ms: int | None,
    now_ms: int,
) -> Cleanable:
    """Look at a log: the base offsets of its segments, the last one active, and where its last round ended.

    ``size_between`` are the bytes of segments by their numbers [first, behind). ``largest_timestamp`` and
    ``first_timestamp`` (ms) are those of a segment by its number, -1 where it has none. There may be ten thousand: only
    segments that have not been through a round are looked into, and only where the lags of ``config`` need it.
    ``tombstones_due_ms`` is when the first of the tombstones that were kept may go, None when there are none.
    """
    first_dirty = log_start_offset if checkpoint is None else checkpoint
    if not log_start_offset <= first_dirty <= log_end_offset:
        first_dirty = log_start_offset
    active = len(bases) - 1
    behind = min(active, max(0, bisect_right(bases, last_stable_offset) - 1))
    dirty = min(max(0, bisect_right(bases, first_dirty) - 1), behind)  # the number of the first that is
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        behind = next((n for n in range(dirty, behind) if largest_timestamp(n) > youngest), behind)
    until = bases[behind]
    clean_bytes = size_between(0, bisect_left(bases, min(first_dirty, until)))
    dirty_bytes = size_between(dirty, behind)
    oldest = now_ms - config.max_compaction_lag_ms
    is_overdue = dirty_bytes > 0 and oldest > 0 and any(0 < first_timestamp(n) < oldest for n in range(dirty, behind))
    if tombstones_due_ms is not None and tombstones_due_ms <= now_ms and until > bases[0]:
        is_overdue = True  # Kafka waits for new records; in a quiet log tombstones would then stay for ever
    return Cleanable(first_dirty, until, clean_bytes, dirty_bytes, is_overdue)
