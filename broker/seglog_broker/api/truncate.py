"""Deletes records before an offset: the log start is raised, and survives a power cut before the reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.partitions.segment_expiry import SegmentExpiry
from seglog_broker.runtime import budget
from seglog_broker.storage.io.os_errors import is_no_room, storage_error, why
from seglog_protocol.errors import InvalidTopicError, PolicyViolationError, SeglogError, without_frames
from seglog_protocol.internal_topics import is_internal
from seglog_protocol.messages import TruncatePartition, TruncateReply, TruncateRequest, TruncateResult

log = get_logger()

TRUNCATIONS_A_TURN: Final = budget.items_of(cost=250)
"""Partitions whose log start is raised before other tasks run, because files are read for each."""


@dataclass(eq=False, repr=False)
class TruncateService(Service):
    """Deletes records before an offset."""

    _checkpoints: CheckpointWriter
    _expiry: SegmentExpiry

    async def truncate(self, request: TruncateRequest, *, for_broker: bool = False) -> TruncateReply:
        """Delete records before an offset; returns when the new log starts survive a power cut.

        Those of the broker's own topics are deleted for the broker alone.
        """
        results: list[TruncateResult] = []
        moved: dict[Partition, None] = {}  # each once, however often it is named
        async for item in self._scheduler.spread(request.partitions, TRUNCATIONS_A_TURN):
            try:
                results.append(self._truncate_one(item, for_broker=for_broker))
                moved[self._table.partition(item.topic, item.partition)] = None
            except SeglogError as error:
                partition = self._table.find(item.topic, item.partition)
                placed = partition.with_partition(error) if partition is not None else error
                results.append(TruncateResult(item.topic, item.partition, error=without_frames(placed)))
        if moved:
            await self._write_moved([partition for partition in moved if not partition.is_deleted])
        return TruncateReply(results)

    async def _write_moved(self, moved: Sequence[Partition]) -> None:
        """Return when these new log starts survive a crash. On a full disk the removed files make room for it."""
        failure = await self._checkpoints.write_log_starts([p for p in moved if not p.log.start_is_proven])
        if failure is None or is_no_room(failure):
            await self._expiry.remove_now(moved)
        if is_no_room(failure):
            failure = await self._checkpoints.write_log_starts([p for p in moved if not p.log.start_is_proven])
        if failure is not None:
            raise storage_error(
                f"the new log starts are in force, but could not be written: {why(failure)}; a restart brings the old "
                "ones back unless they can be before, so make room and ask again"
                if is_no_room(failure)
                else f"the new log starts could not be written: {why(failure)}; ask again",
                failure,
            )

    def _truncate_one(self, item: TruncatePartition, *, for_broker: bool) -> TruncateResult:
        if is_internal(item.topic) and not for_broker:
            raise InvalidTopicError(
                f"topic {item.topic} is the broker's own: its records are not to be deleted", topic=item.topic
            )
        partition = self._table.partition(item.topic, item.partition)
        partition_log = partition.log
        if partition_log.config.cleanup_policy == ("compact",):
            raise PolicyViolationError(
                f"topic {item.topic} is compacted: delete records by their keys, with a null value, "
                "or add delete to its cleanup.policy"
            )
        offset = partition_log.log_end_offset if item.offset is None else item.offset
        before = partition_log.log_start_offset
        try:
            earliest = self._directory.space.with_ballast(partial(partition_log.truncate_before, offset))
        except OSError as error:
            self._checkpoints.note_unsaved_start(partition)
            if not is_no_room(error):
                raise storage_error(
                    f"the new log start could not be written: {why(error)}; ask again", error
                ) from error
            earliest = partition_log.log_start_offset  # space is freed below, and it is tried again
        if earliest != before:
            partition.note_changed()
            tell = log.debug if for_broker else log.info
            tell("log_start_moved", topic=item.topic, partition=item.partition, offset=earliest, reason="truncated")
        return TruncateResult(item.topic, item.partition, earliest=earliest)
