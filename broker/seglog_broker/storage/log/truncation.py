"""Truncates a log: drops its oldest segments, or its records before an offset."""

from dataclasses import dataclass, field

from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_protocol.errors import StorageError


@dataclass(slots=True, eq=False)
class LogTruncation:
    """Truncates one log at its start."""

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
