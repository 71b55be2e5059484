"""What compaction would drop, told by the cleaner itself: a round that goes through everything and writes nothing.

One at a time in the whole broker, and the last outcome of each partition is kept while it is true, because pages of one
listing, and people who ask again and again, want the same.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from seglog_broker.storage.compaction.job import CleaningJob, SegmentLoss
from seglog_broker.workers.messages import WorkerError
from seglog_protocol.errors import StorageError

if TYPE_CHECKING:
    from seglog_broker.api.broker import Broker
    from seglog_broker.partitions.partition import Partition

BYTES_UNASKED_MAX: Final = 64 * 1024 * 1024
"""Read for an answer that did not insist on being told."""


class DryRun(NamedTuple):
    """By base offset what would go of each segment; or why that is not told."""

    losses: Mapping[int, SegmentLoss]
    why_untold: str | None = None


class Remembered(NamedTuple):
    """The last dry run of a partition, and the job that it was for."""

    job: CleaningJob
    found: DryRun


async def dry_run(broker: "Broker", partition: "Partition", *, insist: bool) -> DryRun:
    """What a round of compaction would take away from each segment now; ``insist`` however much is to be read.

    Raises StorageError when the cleaner could not tell.
    """
    log = partition.log
    cleanable = await broker.warmed(log.find_cleanable)
    if partition.is_being_cleaned:
        return DryRun({}, "what it would drop is not told while it is at work")
    below = bisect_left(log.segments.bases, cleanable.until_offset)
    size = log.segments.size_between(0, below)
    if not below:
        return DryRun({})
    job = log.plan_cleaning(cleanable, broker.config, dry_run=True)
    known = _known(partition, job)
    if known is not None:
        return known
    if size > BYTES_UNASKED_MAX and not insist:
        return DryRun({}, f"to tell what it would drop, {size:,} bytes must be read: ask for drops")
    async with broker.dry_run_turn:
        known = _known(partition, job)  # whoever had the turn before may have asked the same
        if known is not None:
            return known
        began = trio.current_time()
        try:
            result = await broker.offload.clean(broker.fs, job)
        except WorkerError as error:
            raise StorageError(f"the cleaner could not tell what compaction would drop: {error}") from error
        broker.cleaning_pace.note(result.bytes_read, began, broker.config.log_cleaner_io_max_bytes_per_second)
        found = DryRun({loss.base_offset: loss for loss in result.losses})
        partition.dry_run = Remembered(job, found)
    return found


def _known(partition: "Partition", job: CleaningJob) -> DryRun | None:
    """What the last dry run found, if the same segments would be gone through by the same rules.

    Only a tombstone's end may have come meanwhile.
    """
    known = partition.dry_run
    return known.found if known is not None and known.job == replace(job, now_ms=known.job.now_ms) else None
