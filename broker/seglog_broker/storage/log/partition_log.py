"""A partition's log: its segments in order, appended to at one end, read anywhere, shortened at either end.

Synchronous, one owner, no locks: every method is atomic to whoever calls it from one loop. Time comes in as a clock,
files through the seam. What needs the disk to be waited for is handed out as a ``Flush``, whose ``run`` may go to a
thread: it holds leases and touches nothing of the log.

Offsets: [``log_start_offset``, ``log_end_offset``) can be read, everything below ``durable_end_offset`` survives a
power cut. What is done with a log between ``open`` and ``close`` is in the parts it inherits from: ``log_reading``,
``log_appending`` and the others. Invariants 1 to 5 of ARCHITECTURE.md live here and there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from seglog_broker.storage.io.checkpoints import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT
from seglog_broker.storage.log.appending import LogAppending
from seglog_broker.storage.log.cleaning import LogCleaning
from seglog_broker.storage.log.end_marks import LogMarks
from seglog_broker.storage.log.leader_epochs import EPOCH_MAX
from seglog_broker.storage.log.log_start import believed_start, records_gone
from seglog_broker.storage.log.partition_state import StoppedAt
from seglog_broker.storage.log.recovery import (
    LogRecovery,
    Progress,
    RecoveryReport,
    TailUnreadError,
    remove_without_log,
    settle_checksum,
    tidy_directory,
)
from seglog_broker.storage.log.state import CHECKSUM_CATCH_UP_BYTES
from seglog_broker.storage.log.truncation import LogShortening
from seglog_broker.storage.producers.producer_snapshots import LoadReport, Replaying
from seglog_broker.storage.producers.replay import replay, replayed
from seglog_protocol.errors import CorruptRecordError, StorageError


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What opening a partition found, for the log of the broker."""

    recovery: RecoveryReport | None
    rebuilt_indexes: int
    problems: Sequence[str]  # small files that were not taken as they stood
    producers: LoadReport


