"""Compaction: of each key in a compacted topic the newest record stays.

``log.cleaner.threads`` of these work side by side, each on one partition at a time, always the one with the highest
dirty ratio that is worth it. The records are gone through in a process of its own (``cleaner_process``), which writes
``.cleaned`` files and touches nothing else; here the loop only puts them in place, one group of segments at a time.

A round that fails (the worker dies, the disk is full) leaves the log as it was and is tried again, at first after
``log.cleaner.backoff.ms``, then after twice that, and so on. One that is not wanted any more (topic deleted, policy
changed, broker stopping) leaves nothing behind.
"""

from typing import TYPE_CHECKING, Final

import structlog
import trio

from seglog_broker.cleaner_process import CleanerError
from seglog_broker.storage.cleanable import Cleanable
from seglog_broker.storage.compaction_job import CleanedGroup, CleaningResult
from seglog_broker.storage.swap import SegmentSwap, discard_cleaned
from seglog_broker.tasks.boundary import TaskBoundary
from seglog_broker.tasks.checkpoint import write_checkpoints
from seglog_broker.tasks.deletion import Deletion
from seglog_broker.tasks.retention import shorten
from seglog_protocol.errors import StorageError

if TYPE_CHECKING:
    from seglog_broker.broker import Broker
    from seglog_broker.partition import Partition

log = structlog.get_logger()

RETRY_SECONDS_MAX: Final = 3600.0
"""The longest time between two rounds of a partition whose rounds fail."""


async def run_compaction(broker: "Broker") -> None:
    """Compact what is worth it, first ``log.initial.task.delay.ms`` after the start."""
    config = broker.config
    if not config.log_cleaner_enable or not config.log_cleaner_threads:
        log.warning("compaction_is_off", consequence="compacted topics grow for ever")
        return
    await trio.sleep(config.log_initial_task_delay_ms / 1000)
    rounds = Rounds(broker)
    async with trio.open_nursery() as nursery:
        for _ in range(config.log_cleaner_threads):
            nursery.start_soon(rounds.run)


class Rounds:
    """What the cleaners of one broker share: who failed how often, and when it may try again."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._boundary = TaskBoundary("compaction")
        self._retention = TaskBoundary("retention")
        self._failures: dict[Partition, tuple[int, float]] = {}  # how many in a row, when to try again (loop time)

    async def run(self) -> None:
        """Clean whatever is worth it, and sleep ``log.cleaner.backoff.ms`` when nothing is."""
        while True:
            if not await self.clean_next():
                await trio.sleep(max(self._backoff, 0.001))

    async def clean_next(self) -> bool:
        """One round of the partition that needs it most; False when none does."""
        chosen = await self._choose()
        if chosen is None:
            return False
        partition, cleanable = chosen

        async def work(partition: "Partition") -> None:
            await self._clean(partition, cleanable)

        with partition.clean() as scope, scope:
            try:
                succeeded = await self._boundary.run(partition, work)
            finally:
                with trio.CancelScope(shield=True):
                    await self._discard(partition)
        if not partition.is_deleted and not scope.cancelled_caught:
            self._note_outcome(partition, succeeded=succeeded)
            await shorten(self._broker, [partition], self._retention)
        return True

    @property
    def _backoff(self) -> float:
        return self._broker.config.log_cleaner_backoff_ms / 1000

    async def _choose(self) -> "tuple[Partition, Cleanable] | None":
        best: tuple[Partition, Cleanable] | None = None
        for partition in list(self._broker.partitions.values()):
            if not partition.can_be_cleaned or self._failures.get(partition, (0, 0.0))[1] > trio.current_time():
                continue
            try:
                cleanable = await self._broker.warmed(partition.log.find_cleanable)
            except (OSError, StorageError) as error:
                self._boundary.note_failure(partition, error)
                continue
            if cleanable.is_worth_it(partition.log.config) and (
                best is None or cleanable.dirty_ratio > best[1].dirty_ratio
            ):
                best = partition, cleanable
        # While others were looked at, another cleaner may have begun with it.
        return best if best is not None and best[0].can_be_cleaned else None

    async def _clean(self, partition: "Partition", cleanable: Cleanable) -> None:
        broker, partition_log = self._broker, partition.log
        try:
            result = await broker.offload.clean(broker.fs, partition_log.plan_cleaning(cleanable, broker.config))
        except CleanerError as error:
            raise StorageError(f"a round of compaction ended early: {error}") from error
        if "compact" not in partition_log.config.cleanup_policy:
            log.info("compaction_discarded", topic=partition.topic, partition=partition.number, reason="policy changed")
            return
        # Known before any record goes: a hole that nobody can explain would be told as a loss.
        partition_log.note_compacted(result.first_dirty)
        await partition.save_state()
        for group in result.groups:
            if not group.unchanged:
                with trio.CancelScope(shield=True):
                    await self._swap(partition, group)
                await trio.lowlevel.checkpoint()
        partition_log.finish_cleaning(result)
        await write_checkpoints(broker)
        self._tell(partition, result)

    async def _swap(self, partition: "Partition", group: CleanedGroup) -> None:
        broker = self._broker
        swap = SegmentSwap(broker.fs, partition.log.directory, group.sources)
        async with partition.maintenance:
            await broker.offload.maintenance(swap.promote)
            doomed = partition.log.install_cleaned(swap, group.damaged)
            await broker.offload.maintenance(swap.settle)
        what = f"{len(doomed.base_offsets)} compacted segments of {partition.topic}-{partition.number}"
        delay = partition.log.config.file_delete_delay_ms / 1000
        broker.deletions.add(Deletion(what, doomed.remove, partition), delay)

    async def _discard(self, partition: "Partition") -> None:
        if partition.is_deleted:
            return
        try:
            await self._broker.offload.maintenance(discard_cleaned, self._broker.fs, partition.log.directory)
        except OSError as error:
            log.warning("compaction_left_files", directory=partition.log.directory, reason=str(error))

    def _note_outcome(self, partition: "Partition", *, succeeded: bool) -> None:
        partition.log.note_cleaner_error(None if succeeded else partition.problems.get("compaction"))
        if succeeded:
            self._failures.pop(partition, None)
            return
        failures = self._failures.get(partition, (0, 0.0))[0] + 1
        pause = min(max(self._backoff, 1.0) * 2 ** (failures - 1), RETRY_SECONDS_MAX)
        self._failures[partition] = failures, trio.current_time() + pause

    @staticmethod
    def _tell(partition: "Partition", result: CleaningResult) -> None:
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
