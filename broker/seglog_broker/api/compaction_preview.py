"""Previews of compaction: a dry run of the cleaner, which reads the segments and writes nothing.

The broker makes one at a time. The last result of each partition is kept while it is true, because the pages of one
listing, and repeated requests, need the same one.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import trio

from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.storage.compaction.job import CleaningJob, SegmentLoss
from seglog_broker.storage.io.clock import Pace
from seglog_broker.workers.messages import WorkerError
from seglog_protocol.errors import StorageError

BYTES_READ_MAX: Final = 64 * 1024 * 1024
"""The most bytes that a dry run reads, unless the request insists on it."""


class DryRun(NamedTuple):
    """Base offset of each segment -> what would be dropped of it; or else ``why_missing``, a reason."""

    losses: Mapping[int, SegmentLoss]
    why_missing: str | None = None


class _LastRun(NamedTuple):
    """The last dry run of a partition, and its job."""

    job: CleaningJob
    result: DryRun


@dataclass(eq=False, repr=False)
class CompactionPreviews(Service):
    """Makes dry runs of compaction, one at a time, at the rate of compaction (``pace``)."""

    _pace: Pace

    def __post_init__(self) -> None:
        self.bytes_max = BYTES_READ_MAX
        self._lock = trio.Lock()
        self._last_runs: dict[Partition, _LastRun] = {}

    async def preview(self, partition: Partition, *, insist: bool) -> DryRun:
        """The records that compaction would drop from each segment now; with ``insist`` however many bytes it reads.

        Raises StorageError when the cleaner failed.
        """
        log = partition.log
        cleanable = await self._scheduler.retry_after_cold_read(log.cleaning.find_cleanable)
        if partition.is_being_cleaned:
            return DryRun({}, "what it would drop is not known while it is running")
        below = bisect_left(log.segments.bases, cleanable.until_offset)
        if log.segments.awaited:
            return DryRun({}, "what it would drop is not known while segments are fetched from a backup")
        size = log.segments.size_between(0, below)
        if not below:
            return DryRun({})
        job = log.cleaning.plan_cleaning(cleanable, self._config.current, dry_run=True)
        known = self._kept_result(partition, job)
        if known is not None:
            return known
        if size > self.bytes_max and not insist:
            return DryRun({}, f"{size:,} bytes must be read to find what it would drop: request it with drops")
        async with self._lock:
            known = self._kept_result(partition, job)  # the previous request may have been the same
            if known is not None:
                return known
            began = trio.current_time()
            try:
                result = await self._offload.clean(self._fs, job)
            except WorkerError as error:
                raise StorageError(f"the cleaner could not find what compaction would drop: {error}") from error
            self._pace.note(result.bytes_read, began, self._config.current.log_cleaner_io_max_bytes_per_second)
            preview = DryRun({loss.base_offset: loss for loss in result.losses})
            for deleted in [other for other in self._last_runs if other.is_deleted]:
                del self._last_runs[deleted]
            self._last_runs[partition] = _LastRun(job, preview)
        return preview

    def _kept_result(self, partition: Partition, job: CleaningJob) -> DryRun | None:
        """The result of the last dry run, if it was for the same segments and rules; else None.

        It may be outdated only in that a delete horizon has passed since.
        """
        last = self._last_runs.get(partition)
        return last.result if last is not None and last.job == replace(job, now_ms=last.job.now_ms) else None