class PartitionLog(LogAppending, LogShortening, LogCleaning):
    """One partition; of no use before ``open``."""

    def open(
        self,
        *,
        clean: bool,
        recovery_point: int = 0,
        high_watermark: int | None = None,
        saved_end: int | None = None,
        log_start: int = 0,
        compacted_before: int = 0,
        may_recover: bool = True,
        progress: Progress | None = None,
    ) -> OpenReport:
        """Open what is in the directory; ``compacted_before`` is what the cleaner's checkpoint says, if anything.

        After a ``clean`` stop only the active segment is opened, if it ends where the log ended then: at ``saved_end``
        if that is given, else as ``LogMarks`` finds it, the ``high_watermark`` of that stop among them. After any
        other, everything from the segment that holds ``recovery_point`` on is read and checked; below it the bytes are
        known to be on the disk, so a log that ends right there is not read either. Raises TailUnreadError where it
        ``may_recover`` not and would have to.
        """
        found = tidy_directory(self._fs, self.directory, clean=clean)
        epoch_before = self._take_up_state(clean=clean, compacted_before=compacted_before)
        self._segments.load(found)
        for damage in self.state.damaged:
            self._take_note_of(damage)
        is_bare = not self._segments
        if is_bare:
            self._add_segment(self._base_without_segments(log_start))
        epochs = self.epochs.problem and f"{LEADER_EPOCH_CHECKPOINT} is not taken: {self.epochs.problem}"
        problems = [problem for problem in (epochs, self.state_problem) if problem is not None]
        if is_bare:
            problems.append(
                "it had no .log file, and its records are gone: restore them from a backup, if you have one"
            )
        stopped = self._stopped if clean and saved_end is None else None  # of a recovery the checkpoint knows nothing
        log_start = self._settle_start(log_start, problems, clean=clean, stopped=stopped)
        recovery = None
        replaying = None
        end = 0
        marks = LogMarks.find(
            found, self._bases, recovery_point, high_watermark if clean else None, self.state.held_end
        )
        expected = (marks.end_at_clean_stop() if saved_end is None else saved_end) if clean else None
        is_known = clean or (marks.held_end() <= recovery_point and self.active.ends_at(recovery_point))
        if is_known:
            try:
                end = self.active.activate()
                # Records that went since a clean stop have offsets that would be given out again, under the old epoch;
                # and an end that lies behind the one then comes from an offset that its checksum does not cover.
                is_known = expected is None or end == expected or (saved_end is None and marks.agree_on(end))
                is_known = is_known and (saved_end is not None or self.active.ends_sound())
            except CorruptRecordError:
                is_known = False  # the marker lied about this one
            if clean and not is_known:
                recovery_point = min(recovery_point, self.active.base_offset)
        clean = clean and is_known
        if not is_known:
            if not may_recover:
                raise TailUnreadError(self.directory)
            held_end = marks.held_end() if expected is None else expected
            recovery, replaying = self._recover(
                found,
                recovery_point,
                log_start,
                progress,
                held_end=held_end,
                is_exact=expected is not None and expected >= self.active.base_offset,
            )
            end = self.active.activate()
        if marks.without_log:  # only now: what they tell has been remembered
            remove_without_log(self._fs, self.directory, found, set(self._bases))
        rebuilt = self._rebuild_missing_indexes()
        self._draw_segment_age()
        if recovery is None:
            self._take_up_checksum(bytes_max=CHECKSUM_CATCH_UP_BYTES, is_sound=True)
        else:  # which has just read all of it
            self._take_up_checksum(bytes_max=self.active.size, is_sound=not self.active.damaged)
        self.log_end_offset = max(end, self.active.base_offset)
        self.durable_end_offset = self.log_end_offset
        if self.state.read_only is not None:  # pages that a failed fsync dropped look clean: reading proves nothing
            self.durable_end_offset = min(recovery_point, self.log_end_offset)
        if self.log_end_offset < log_start:
            epoch_before = max(epoch_before, self.epochs.latest, self.active.last_leader_epoch)
            self._restart_at(log_start)
            replaying = None  # what was counted is gone
        if recovery is not None and self.state.read_only is None:  # which has synced what it kept
            self.state.held_end = self.log_end_offset
            self._state_unsaved = True
        self.log_start_offset = max(log_start, self._bases[0])
        self.state.compacted_before = min(self.state.compacted_before, self.log_end_offset)
        self._forget_expired_damage()
        self._settle_epochs(epoch_before, clean=clean)
        self._settle_appends(clean=clean)
        self.state.log_start = self.proven_start_offset = self.log_start_offset
        if replaying is not None:
            producers = self._snapshots.finish(replaying, self.log_end_offset)
        else:
            producers = self._snapshots.load(
                found,
                self._bases,
                log_start=self.log_start_offset,
                log_end=self.log_end_offset,
                recovered_from=None if clean else self.log_end_offset if recovery is None else recovery.first_base,
                now_ms=self._clock.now_ms(),
                replay=partial(replay, self._segments),
            )
        problems += marks.problems(self.log_end_offset)
        return OpenReport(recovery, rebuilt, problems, producers)

    def _base_without_segments(self, log_start: int) -> int:
        """Where a log begins whose segments are gone: as far on as is known, so that few offsets are given again."""
        epochs = [entry.start_offset for entry in self.epochs.entries]
        return max(log_start, self.state.log_start or 0, self.state.deleted_before, *epochs[-1:])

    def _settle_start(self, claimed: int, problems: list[str], *, clean: bool, stopped: StoppedAt | None) -> int:
        """Where the log starts, of which the checkpoint says ``claimed``; what contradicts that goes to ``problems``.

        ``stopped`` is where the last stop left it, if that is known and nothing was to change since. Records that are
        gone from the beginning are remembered as such, for who asks for them.
        """
        first = self._bases[0]
        is_empty = len(self._bases) == 1 and not self.active.size
        believed = believed_start(claimed, self.state, self.epochs.entries, first, is_empty=is_empty)
        if believed.problem is not None:
            problems.append(believed.problem)
        elif stopped is not None and first <= stopped.log_start != max(claimed, first):
            problems.append(
                f"{LOG_START_CHECKPOINT} says {claimed}, where the last stop had {stopped.log_start}: it is not "
                "believed"
            )
        gone = records_gone(claimed, self.state, self._epochs_of_stop if clean else (), first)
        if gone is not None:
            problems.append(
                f"the records {gone.start} to {gone.end - 1} are gone, with which the log began (by {gone.source}): "
                "restore their segments from a backup, if you have one, before the next start"
            )
            self.state.log_start_reason = "missing"
            self._state_unsaved = True
        self.log_start_offset = max(believed.offset, first)
        return believed.offset

    def _recover(
        self,
        found: Sequence[str],
        recovery_point: int,
        log_start: int,
        progress: Progress | None,
        *,
        held_end: int,
        is_exact: bool,
    ) -> tuple[RecoveryReport, Replaying]:
        """Read the segments from ``recovery_point`` on, once: for the log, its indexes and its producers.

        ``held_end`` and ``is_exact`` are those of ``LogRecovery``. Also returns the count of what its producers did, up
        to the end of what was read.
        """
        first = max(0, bisect_right(self._bases, recovery_point) - 1)
        scanned_from = self._bases[first]
        if held_end > max(scanned_from, self.state.held_end):
            self.state.held_end = held_end  # the snapshot that tells of it is about to go
            self._save_state()
        replaying = self._snapshots.begin(
            found,
            self._bases,
            log_start=max(log_start, self._bases[0]),
            recovered_from=scanned_from,
            now_ms=self._clock.now_ms(),
        )
        for batch in replay(self._segments, self.producers.end_offset, scanned_from):
            replaying.note(batch)
        recovery = LogRecovery(
            self.epochs,
            compacted_before=self.state.compacted_before,
            held_end=held_end,
            is_exact=is_exact,
            known=self.state.damaged,
            on_batch=lambda segment, located: replaying.note(replayed(segment, located)),
            progress=progress,
        )
        report = recovery.run(self._segments[first:])
        if first and (report.next_offset or 0) < recovery_point:
            # Nothing else knows of such an end: the recovery point was of an earlier log of that name, or is damaged.
            complete, replaying = self._recover(found, 0, log_start, progress, held_end=held_end, is_exact=is_exact)
            complete.cut_bytes += report.cut_bytes
            return complete, replaying
        below = self.state.compacted_before
        # A hole is told of the segment behind it: one that ends where the reading began is not met again.
        kept = [d for d in self.state.damaged if d.segment < scanned_from or d.end_offset <= scanned_from]
        # Where compaction has been at work nobody can tell any more that something is missing, unless it is remembered.
        kept += [
            replace(damage, end_offset=min(damage.end_offset, below))
            for damage in self.state.damaged
            if damage not in kept and damage.reason == "missing" and damage.start_offset < below
        ]
        if report.damaged or kept != self.state.damaged:
            self.state.damaged = [*kept, *report.damaged]
            self._save_state()
        if report.sync_error is not None:
            self.mark_read_only(f"an fsync failed: {report.sync_error}")
        if report.fresh_base is not None:  # appends keep clear of damage, and the new base says where the log goes on
            self._add_segment(report.fresh_base)
        for segment in self._segments[first:-1]:
            settle_checksum(segment)
        self._fs.sync_directory(self.directory)
        return report, replaying

    def _rebuild_missing_indexes(self) -> int:
        """Rebuild closed segments' indexes of which a file is missing; implausible ones are met by the first seek."""
        rebuilt = 0
        for segment in self._segments.closed_without_index():
            number = bisect_left(self._bases, segment.base_offset)
            while not (segment.offset_index.exists and segment.time_index.exists):
                try:
                    segment.rebuild_indexes()
                    rebuilt += 1
                    break
                except CorruptRecordError as error:
                    self._measure(number, error)
        return rebuilt

    def _restart_at(self, offset: int) -> None:
        """The log ends below where it starts, as is proven: all in it has been deleted, and it begins anew there."""
        former = self._segments[:]
        self._add_segment(offset)
        self._fs.sync_directory(self.directory)  # first, or a crash in between leaves a directory without a segment
        self._discard(former)
        del self._segments[: len(former)]
        self.epochs.entries = []
        self.state.checksum = None
        self.state.damaged = []
        self.log_start_offset = self.log_end_offset = self.durable_end_offset = offset
        self._save_state()

    def _settle_epochs(self, epoch_before: int, *, clean: bool) -> None:
        """Decide under which epoch this start appends, and have it on disk before it can."""
        current = max(
            epoch_before, self.epochs.latest, self.active.last_leader_epoch
        )  # the highest ever handed out, before anything is trimmed
        if not clean or current < 0:
            current += 1
        if current > EPOCH_MAX:
            raise StorageError(f"{self.directory} has reached leader epoch {current}, which no batch can carry")
        newest = self.epochs.entries[-1] if self.epochs.entries else None
        self.epochs.truncate_from_end(self.log_end_offset)
        if newest is not None and newest.epoch == current and newest.start_offset <= self.log_end_offset:
            self.epochs.assign(*newest)
        else:
            self.epochs.assign(current, self.log_end_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self.leader_epoch = current
        self.epochs.save()

    def close(self) -> None:
        """Bring everything to disk and let go of every file; after this a start may trust the directory blindly.

        Raises StorageError when the disk refuses; the next start then has to read the log again.
        """
        try:
            self.active.close()
            end = self.log_end_offset
            while self._run_flush(self._prepare_deep_flush([*self._segments.known()], end)) < end:
                pass
            self._snapshots.close(self._bases, end)
            if self.state.read_only is None:
                self.state.held_end = end
            self.epochs.save()  # retention has cut them, which alone is not worth an fsync
            self.state.stopped = StoppedAt(self.log_start_offset, end)
            self._save_state()
        except OSError as error:
            raise StorageError(f"{self.directory} could not be closed: {error}") from error
        finally:
            self.release()

    def release(self) -> None:
        """Let go of every file without writing anything."""
        self.release_writers()
        self._handles.forget_in(self.directory)

    def release_writers(self) -> None:
        """As ``release``; other files that are open are left to the caller of ``HandlePool.forget_in``."""
        for segment in self._segments.known():
            segment.release()
