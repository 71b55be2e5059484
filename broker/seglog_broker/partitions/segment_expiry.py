"""Removes expired segments from their logs, and the schedule of the checks that do.

``storage.log.truncation`` decides which segments have expired. The order of the steps leaves a log without a hole after
a crash at any moment: the segment leaves the log in memory, and its offsets are out of range from then on; the log
start checkpoint is written; the files are renamed, and removed after ``file.delete.delay.ms``.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import ExpiredSegment, PendingDeletion, PendingDeletions
from seglog_broker.partitions.scheduler import Service
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.log.truncation import KEEP_FOR_EVER, DeletionRule, Verdict
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError

log = get_logger()

BUSY_SECONDS_MAX: Final = 1.0
"""How long to wait for a partition that another task is working on. All tasks but compaction end within this time."""

_PARTITIONS_AT_A_TIME: Final = 64
"""Partitions that are handled between two writes of the checkpoints."""


REMOVAL_SECONDS_MAX: Final = 5.0
"""How long a request that frees space on a full disk waits for the removal of the files."""


class RetentionSchedule:
    """The times of retention checks, for the task and for explanations.

    ``next_check`` is loop time, infinite until the task has begun.
    """

    def __init__(self, *, interval_ms: int, first_ms: int) -> None:
        """The first check is ``first_ms`` after ``begin``, the others every ``interval_ms``."""
        self.interval_ms = interval_ms
        self.next_check = math.inf
        self._first_ms = first_ms
        self._is_checking = False
        self._has_begun = False

    def begin(self) -> None:
        """Start the schedule now."""
        self._has_begun = True
        self.next_check = trio.current_time() + self._first_ms / 1000

    def reconfigure(self, interval_ms: int) -> None:
        """Change the interval. The next check is not later than it was."""
        self.interval_ms = interval_ms
        if self._has_begun:
            self.next_check = min(self.next_check, trio.current_time() + interval_ms / 1000)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Mark a check. The next ones stay at fixed times however long it takes, which predictions rely on."""
        self._is_checking = True
        try:
            yield
        finally:
            self._is_checking = False
            behind, interval = trio.current_time() - self.next_check, self.interval_ms / 1000
            if behind >= 0:  # by many intervals, where a test lets years pass
                self.next_check += (behind // interval + 1) * interval

    @property
    def ms_to_next(self) -> tuple[int, int]:
        """(earliest, latest) time in ms until a partition is checked next; they differ while a check is running."""
        if not self._has_begun:
            return self._first_ms, self._first_ms
        left = round((self.next_check - trio.current_time()) * 1000)
        return max(0, left), max(0, left) + (self.interval_ms if self._is_checking else 0)


class _Found(NamedTuple):
    going: list[tuple[Segment, Verdict]]
    undated: list[Segment]  # the oldest segments that stay, up to the first one of known age


class _Dropped(NamedTuple):
    deleted: DeletedSegments
    segments: tuple[ExpiredSegment, ...]  # the same ones, for explanations


@dataclass(eq=False, repr=False)
class SegmentExpiry(Service):
    """Removes segments that retention does not keep from their logs."""

    _checkpoints: CheckpointWriter
    _deletions: PendingDeletions

    async def check(self, partitions: Sequence[Partition], boundary: TaskBoundary) -> None:
        """Check each partition once. Those that are being compacted are skipped: the cleaner checks them afterwards."""
        busy: list[Partition] = []
        for start in range(0, len(partitions), _PARTITIONS_AT_A_TIME):
            await trio.lowlevel.checkpoint()  # where nothing is to be shortened nothing else waits
            busy += await self.expire(partitions[start : start + _PARTITIONS_AT_A_TIME], boundary)
        for partition in busy:  # one at a time: while waiting for one partition no other may be held
            await self.expire([partition], boundary, patience_seconds=BUSY_SECONDS_MAX)

    async def expire(
        self,
        partitions: Sequence[Partition],
        boundary: TaskBoundary,
        *,
        by_age: bool = True,
        patience_seconds: float = 0,
    ) -> list[Partition]:
        """Remove the segments that retention does not keep from these logs; return the partitions that were busy.

        A partition is busy if another task still uses its files after ``patience_seconds``. Partitions that are being
        compacted are skipped.
        """
        shortened: dict[Partition, _Dropped] = {}
        busy: list[Partition] = []

        async def drop_expired(partition: Partition) -> None:
            if partition.log.config.retention_bytes > KEEP_FOR_EVER:
                await self._scheduler.learn_sizes([partition.log])
                if self._directory.space.is_full:
                    self._close_large(partition)
            # The clock is asked in the step that judges: it may jump while a check is under way.
            found = await self._scheduler.retry_after_cold_read(
                lambda: _find_expired(partition, by_age=by_age and not self._clock_trust.is_held)
            )
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
                    await boundary.run(partition, drop_expired)
                finally:
                    if partition not in shortened:
                        partition.maintenance.release()
                if partition in shortened:
                    await trio.lowlevel.checkpoint()  # dropping segments takes time, and there are many logs
            for partition in shortened:
                await self._checkpoints.save_log_start(partition)
            if shortened:
                # If it cannot be written, a power cut between two renames leaves a hole below the log start. That is
                # no reason to keep expired segments, least of all on a full disk.
                await self._checkpoints.write()
                for partition, dropped in shortened.items():
                    await self._set_aside(boundary, partition, dropped)
        finally:
            for partition in shortened:
                partition.maintenance.release()
        return busy

    async def remove_now(self, partitions: Sequence[Partition] = ()) -> None:
        """If the disk is full, remove the files of deleted records and topics now, without their delay."""
        space = self._directory.space
        with suppress(OSError):
            space.refresh()
        if not space.is_short:
            return
        for partition in partitions:
            with suppress(StorageError):  # without room for a new segment the active one stays
                if space.with_ballast(partition.log.truncation.close_unreadable):
                    partition.note_rolled(str(RollReason.RETENTION))
        await self.expire(partitions, TaskBoundary("retention"), by_age=False)
        self._deletions.hasten()
        with trio.move_on_after(REMOVAL_SECONDS_MAX):
            await self._deletions.wait_removed()
        with suppress(OSError):
            space.refresh()

    def _close_large(self, partition: Partition) -> None:
        """Close an active segment that is larger than the whole log may be: then it goes once as much lies behind it.

        On a full disk it would not be filled, nor be removed, as long as the disk is full.
        """
        log = partition.log
        if "delete" in log.config.cleanup_policy and log.config.retention_bytes < log.active.size:
            roll = partial(log.roller.roll_or_note, log.log_end_offset, RollReason.RETENTION)
            with suppress(StorageError):  # without room for a new segment it stays active
                if log.state.read_only is None and self._directory.space.with_ballast(roll):
                    partition.note_rolled(str(RollReason.RETENTION))

    def _drop(self, partition: Partition, going: list[tuple[Segment, Verdict]]) -> _Dropped:
        active = partition.log.active
        deleted = self._directory.space.with_ballast(partial(partition.log.truncation.drop_oldest, len(going)))
        partition.note_changed()
        if partition.log.active is not active:
            partition.note_rolled(str(RollReason.RETENTION))
        for segment, verdict in going[: len(deleted.base_offsets)]:  # without room the active segment stays
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
        """Set the modification time of a segment of unknown age to now, from which its age then counts."""
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


def _find_expired(partition: Partition, *, by_age: bool) -> _Found:
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
        log.warning("segment_age_unknown", topic=partition.topic, partition=partition.number, reason=age.warning)
