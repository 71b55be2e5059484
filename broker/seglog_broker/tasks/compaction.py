"""Compaction: of each key in a compacted topic the newest record stays.

``log.cleaner.threads`` rounds run side by side, each for one partition: the one with the highest dirty ratio whose
compaction is due. A worker process reads the records (``workers.jobs``) and writes ``.cleaned`` files. The loop
only puts these in place, one group of segments at a time.

A round that fails (the worker dies, the disk is full) leaves the log as it was and is tried again: first after
``log.cleaner.backoff.ms``, then after twice that, and so on. A round that is no longer wanted (topic deleted, policy
changed, broker stopping) leaves no files.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter, save_state
from seglog_broker.partitions.cleaning import cleaning
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import PendingDeletion, PendingDeletions
from seglog_broker.partitions.scheduler import Service
from seglog_broker.partitions.segment_expiry import SegmentExpiry
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.compaction.cleaned_segment import SegmentSwap, discard_cleaned
from seglog_broker.storage.compaction.job import CleanedGroup, CleaningResult
from seglog_broker.storage.io.clock import Pace
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.workers.messages import WorkerError
from seglog_protocol.errors import StorageError

log = get_logger()

RETRY_SECONDS_MAX: Final = 3600.0
"""The longest time between two rounds of a partition whose rounds fail."""

_HALF_DONE: Final = (
    "only some of the compacted files could be renamed; stop the broker, check the disk, and start the broker again: "
    "the start renames the others"
)

_DOUBLINGS_MAX: Final = 30
"""Doublings of the pause are limited to this, so that the number stays within a float."""


@dataclass(eq=False, repr=False)
class Compaction(Service):
    """The rounds of compaction of one broker, with the failures of each partition and when it may be tried again."""

    expiry: SegmentExpiry
    deletions: PendingDeletions
    checkpoints: CheckpointWriter
    pace: Pace

    def __post_init__(self) -> None:
        self._boundary = TaskBoundary("compaction")
        self._retention = TaskBoundary("retention")
        self._failures: dict[Partition, tuple[int, float]] = {}  # consecutive failures, and loop time of the next try
        self._half_done: set[Partition] = set()  # partitions with a swap that could be neither completed nor undone

    async def run(self) -> None:
        """Compact partitions when it is due; the first round is ``log.initial.task.delay.ms`` after the start."""
        config = self._config.current
        if not config.log_cleaner_enable or not config.log_cleaner_threads:
            log.warning("compaction_disabled", consequence="compacted topics grow for ever")
            return
        await trio.sleep(config.log_initial_task_delay_ms / 1000)
        async with trio.open_nursery() as nursery:
            for _ in range(config.log_cleaner_threads):
                nursery.start_soon(self._clean_for_ever)

    async def _clean_for_ever(self) -> None:
        """One round after the other; sleep ``log.cleaner.backoff.ms`` when no partition is due."""
        while True:
            if not await self.clean_next():
                await trio.sleep(max(self._backoff, 0.001))

    async def clean_next(self) -> bool:
        """One round, for the partition with the highest dirty ratio; False if no partition is due.

        It begins when the rate of all earlier rounds together is below the limit.
        """
        await trio.sleep_until(self.pace.ready_at)
        partition = await self._choose()
        if partition is None:
            return False
        with cleaning(partition) as scope, scope:
            try:
                succeeded = await self._boundary.run(partition, self._clean)
            finally:
                with trio.CancelScope(shield=True):
                    await self._discard(partition)
        if not partition.is_deleted and not scope.cancelled_caught:
            self._note_outcome(partition, succeeded=succeeded)
            await self.expiry.expire([partition], self._retention)
        return True

    @property
    def _backoff(self) -> float:
        return self._config.current.log_cleaner_backoff_ms / 1000

    async def _choose(self) -> Partition | None:
        """The partition with the highest dirty ratio among those whose compaction is due; None if none is."""
        for partition in [partition for partition in self._failures if partition.is_deleted]:
            del self._failures[partition]
        due: list[tuple[float, Partition]] = []
        for part in self._table.in_parts():
            for partition in part:
                if not partition.can_be_cleaned or self._failures.get(partition, (0, 0.0))[1] > trio.current_time():
                    continue
                try:
                    cleanable = await self._scheduler.retry_after_cold_read(partition.log.cleaning.find_cleanable)
                except (OSError, StorageError) as error:
                    self._boundary.note_failure(partition, error)
                    continue
                if cleanable.is_worth_it(partition.log.config):
                    due.append((cleanable.dirty_ratio, partition))
                await trio.lowlevel.checkpoint()  # to look takes time, and there may be thousands
            await trio.lowlevel.checkpoint()
        due.sort(key=itemgetter(0), reverse=True)
        # Meanwhile another cleaner may have begun with the first ones.
        return next((partition for _, partition in due if partition.can_be_cleaned), None)

    async def _clean(self, partition: Partition) -> None:
        """Compact one partition by a worker process, if that is worth it, and put its segments in place."""
        partition_log = partition.log
        if partition in self._half_done:
            raise StorageError(_HALF_DONE)
        async with partition.maintenance:  # no truncation or retention is removing segments
            cleanable = await self._scheduler.retry_after_cold_read(partition_log.cleaning.find_cleanable)
            if not cleanable.is_worth_it(partition_log.config):
                return
            await self._offload.maintenance(discard_cleaned, self._fs, partition_log.directory)
            await self._scheduler.verify_transaction_indexes(partition_log)  # by which records are dropped
            partition.tell_mended_indexes()
            job = partition_log.cleaning.plan_cleaning(cleanable, self._config.current)
            job = replace(job, now_ms=min(job.now_ms, self._clock_trust.now_ms()))  # tombstones are dropped by age
        began = trio.current_time()
        try:
            result = await self._offload.clean(self._fs, job)
        except WorkerError as error:
            raise StorageError(f"a round of compaction ended early: {why(error)}") from error
        rate = self._config.current.log_cleaner_io_max_bytes_per_second
        self._metrics.compaction_read_bytes += result.bytes_read
        self._metrics.compaction_written_bytes += result.bytes_written
        self.pace.note(result.bytes_read + result.bytes_written, began, rate)
        # A record is dropped because of a later one, which must survive a power cut.
        await wait_durable(partition, cleanable.until_offset)
        # Saved before any record is dropped: a hole without a reason would be reported as a loss.
        partition_log.cleaning.note_compacted(result.first_dirty)
        await save_state(partition, self._offload)
        for group in result.groups:
            if not self._is_wanted(partition):
                return
            if not group.unchanged:
                await self._swap(partition, group)
        partition_log.cleaning.finish_cleaning(result)
        self._metrics.compactions["done"] += 1
        self._log_result(partition, result)
        try:
            await save_state(partition, self._offload)  # before the checkpoints: it has when tombstones are due
        except OSError as error:  # saved at the next checkpoint; after a crash the round is done again
            log.warning("state_not_saved", topic=partition.topic, partition=partition.number, reason=why(error))
        else:
            await self.checkpoints.write()

    @staticmethod
    def _is_wanted(partition: Partition) -> bool:
        if partition.log.state.read_only is None and "compact" in partition.log.config.cleanup_policy:
            return True
        reason = "the policy changed" if partition.log.state.read_only is None else "the partition is read-only"
        log.info("compaction_discarded", topic=partition.topic, partition=partition.number, reason=reason)
        return False

    async def _swap(self, partition: Partition, group: CleanedGroup) -> None:
        """Put one group of cleaned segments in place. A cancellation waits until the log and its files agree."""
        swap = SegmentSwap(self._fs, partition.log.directory, group.sources)
        known = any(damage.segment in group.sources for damage in partition.log.state.damaged)
        with trio.CancelScope(shield=True):
            async with partition.maintenance:
                await self._offload.maintenance(swap.promote)
                try:
                    partition.note_changed(is_replaced=True)  # also where only some of the renames succeed
                    deleted = partition.log.cleaning.install_cleaned(swap, group.damaged)
                except StorageError:
                    if swap.is_half_done:
                        self._half_done.add(partition)
                    raise
                await self._settle(partition, swap, deleted)
            if known or group.damaged:
                await save_state(partition, self._offload)  # its damaged ranges have positions in the new files
        await trio.lowlevel.checkpoint()

    async def _settle(self, partition: Partition, swap: SegmentSwap, deleted: DeletedSegments) -> None:
        def remove() -> int:
            swap.settle()  # again, if it failed the first time
            return deleted.remove()

        removal: Callable[[], int] = remove
        try:
            await self._offload.maintenance(swap.settle)
            removal = deleted.remove
        finally:
            what = f"{len(deleted.base_offsets)} compacted segments of {partition.topic}-{partition.number}"
            delay = partition.log.config.file_delete_delay_ms / 1000
            self.deletions.add(PendingDeletion(what, removal, partition), delay)

    async def _discard(self, partition: Partition) -> None:
        if partition.is_deleted or partition in self._half_done:
            return
        try:
            await self._offload.maintenance(discard_cleaned, self._fs, partition.log.directory)
        except OSError as error:
            log.warning("compaction_left_files", directory=partition.log.directory, reason=why(error))

    def _note_outcome(self, partition: Partition, *, succeeded: bool) -> None:
        partition.log.cleaning.note_cleaner_error(None if succeeded else partition.problems.get("compaction"))
        if succeeded:
            self._failures.pop(partition, None)
            return
        self._metrics.compactions["failed"] += 1
        failures = self._failures.get(partition, (0, 0.0))[0] + 1
        pause = min(max(self._backoff, 1.0) * 2 ** min(failures - 1, _DOUBLINGS_MAX), RETRY_SECONDS_MAX)
        self._failures[partition] = failures, trio.current_time() + pause

    @staticmethod
    def _log_result(partition: Partition, result: CleaningResult) -> None:
        facts = {"topic": partition.topic, "partition": partition.number}
        log.info(
            "partition_compacted",
            **facts,
            first_dirty_offset=result.first_dirty,
            segments_before=sum(len(group.sources) for group in result.groups),
            segments_after=len(result.groups),
            bytes_before=sum(group.bytes_before for group in result.groups),
            bytes_after=sum(group.bytes_after for group in result.groups),
            records_dropped=result.records_read - result.records_kept,
        )
        if result.keyless:
            log.warning("keyless_records_dropped", **facts, records=result.keyless)
        for group in result.groups:
            for damage in (*group.damaged, *group.unreadable):
                log.warning(
                    "damage_kept",
                    **facts,
                    start_offset=damage.start_offset,
                    end_offset=damage.end_offset,
                    reason=damage.reason,
                )
