"""Expired segments leave their logs.

Which those are is decided in ``storage.log.retention``. A segment leaves in this order, so that a crash at any moment
leaves a log without a hole: out of memory (from now on its offsets are out of range), log start checkpoint, names,
and after ``file.delete.delay.ms`` the disk.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import ExpiredSegment, PendingDeletion, PendingDeletions
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.deleted_segments import DeletedSegments
from seglog_broker.storage.log.retention import KEEP_FOR_EVER, DeletionRule, Verdict
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError

log = structlog.get_logger()

BUSY_SECONDS_MAX: Final = 1.0
"""For which a partition is waited for that another task is at work on: all but compaction are done by then."""

_PARTITIONS_AT_A_TIME: Final = 64
"""Shortened with one writing of the checkpoints, and looked at before others get their turn."""


REMOVAL_SECONDS_MAX: Final = 5.0
"""How long a request that makes room on a full disk waits until the files are gone."""


class _Found(NamedTuple):
    going: list[tuple[Segment, Verdict]]
    undated: list[Segment]  # of those that stay the oldest, up to the first whose age is known


class _Dropped(NamedTuple):
    deleted: DeletedSegments
    segments: tuple[ExpiredSegment, ...]  # the same ones, for explanations


class SegmentExpiry:
    """Takes segments that retention does not keep out of their logs."""

    def __init__(
        self,
        directory: LogDirectory,
        fs: FileSystem,
        clock: Clock,
        offload: Offload,
        reads: ColdReads,
        checkpoints: CheckpointWriter,
        deletions: PendingDeletions,
        metrics: Metrics,
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._reads = reads
        self._checkpoints = checkpoints
        self._deletions = deletions
        self._metrics = metrics

    async def check(self, partitions: Sequence[Partition], boundary: TaskBoundary, *, by_age: bool = True) -> None:
        """Look at each partition once; those that are being compacted are looked at when that is done."""
        busy: list[Partition] = []
        for start in range(0, len(partitions), _PARTITIONS_AT_A_TIME):
            await trio.lowlevel.checkpoint()  # where nothing is to be shortened nothing else waits
            busy += await self.expire(partitions[start : start + _PARTITIONS_AT_A_TIME], boundary, by_age=by_age)
        for partition in busy:  # one at a time: a task that waits for one must not hold another
            await self.expire([partition], boundary, by_age=by_age, patience_seconds=BUSY_SECONDS_MAX)

    async def expire(
        self,
        partitions: Sequence[Partition],
        boundary: TaskBoundary,
        *,
        by_age: bool = True,
        patience_seconds: float = 0,
    ) -> list[Partition]:
        """Take the segments that retention does not keep out of these logs; return the partitions that were busy.

        Busy is one whose files another task is at work on, and still is after ``patience_seconds``. Those that are
        being compacted are passed over.
        """
        shortened: dict[Partition, _Dropped] = {}
        busy: list[Partition] = []

        async def look(partition: Partition) -> None:
            if partition.log.config.retention_bytes > KEEP_FOR_EVER:
                await self._reads.learn_sizes([partition.log])
            found = await self._reads.retry_after_cold_read(lambda: _look(partition, by_age=by_age))
            if found.going:
                shortened[partition] = self._drop(partition, found.going)
            for segment in found.undated:
                await self._date(partition, segment)

        try:
            for partition in partitions:
                if partition.is_being_cleaned:
                    continue
                if not await _acquire(partition.maintenance, patience_seconds):
                    busy.append(partition)
                    continue
                try:
                    await boundary.run(partition, look)
                finally:
                    if partition not in shortened:
                        partition.maintenance.release()
                if partition in shortened:
                    await trio.lowlevel.checkpoint()  # to end a log's oldest segments is work, and there are many logs
            for partition in shortened:
                await self._checkpoints.save_log_start(partition)
            if shortened:
                # Where it cannot be written, a power cut between two changes of names leaves a hole below the log
                # start: no reason to keep what is to go, least of all on a full disk.
                await self._checkpoints.write()
                for partition, dropped in shortened.items():
                    await self._set_aside(boundary, partition, dropped)
        finally:
            for partition in shortened:
                partition.maintenance.release()
        return busy

    async def remove_now(self, partitions: Sequence[Partition] = ()) -> None:
        """Where the disk is full, have files that are not needed any more removed now, not when their time comes."""
        space = self._directory.space
        with suppress(OSError):
            space.refresh()
        if not space.is_short:
            return
        for partition in partitions:
            with suppress(StorageError):  # without room for another the active segment stays
                if space.with_ballast(partition.log.truncation.close_unreadable):
                    partition.note_rolled(str(RollReason.RETENTION))
        await self.expire(partitions, TaskBoundary("retention"), by_age=False)
        self._deletions.hasten()
        with trio.move_on_after(REMOVAL_SECONDS_MAX):
            await self._deletions.wait_removed()
        with suppress(OSError):
            space.refresh()

    def _drop(self, partition: Partition, going: list[tuple[Segment, Verdict]]) -> _Dropped:
        active = partition.log.active
        deleted = self._directory.space.with_ballast(partial(partition.log.truncation.drop_oldest, len(going)))
        if partition.log.active is not active:
            partition.note_rolled(str(RollReason.RETENTION))
        for segment, verdict in going[: len(deleted.base_offsets)]:  # without room for another the active one stays
            self._metrics.segments_expired += 1
            self._metrics.expired_bytes += segment.size
            _log_expired(partition, segment, verdict)
        bases = [*deleted.base_offsets, partition.log.segments[0].base_offset]
        return _Dropped(
            deleted,
            tuple(
                ExpiredSegment(segment.base_offset, end, segment.size, str(verdict.rule))
                for (segment, verdict), end in zip(going, bases[1:], strict=False)
            ),
        )

    async def _date(self, partition: Partition, segment: Segment) -> None:
        """Let a segment age from now on, because nothing tells how old it is."""
        now = self._clock.now_ms()
        await self._offload.maintenance(self._fs.set_mtime, segment.log_path, now)
        if segment is partition.log.active:
            partition.log.forget_last_append()
        log.warning(
            "age_unknown",
            topic=partition.topic,
            partition=partition.number,
            base_offset=segment.base_offset,
            ages_from=now,
        )

    async def _set_aside(self, boundary: TaskBoundary, partition: Partition, dropped: _Dropped) -> None:
        deleted = dropped.deleted

        def remove() -> int:
            deleted.set_aside()  # again, if it failed the first time
            return deleted.remove()

        with_ballast = self._directory.space.with_ballast
        await boundary.run(partition, lambda _: self._offload.maintenance(with_ballast, deleted.set_aside))
        what = f"{len(deleted.base_offsets)} segments of {partition.topic}-{partition.number}"
        self._deletions.add(
            PendingDeletion(what, remove, partition, dropped.segments), partition.log.config.file_delete_delay_ms / 1000
        )


async def _acquire(lock: trio.Lock, patience_seconds: float) -> bool:
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        with trio.move_on_after(patience_seconds):
            await lock.acquire()
            return True
        return False
    return True


def _look(partition: Partition, *, by_age: bool) -> _Found:
    found = _Found([], [])
    partition.next_expiry_ms = None
    for segment, verdict in partition.log.retention.judge_segments():
        goes = verdict.rule is not None and (by_age or verdict.rule is not DeletionRule.TIME)
        if goes and not found.undated:
            found.going.append((segment, verdict))
        elif verdict.age is not None and verdict.age.is_unknown:
            found.undated.append(segment)
        else:
            partition.next_expiry_ms = None if found.undated else verdict.due_ms
            break
    return found


def _log_expired(partition: Partition, segment: Segment, verdict: Verdict) -> None:
    age = verdict.age if verdict.rule is DeletionRule.TIME else None
    log.info(
        "segment_expired",
        topic=partition.topic,
        partition=partition.number,
        base_offset=segment.base_offset,
        bytes=segment.size,
        rule=str(verdict.rule),
        **({} if age is None else {"newest_ms": age.since_ms, "newest_by": str(age.source)}),
    )
    if age is not None and age.warning is not None:
        log.warning("age_doubtful", topic=partition.topic, partition=partition.number, reason=age.warning)
