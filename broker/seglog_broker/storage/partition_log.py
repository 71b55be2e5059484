"""A partition's log: its segments in order, appended to at one end, read anywhere, shortened at either end.

Synchronous, one owner, no locks: every method is atomic to whoever calls it from one loop. Time comes in as a clock,
files through the seam. What needs the disk to be waited for is handed out as a ``Flush``, whose ``run`` may go to a
thread: it holds leases and touches nothing of the log.

Offsets: [``log_start_offset``, ``log_end_offset``) can be read, everything below ``durable_end_offset`` survives a
power cut. What is done with a log between ``open`` and ``close`` is in the parts it inherits from: ``log_reading``,
``log_appending`` and the others. Invariants 1 to 5 of ARCHITECTURE.md live here and there.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from seglog_broker.storage.log_appending import LogAppending
from seglog_broker.storage.log_cleaning import LogCleaning
from seglog_broker.storage.log_shortening import LogShortening
from seglog_broker.storage.log_state import CHECKSUM_CATCH_UP_BYTES
from seglog_broker.storage.partition_files import log_base
from seglog_broker.storage.partition_state import PartitionState
from seglog_broker.storage.producer_snapshots import LoadReport, Replaying
from seglog_broker.storage.recovery import (
    LogRecovery,
    Progress,
    RecoveryReport,
    TailUnreadError,
    settle_checksum,
    tidy_directory,
)
from seglog_broker.storage.replay import replay, replayed
from seglog_protocol.errors import CorruptRecordError, StorageError


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What opening a partition found, for the log of the broker."""

    recovery: RecoveryReport | None
    rebuilt_indexes: int
    epoch_problem: str | None
    producers: LoadReport


class PartitionLog(LogAppending, LogShortening, LogCleaning):
    """One partition; of no use before ``open``."""

    def open(
        self,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start: int = 0,
        compacted_before: int = 0,
        may_recover: bool = True,
        progress: Progress | None = None,
    ) -> OpenReport:
        """Open what is in the directory; ``compacted_before`` is what the cleaner's checkpoint says, if anything.

        After a ``clean`` stop only the active segment is opened. After any other, everything from the segment that
        holds ``recovery_point`` on is read and checked; below it the bytes are known to be on the disk, so a log that
        ends right there is not read either. Raises TailUnreadError where it ``may_recover`` not and would have to.
        """
        found = tidy_directory(self._fs, self.directory, clean=clean)
        self.state = PartitionState.load(self._fs, self.directory)
        self.state.compacted_before = max(self.state.compacted_before, compacted_before)
        self.epochs.load()
        epoch_before = self.epochs.latest
        for base in sorted(base for name in found if (base := log_base(name)) is not None):
            self._segments.append(self._segment(base, found))
        self._bases = [segment.base_offset for segment in self._segments]
        for damage in self.state.damaged:
            self._take_note_of(damage)
        if not self._segments:
            self._add_segment(log_start)
        recovery = None
        replaying = None
        end = 0
        is_known = clean or self.active.ends_at(recovery_point)
        if is_known:
            try:
                end = self.active.activate()
                # A clean stop leaves the recovery point at the log end. Records that went since then have offsets that
                # will be handed out again, and under the old epoch nobody could tell.
                is_known = end >= recovery_point
            except CorruptRecordError:
                is_known, recovery_point = False, self.active.base_offset  # the marker lied about this one
        clean = clean and is_known
        if not is_known:
            if not may_recover:
                raise TailUnreadError(self.directory)
            recovery, replaying = self._recover(found, recovery_point, log_start, progress)
            end = self.active.activate()
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
        self.log_start_offset = max(log_start, self._bases[0])
        self.state.compacted_before = min(self.state.compacted_before, self.log_end_offset)
        self._forget_expired_damage()
        self._settle_epochs(epoch_before, clean=clean)
        self._settle_appends(clean=clean)
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
        return OpenReport(recovery, rebuilt, self.epochs.problem, producers)

    def _recover(
        self, found: Sequence[str], recovery_point: int, log_start: int, progress: Progress | None
    ) -> tuple[RecoveryReport, Replaying]:
        """Read the segments from ``recovery_point`` on, once: for the log, its indexes and its producers.

        Also returns the count of what its producers did, up to the end of what was read.
        """
        first = max(0, bisect_right(self._bases, recovery_point) - 1)
        scanned_from = self._bases[first]
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
            known=self.state.damaged,
            on_batch=lambda segment, located: replaying.note(replayed(segment, located)),
            progress=progress,
        )
        report = recovery.run(self._segments[first:])
        if first and (report.next_offset or 0) < recovery_point:
            # Nothing below a recovery point can be lost, so this one was of an earlier log of that name.
            complete, replaying = self._recover(found, 0, log_start, progress)
            complete.cut_bytes += report.cut_bytes
            return complete, replaying
        below = self.state.compacted_before
        kept = [damage for damage in self.state.damaged if damage.segment < scanned_from]
        # Where compaction has been at work nobody can tell any more that something is missing, unless it is remembered.
        kept += [
            replace(damage, end_offset=min(damage.end_offset, below))
            for damage in self.state.damaged
            if damage.segment >= scanned_from and damage.reason == "missing" and damage.start_offset < below
        ]
        if report.damaged or kept != self.state.damaged:
            self.state.damaged = [*kept, *report.damaged]
            self._save_state()
        if report.sync_error is not None:
            self.mark_read_only(f"an fsync failed: {report.sync_error}")
        for segment in self._segments[first:-1]:
            settle_checksum(segment)
        self._fs.sync_directory(self.directory)
        return report, replaying

    def _rebuild_missing_indexes(self) -> int:
        """Rebuild closed segments' indexes of which a file is missing; implausible ones are met by the first seek."""
        rebuilt = 0
        for segment in self._segments[:-1]:
            if not (segment.offset_index.exists and segment.time_index.exists):
                segment.rebuild_indexes()
                rebuilt += 1
        return rebuilt

    def _restart_at(self, offset: int) -> None:
        """The log ends below where it is said to start: nothing in it can be read, so it begins anew there."""
        self._discard(self._segments)
        self._segments, self._bases = [], []
        self.epochs.entries = []
        self.state.checksum = None
        if self.state.damaged:
            self.state.damaged = []
            self._save_state()
        self._add_segment(offset)
        self.log_end_offset = self.durable_end_offset = offset
        self._fs.sync_directory(self.directory)

    def _settle_epochs(self, epoch_before: int, *, clean: bool) -> None:
        """Decide under which epoch this start appends, and have it on disk before it can."""
        current = max(
            epoch_before, self.epochs.latest, self.active.last_leader_epoch
        )  # the highest ever handed out, before anything is trimmed
        if not clean or current < 0:
            current += 1
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
            while self._run_flush(self._prepare_deep_flush(self._segments, end)) < end:
                pass
            self._snapshots.close(self._bases, end)
            self._save_state()
        except OSError as error:
            raise StorageError(f"{self.directory} could not be closed: {error}") from error
        finally:
            self.release()

    def release(self) -> None:
        """Let go of every file without writing anything."""
        for segment in self._segments:
            segment.release()
        self._handles.forget_below(self.directory)
