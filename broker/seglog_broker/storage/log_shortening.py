"""Shortening a log: its oldest segments by retention, its records before or from an offset on."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial

from seglog_broker.storage.doomed import DoomedSegments
from seglog_broker.storage.log_flushing import LogFlushing
from seglog_broker.storage.log_reading import LogReading
from seglog_broker.storage.log_rolling import LogRolling
from seglog_broker.storage.log_state import CHECKSUM_CATCH_UP_BYTES
from seglog_broker.storage.replay import replay
from seglog_broker.storage.retention import AgeSource, LastWrite, RetentionJudge, Verdict
from seglog_broker.storage.rolling import RollReason
from seglog_broker.storage.segment import Segment
from seglog_protocol.errors import StorageError


class LogShortening(LogRolling, LogFlushing, LogReading):
    """A log that is shortened at either end."""

    def judge_segments(self) -> Iterator[tuple[Segment, Verdict]]:
        """What retention does with each segment now, from the oldest on; see ``retention``.

        Lazily: whoever stops early has touched nothing of the segments behind. May raise ColdReadError.
        """
        config = self.config
        judge = RetentionJudge(
            config,
            log_start_offset=self.log_start_offset,
            total_size=self.size if config.retention_bytes >= 0 else 0,
            now_ms=self._clock.now_ms(),
        )
        next_bases: list[int | None] = [*self._bases[1:], None]
        for segment, next_base in zip(list(self._segments), next_bases, strict=True):
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

        Segments that lie wholly below are left to retention. The caller persists the log start checkpoint.
        """
        self.check_offset(max(offset, self.log_start_offset))
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            if self.state.log_start_reason != "truncated":
                self.state.log_start_reason = "truncated"
                self._save_state()
            self.epochs.truncate_from_start(offset)
            self.epochs.save()
        return self.log_start_offset

    def drop_oldest(self, count: int) -> DoomedSegments:
        """Take the oldest ``count`` segments out of the log and move the log start up to what is left.

        If none would be left, a new active one is begun first; the log end never changes. Where that fails, as it does
        on a full disk, the active segment stays and the others make room. From now on nobody finds the segments. Have
        the log start checkpoint written, then set the result's files aside: in this order a crash at any moment leaves
        a log without a hole. StorageError: nothing has changed.
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
        del self._segments[:count], self._bases[:count]
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
            first = bisect_right(self._bases, offset) - 1
            self._discard(self._segments[first + 1 :])
            if first < 0:
                self._segments, self._bases = [], []
                self._add_segment(offset)
            else:
                del self._segments[first + 1 :], self._bases[first + 1 :]
                self.active.truncate_to(offset)
            self._forget_damage_that_went()
            # Activating anew takes up interval and largest timestamp from what is left.
            self.active.release()
            self.log_end_offset = self.active.activate()
            self._take_up_checksum(bytes_max=CHECKSUM_CATCH_UP_BYTES, is_sound=True)
            self.durable_end_offset = min(self.durable_end_offset, self.log_end_offset)
            self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
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
