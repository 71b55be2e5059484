"""Truncates a log: drops its oldest segments, or its records before or from an offset on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.log_files import DeletedSegments, LogFiles
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.log.roller import restore_append_times, restore_checksum
from seglog_broker.storage.producers.producer_snapshots import replay
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError


@dataclass(slots=True, eq=False)
class LogTruncation:
    """Truncates one log at either end."""

    _log: LoadedLog
    _leaving: list[DeletedSegments] = field(default_factory=list, init=False)
    """Segments that are out of the log, but that a start may still find."""

    def truncate_before(self, offset: int) -> int:
        """As ``PartitionLog.truncate_before``, for an offset at or below the log end."""
        offsets, state = self._log.offsets, self._log.state_file.state
        if offset > offsets.start:
            offsets.start = state.deleted_before = offset
            state.log_start_reason = "truncated"
            self._log.state_file.mark_dirty()
            self._log.epochs.truncate_from_start(offset)
        if not self._log.state_file.start_is_proven:
            self._log.state_file.save()
        self._log.epochs.save()
        return offsets.start

    def close_unreadable(self) -> bool:
        """Roll if all records of the active segment are below the log start; return whether that was so.

        Retention removes a closed segment below the log start, but never the active one. StorageError when the disk has
        no room for the roll.
        """
        if not self._log.segments.active.size or self._log.offsets.start < self._log.offsets.end:
            return False
        return self._log.roller.roll_or_note(self._log.offsets.end, RollReason.RETENTION)

    def drop_oldest(self, count: int) -> DeletedSegments:
        """Remove the oldest ``count`` segments from the log, and move the log start up to the first that stays.

        If none would be left, a new active segment is begun first; the log end never changes. If that fails, as on a
        full disk, the active segment stays and the others are still removed. Look-ups no longer find them. Then write
        the state, which proves the log start, then the log start checkpoint, then set the result's files aside: in this
        order a crash at any moment leaves a log without a gap. StorageError: nothing has changed.
        """
        segments, offsets, state = self._log.segments, self._log.offsets, self._log.state_file.state
        if count == len(segments):
            assert segments.active.size, "an empty active segment is not dropped"
            try:
                self._log.roller.roll_or_note(offsets.end, RollReason.RETENTION)
            except StorageError:
                count -= 1
                if not count:
                    raise
        going = segments.drop_oldest(count)
        for segment in going:
            segment.forget()
            state.rolls.pop(segment.base_offset, None)
        first = segments.bases[0]
        if first > offsets.start:
            offsets.start = first
            state.log_start_reason = "expired"
            self._log.epochs.truncate_from_start(first)
        self._log.damage.forget_before(first)
        bases = [segment.base_offset for segment in going]
        self._log.snapshots.forget(bases)
        self._log.transactions.drop(bases)
        self._log.state_file.mark_dirty()
        deleted = DeletedSegments(
            self._log.files.fs, self._log.files.directory, bases, sync_survivors=self._log.flusher.directory_is_dirty
        )
        self._leaving = [*(d for d in self._leaving if not d.is_set_aside), deleted]
        return deleted

    @property
    def first_base_on_disk(self) -> int:
        """The base offset of the first segment that a start would find."""
        return next((d.base_offsets[0] for d in self._leaving if not d.is_set_aside), self._log.segments.bases[0])

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to ``offset``; batches are not split, so it may end below that.

        Returns when the truncation, and what is left, survive a power cut.
        """
        if offset < self._log.offsets.end:
            self._cut_from(offset)
        self._log.epochs.truncate_from_end(offset)
        self._log.epochs.assign(self._log.leader_epoch, self._log.offsets.end)
        self._log.epochs.save()

    def _cut_from(self, offset: int) -> None:
        """Remove all records from ``offset`` on, in an order that a crash may interrupt anywhere."""
        segments, offsets, state = self._log.segments, self._log.offsets, self._log.state_file.state
        offsets.durable_end = min(offsets.durable_end, offset)
        if state.held_end > offset:
            state.held_end = 0
            self._log.state_file.save()  # first, or after a crash the truncated records would count as damage
        holding = segments.floor(offset)
        discard(self._log.files, segments[holding + 1 :])
        self._log.transactions.drop(segment.base_offset for segment in segments.drop_from(holding + 1))
        if holding < 0:
            self._log.roller.begin(offset)
        else:
            segments.active.truncate_to(offset)
        if self._log.damage.forget_after(segments):
            self._log.state_file.save()
        # activated again for the index interval and largest timestamp of what is left
        segments.active.release()
        offsets.end = segments.active.activate()
        restore_checksum(self._log.files, segments, self._log.state_file)
        offsets.durable_end = min(offsets.durable_end, offsets.end)
        offsets.start = min(offsets.start, offsets.end)
        # a batch that was cut held records on both sides of the log start, or the log was truncated below it
        if max(state.deleted_before, state.log_start or 0) > offsets.start:
            state.deleted_before = min(state.deleted_before, offsets.start)
            self._log.state_file.save()
        state.compacted_before = min(state.compacted_before, offsets.end)
        self._log.flusher.mark_directory_dirty()
        restore_append_times(self._log.files, segments, self._log.state_file, clean=False)
        self._log.flusher.flush()
        self._log.transactions.cut_back_to_log()  # a crash before leaves entries that the next load finds
        self._log.snapshots.truncate(
            segments.bases,
            log_end=offsets.end,
            now_ms=self._log.clock.now_ms(),
            replay=partial(replay, segments),
        )


def discard(files: LogFiles, segments: Sequence[Segment]) -> None:
    """Remove segments from the disk. They are renamed first, so that a crash leaves no partial segment.

    The last segment is removed first, so that a crash leaves no gap.
    """
    for segment in segments:
        segment.forget()
    deleted = DeletedSegments(files.fs, files.directory, [segment.base_offset for segment in reversed(segments)])
    deleted.set_aside()
    deleted.remove()
