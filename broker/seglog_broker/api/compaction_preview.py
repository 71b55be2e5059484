"""What compaction would drop, told by the cleaner itself: a round that goes through everything and writes nothing.

One at a time in the whole broker, and the last outcome of each partition is kept while it is true, because pages of one
listing, and people who ask again and again, want the same.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import trio

from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.compaction.job import CleaningJob, SegmentLoss
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.throttle import Pace
from seglog_broker.workers.messages import WorkerError
from seglog_protocol.errors import StorageError

BYTES_UNASKED_MAX: Final = 64 * 1024 * 1024
"""Read for an answer that did not insist on being told."""


class DryRun(NamedTuple):
    """By base offset what would go of each segment; or why that is not told."""

    losses: Mapping[int, SegmentLoss]
    why_untold: str | None = None


class _Remembered(NamedTuple):
    """The last dry run of a partition, and the job that it was for."""

    job: CleaningJob
    found: DryRun


class CompactionPreviews:
    """Dry runs of compaction, one at a time; they keep to the rate of compaction, ``pace``."""

    def __init__(self, config: LiveConfig, fs: FileSystem, offload: Offload, reads: ColdReads, pace: Pace) -> None:
        self._config = config
        self._fs = fs
        self._offload = offload
        self._reads = reads
        self._pace = pace
        self._lock = trio.Lock()
        self._remembered: WeakKeyDictionary[Partition, _Remembered] = WeakKeyDictionary()

    async def preview(self, partition: Partition, *, insist: bool) -> DryRun:
        """What a round of compaction would take away from each segment now; ``insist`` however much is to be read.

        Raises StorageError when the cleaner could not tell.
        """
        log = partition.log
        cleanable = await self._reads.retry_after_cold_read(log.cleaning.find_cleanable)
        if partition.is_being_cleaned:
            return DryRun({}, "what it would drop is not told while it is at work")
        below = bisect_left(log.segments.bases, cleanable.until_offset)
        size = log.segments.size_between(0, below)
        if not below:
            return DryRun({})
        job = log.cleaning.plan_cleaning(cleanable, self._config.current, dry_run=True)
        known = self._known(partition, job)
        if known is not None:
            return known
        if size > BYTES_UNASKED_MAX and not insist:
            return DryRun({}, f"to tell what it would drop, {size:,} bytes must be read: ask for drops")
        async with self._lock:
            known = self._known(partition, job)  # the request before may have asked the same
            if known is not None:
                return known
            began = trio.current_time()
            try:
                result = await self._offload.clean(self._fs, job)
            except WorkerError as error:
                raise StorageError(f"the cleaner could not tell what compaction would drop: {error}") from error
            self._pace.note(result.bytes_read, began, self._config.current.log_cleaner_io_max_bytes_per_second)
            found = DryRun({loss.base_offset: loss for loss in result.losses})
            self._remembered[partition] = _Remembered(job, found)
        return found

    def _known(self, partition: Partition, job: CleaningJob) -> DryRun | None:
        """What the last dry run found, if the same segments would be gone through by the same rules.

        Only a tombstone's end may have come meanwhile.
        """
        known = self._remembered.get(partition)
        return known.found if known is not None and known.job == replace(job, now_ms=known.job.now_ms) else None
