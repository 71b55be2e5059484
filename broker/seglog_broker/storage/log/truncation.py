"""Shortening a log: its oldest segments by retention, its records before or from an offset on."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial

from seglog_broker.storage.log.deleted_segments import DoomedSegments
from seglog_broker.storage.log.flushing import LogFlushing
from seglog_broker.storage.log.reading import LogReading
from seglog_broker.storage.log.retention import AgeSource, LastWrite, RetentionJudge, Verdict
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.log.rolling import LogRolling
from seglog_broker.storage.log.state import CHECKSUM_CATCH_UP_BYTES
from seglog_broker.storage.producers.replay import replay
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError


class LogShortening(LogRolling, LogFlushing, LogReading):
    """A log that is shortened at either end."""

    def judge_segments(self) -> Iterator[tuple[Segment, Verdict]]:
        """What retention does with each segment now, from the oldest on; see ``retention``.

        Lazily: whoever stops early has touched nothing of the segments behind, and when one of them has left the log
        meanwhile, it ends there. May raise ColdReadError.
        """
        config = self.config
        judge = RetentionJudge(
            config,
            log_start_offset=self.log_start_offset,
            total_size=self.size if config.retention_bytes >= 0 else 0,
            now_ms=self._clock.now_ms(),
        )
        bases = list(self._bases)
        next_bases: list[int | None] = [*bases[1:], None]
        for base, next_base in zip(bases, next_bases, strict=True):
            segment = self._segments.at(base)  # not by number: between two turns the oldest may go
            if segment is None:
                return
            yield segment, judge.judge(segment, partial(self.last_write, segment), next_base=next_base)

    def last_write(self, segment: Segment) -> LastWrite:
        """When something was last appended to ``segment``, as well as it can be told."""
        if segment is self.active and self.state.last_append_ms is not None:
            return LastWrite(self.state.last_append_ms, AgeSource.LAST_APPEND)
        return LastWrite(segment.modified_ms, AgeSource.MODIFICATION_TIME)

    def forget_last_append(self) -> None:
        """What is remembered of it cannot be true: the file's modification time tells of the active segment as well."""
        self.state.last_append_ms = None
        self._state_unsaved = True

    def truncate_before(self, offset: int) -> int:
        """Move the log start up to ``offset`` (delete records before it); return the new log start.

        Segments that lie wholly below are left to retention. The caller persists the log start checkpoint, and where
        the start is not proven yet, because the state is just being written, first has that end. OSError: it has moved,
        and what is remembered of that is saved by the next call, for whatever offset, or later.
        """
        self.check_offset(max(offset, self.log_start_offset))
        if offset > self.log_start_offset:
            self.log_start_offset = self.state.deleted_before = offset
            self.state.log_start_reason = "truncated"
            self._state_unsaved = True
            self.epochs.truncate_from_start(offset)
        if not self.start_is_proven:
            self._save_state()
        self.epochs.save()
        return self.log_start_offset

    @property
    def start_is_proven(self) -> bool:
        """Whether a start after a crash finds the log start where it is now."""
        return self.proven_start_offset >= self.log_start_offset

    def close_unreadable(self) -> bool:
        """Begin a new segment if no record of the active one can be read any more; say whether that was so.

        Its records have been deleted: retention takes it then, as it takes no active one for that reason. StorageError:
        there is no room even for that.
        """
        if not self.active.size or self.log_start_offset < self.log_end_offset:
            return False
        return self._roll_or_note(self.log_end_offset, RollReason.RETENTION)

    def drop_oldest(self, count: int) -> DoomedSegments:
        """Take the oldest ``count`` segments out of the log and move the log start up to what is left.

        If none would be left, a new active one is begun first; the log end never changes. Where that fails, as it does
        on a full disk, the active segment stays and the others make room. From now on nobody finds the segments. Have
        the state written, which proves the log start, then the log start checkpoint, then set the result's files aside:
        in this order a crash at any moment leaves a log without a hole. StorageError: nothing has changed.
        """
        if count == len(self._segments):
            assert self.active.size, "an empty active segment is not dropped"
            try:
                self._roll_or_note(self.log_end_offset, RollReason.RETENTION)
            except StorageError:
                count -= 1
                if not count:
                    raise
        going = self._segments[:count]
        del self._segments[:count]
        for segment in going:
            segment.forget()
            self.state.rolls.pop(segment.base_offset, None)
        if self._bases[0] > self.log_start_offset:
            self.log_start_offset = self._bases[0]
            self.state.log_start_reason = "expired"
            self.epochs.truncate_from_start(self.log_start_offset)
        self._forget_expired_damage()
        self._snapshots.forget([segment.base_offset for segment in going])
        self._state_unsaved = True
        doomed = DoomedSegments(
            self._fs,
            self.directory,
            [segment.base_offset for segment in going],
            sync_survivors=self._directory_is_dirty,
        )
        self._leaving = [*(d for d in self._leaving if not d.is_set_aside), doomed]
        return doomed

    @property
    def first_base_on_disk(self) -> int:
        """Where a start would find the log beginning, were it not told otherwise."""
        return next((d.base_offsets[0] for d in self._leaving if not d.is_set_aside), self._bases[0])

    def truncate_to(self, offset: int) -> None:
        """Drop every record at or above ``offset``; batches are not split, so the log may end below it.

        Returns when what is left, and that the rest is gone, survives a power cut.
        """
        if offset < self.log_end_offset:
            self.durable_end_offset = min(self.durable_end_offset, offset)
            if self.state.held_end > offset:
                self.state.held_end = 0
                self._save_state()  # first, or a crash amid this would make damage of what goes
            first = bisect_right(self._bases, offset) - 1
            self._discard(self._segments[first + 1 :])
            if first < 0:
                del self._segments[:]
                self._add_segment(offset)
            else:
                del self._segments[first + 1 :]
                self.active.truncate_to(offset)
            self._forget_damage_that_went()
            # Activating anew takes up interval and largest timestamp from what is left.
            self.active.release()
            self.log_end_offset = self.active.activate()
            self._take_up_checksum(bytes_max=CHECKSUM_CATCH_UP_BYTES, is_sound=True)
            self.durable_end_offset = min(self.durable_end_offset, self.log_end_offset)
            self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
            # A batch that was cut held records on both sides of it, or the log was cut below its start.
            if max(self.state.deleted_before, self.state.log_start or 0) > self.log_start_offset:
                self.state.deleted_before = min(self.state.deleted_before, self.log_start_offset)
                self._save_state()
            self.state.compacted_before = min(self.state.compacted_before, self.log_end_offset)
            self._directory_is_dirty = True
            self._settle_appends(clean=False)
            self.flush()
            self._snapshots.truncate(
                self._bases,
                log_start=self.log_start_offset,
                log_end=self.log_end_offset,
                now_ms=self._clock.now_ms(),
                replay=partial(replay, self._segments),
            )
        self.epochs.truncate_from_end(offset)
        self.epochs.assign(self.leader_epoch, self.log_end_offset)
        self.epochs.save()

    def _discard(self, segments: Sequence[Segment]) -> None:
        """Remove segments from the disk: renamed first, so that a crash between two files leaves no half segment.

        The last one goes first, so that a crash between two segments leaves no hole.
        """
        for segment in segments:
            segment.forget()
        doomed = DoomedSegments(self._fs, self.directory, [segment.base_offset for segment in reversed(segments)])
        doomed.set_aside()
        doomed.remove()
