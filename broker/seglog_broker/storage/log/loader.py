"""Loads a partition's log from its directory, and recovers it where its end is not known.

Order matters throughout: a loss is recorded on the disk before the file that shows it is removed.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.small_files import keep_copy
from seglog_broker.storage.log import partition_state
from seglog_broker.storage.log.end_marks import LogMarks
from seglog_broker.storage.log.leader_epochs import EPOCH_MAX, EpochEntry
from seglog_broker.storage.log.loaded_log import LoadedLog, OpenReport
from seglog_broker.storage.log.log_files import DeletedSegments, LogFiles, LogSettings
from seglog_broker.storage.log.recovery import (
    LogRecovery,
    Progress,
    RecoveryReport,
    TailUnreadError,
    remove_without_log,
    settle_checksum,
    tidy_directory,
)
from seglog_broker.storage.log.roller import restore_append_times, restore_checksum
from seglog_broker.storage.log.truncation import believed_start, records_gone
from seglog_broker.storage.producers.producer_snapshots import ProducerLoadReport, Replaying, replay, replayed
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogVerifier
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT
from seglog_protocol.errors import CorruptRecordError, StorageError

PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""The default of ``producer.id.expiration.ms``."""


def load(
    fs: FileSystem,
    handles: HandlePool,
    clock: Clock,
    directory: str,
    config: TopicConfig,
    *,
    clean: bool,
    recovery_point: int = 0,
    high_watermark: int | None = None,
    saved_end: int | None = None,
    log_start: int = 0,
    first_dirty_offset: int | None = None,
    may_recover: bool = True,
    saves_epochs: bool = True,
    progress: Progress | None = None,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    random: Random | None = None,
) -> LoadedLog:
    """Load the log in ``directory``; ``first_dirty_offset`` is that of the cleaner's checkpoint, None without one.

    After a ``clean`` stop only the active segment is opened, if it ends where the log ended then: at ``saved_end`` if
    that is given, else at the end by ``LogMarks``, one of which is the ``high_watermark`` of that stop. After any other
    stop, everything from the segment that holds ``recovery_point`` on is read and checked. Bytes below it are known to
    be on the disk, so a log that ends right there is not read either.

    Unless it ``saves_epochs``, the caller saves those of the result, if need be, before anything is appended.

    Raises TailUnreadError if the log needs a recovery and ``may_recover`` is False, and OSError or StorageError when
    the disk fails. Then every file is closed.
    """
    files = LogFiles(fs, handles, directory)
    found = tidy_directory(fs, directory, clean=clean)
    state, problem = _read_state(files)
    log = LoadedLog(
        files,
        clock,
        LogSettings(config),
        state,
        first_dirty_offset=first_dirty_offset,
        producer_expiration_ms=producer_expiration_ms,
        random=random or Random(),  # noqa: S311 - spreads rolls, protects nothing
    )
    loader = _Loader(log, found, clean=clean)
    if problem is not None:
        loader.problems.append(problem)
    try:
        log.report = loader.load(
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            saved_end=saved_end,
            log_start=log_start,
            may_recover=may_recover,
            saves_epochs=saves_epochs,
            progress=progress,
        )
    except BaseException:
        log.release()
        raise
    return log


class _Loader:
    """Fills the parts of a log, step by step."""

    def __init__(self, log: LoadedLog, found: Sequence[str], *, clean: bool) -> None:
        """``found`` are the names in the directory, after ``tidy_directory``."""
        self.problems: list[str] = []
        self._log = log
        self._state = log.state_file.state
        self._found = found
        self._clean = clean
        self._stopped = self._state.stopped  # the ends of the log at the last clean stop, if known
        self._epoch_before = self._load_epochs(log.first_dirty_offset or 0)
        if log.epochs.problem is not None:
            copied = keep_copy(log.files.fs, f"{log.files.directory}/{LEADER_EPOCH_CHECKPOINT}")
            self.problems.append(f"{LEADER_EPOCH_CHECKPOINT} is ignored: {log.epochs.problem}; {copied}")

    def _load_epochs(self, compacted_before: int) -> int:
        """Read the leader epochs; return the highest epoch ever used, -1 for none.

        Kafka's file of epochs has no checksum, but the state file does. So after a clean stop of seglog the epochs in
        the state replace those of the file, unless the file has a higher epoch.
        """
        state, epochs = self._state, self._log.epochs
        is_own_stop = self._clean and state.stopped is not None  # not a stop of Kafka
        if self._clean and state.stopped is not None:
            state.log_start = state.stopped.log_start
        state.stopped = None
        state.compacted_before = max(state.compacted_before, compacted_before)
        epochs.load()
        # a stop of a version that did not store epochs in the state did not sync the file after retention, either
        is_current = bool(state.epochs) or not self._log.files.fs.exists(
            f"{self._log.files.directory}/{partition_state.PARTITION_STATE_FILE}"
        )
        self._epochs_of_stop = list(epochs.entries) if is_current else []  # Kafka's file, as a clean stop wrote it
        remembered = [EpochEntry(*entry) for entry in state.epochs]
        highest = max(remembered, default=None)
        if highest is None:
            return epochs.latest
        if is_own_stop and epochs.entries != remembered and epochs.latest <= highest.epoch:
            if epochs.entries != remembered[: len(epochs.entries)]:  # Kafka drops epochs without records
                epochs.problem = epochs.problem or "it is not what the last stop wrote"
            epochs.entries = remembered
        return max(epochs.latest, highest.epoch)

    def load(
        self,
        *,
        recovery_point: int,
        high_watermark: int | None,
        saved_end: int | None,
        log_start: int,
        may_recover: bool,
        saves_epochs: bool,
        progress: Progress | None,
    ) -> OpenReport:
        """Load segments, offsets, epochs and producers; the arguments are those of the function ``load``."""
        clean, state, segments, offsets = self._clean, self._state, self._log.segments, self._log.offsets
        segments.load(self._found)
        is_bare = not segments
        if is_bare:
            epochs = [entry.start_offset for entry in self._log.epochs.entries]
            # at the highest offset known, so that few are used twice
            self._log.roller.begin(max(log_start, state.log_start or 0, state.deleted_before, *epochs[-1:]))
            self.problems.append(
                "it had no .log file, and its records are lost: restore them from a backup, if you have one"
            )
        stopped = self._stopped if clean and saved_end is None else None  # checkpoints are older than a recovery
        log_start = self._find_start(log_start, stopped)
        active = segments.active
        is_whole = active.offset_index.exists and active.time_index.exists  # ``activate`` makes what is missing
        recovery = None
        replaying = None
        end = 0
        marks = LogMarks.find(
            self._found, segments.bases, recovery_point, high_watermark if clean else None, state.held_end
        )
        expected = (marks.end_at_clean_stop() if saved_end is None else saved_end) if clean else None
        is_known = clean or (marks.held_end() <= recovery_point and segments.active.ends_at(recovery_point))
        if is_known:
            try:
                end = segments.active.activate()
                # If records were lost since a clean stop, their offsets would be used again with the old epoch. An end
                # after the one at that stop comes from a damaged offset, which the batch's checksum does not cover.
                is_known = expected is None or end == expected or (saved_end is None and marks.agree_on(end))
                is_known = is_known and (saved_end is not None or segments.active.ends_sound())
            except CorruptRecordError:
                is_known = False  # not a clean stop for this partition
            if clean and not is_known:
                recovery_point = min(recovery_point, segments.active.base_offset)
        clean = clean and is_known
        if not is_known:
            if not may_recover:
                raise TailUnreadError(self._log.files.directory)
            held_end = marks.held_end() if expected is None else expected
            recovery, replaying = self._recover(
                recovery_point,
                log_start,
                progress,
                held_end=held_end,
                is_exact=expected is not None and expected >= segments.active.base_offset,
            )
            end = segments.active.activate()
        if marks.without_log:  # only now: what they show has been recorded
            remove_without_log(self._log.files.fs, self._log.files.directory, self._found, set(segments.bases))
        rebuilt = self._rebuild_missing_indexes()
        if recovery is None:
            restore_checksum(self._log.files, segments, self._log.state_file)
        else:  # the recovery has just read all of it
            active = segments.active
            restore_checksum(
                self._log.files, segments, self._log.state_file, bytes_max=active.size, is_sound=not active.damaged
            )
        offsets.end = offsets.durable_end = max(end, segments.active.base_offset)
        if state.read_only is not None:  # reading proves nothing after a failed fsync
            offsets.durable_end = min(recovery_point, offsets.end)
        if offsets.end < log_start:
            self._epoch_before = max(self._epoch_before, self._log.epochs.latest, segments.active.last_leader_epoch)
            self._restart_at(log_start)
            replaying = None  # the records that it counted are gone
        if recovery is not None and state.read_only is None:  # the recovery has synced the log
            state.held_end = offsets.end
            self._log.state_file.mark_dirty()
        offsets.start = max(log_start, offsets.start)
        state.compacted_before = min(state.compacted_before, offsets.end)
        self._log.damage.forget_before(segments.bases[0], offsets.start)
        self._begin_epoch(clean=clean)
        if saves_epochs:
            self._log.epochs.save()
        restore_append_times(self._log.files, segments, self._log.state_file, clean=clean)
        self._log.state_file.begin()
        if replaying is not None:
            producers = self._log.snapshots.finish(replaying, offsets.end)
        else:
            producers = self._log.snapshots.load(
                self._found,
                segments.bases,
                log_start=max(offsets.start, segments.bases[0]),
                log_end=offsets.end,
                recovered_from=None if clean else offsets.end if recovery is None else recovery.first_base,
                now_ms=self._log.clock.now_ms(),
                replay=partial(replay, segments),
            )
        self.problems += [*marks.problems(offsets.end), *producers.problems]
        self._load_transaction_indexes(producers, rebuilt if is_whole else [*rebuilt, active.base_offset])
        return OpenReport(recovery, len(rebuilt), self.problems, producers)

    def _find_start(self, claimed: int, stopped: partition_state.StoppedAt | None) -> int:
        """The log start offset; the checkpoint says ``claimed``, and contradictions become problems.

        ``stopped`` has the ends at the last clean stop, if the log should be unchanged since. Where records at the
        beginning are missing, the log still begins with them: so every start reports them, and readers get an error,
        until ``seglogd check --repair`` lets the log begin at its first segment.
        """
        first = self._log.segments.bases[0]
        is_empty = len(self._log.segments) == 1 and not self._log.segments.active.size
        believed = believed_start(claimed, self._state, self._log.epochs.entries, first, is_empty=is_empty)
        if believed.problem is not None:
            self.problems.append(believed.problem)
        elif stopped is not None and first <= stopped.log_start != max(claimed, first):
            self.problems.append(
                f"{LOG_START_CHECKPOINT} says {claimed}, where the last stop had {stopped.log_start}: it is ignored"
            )
        gone = records_gone(claimed, self._state, self._epochs_of_stop if self._clean else (), first)
        if gone is not None:
            log_directory = self._log.files.directory.rpartition("/")[0]
            self.problems.append(
                f"the records {gone.start} to {gone.end - 1} are missing at the beginning of the log (by "
                f"{gone.source}): restore their segments from a backup, or stop the broker and accept the loss with "
                f"`seglogd check --repair {log_directory}`"
            )
            missing = DamagedRange(gone.start, first, first, 0, 0, "missing")
            known = [
                damage for damage in self._log.damage.ranges if damage.start_offset >= first
            ]  # not in lost segments
            self._log.damage.replace([missing, *known])
            self._log.state_file.mark_dirty()
        self._log.damage.replace([damage for damage in self._log.damage.ranges if not self._is_restored(damage)])
        self._log.offsets.start = max(believed.offset, first) if gone is None else gone.start
        return believed.offset

    def _is_restored(self, damage: DamagedRange) -> bool:
        """Whether a segment with records begins where offsets were missing. Later searches find what it lacks."""
        if damage.reason != "missing" or damage.start_offset == damage.segment:
            return False
        number = self._log.segments.first_from(damage.start_offset)
        is_there = self._log.segments.bases[number : number + 1] == [damage.start_offset]
        return is_there and self._log.segments.size_between(number, number + 1) > 0

    def _recover(
        self, recovery_point: int, log_start: int, progress: Progress | None, *, held_end: int, is_exact: bool
    ) -> tuple[RecoveryReport, Replaying]:
        """Read the segments from ``recovery_point`` on, once: for the log, its indexes and its producers.

        ``held_end`` and ``is_exact`` are those of ``LogRecovery``. Also returns the producer state, rebuilt up to the
        end of the log.
        """
        state, segments = self._state, self._log.segments
        first = max(0, segments.floor(recovery_point))
        scanned_from = segments.bases[first]
        if held_end > max(scanned_from, state.held_end):
            state.held_end = held_end  # the snapshot that shows it is about to be removed
            self._log.state_file.save()
        replaying = self._log.snapshots.begin(
            self._found,
            segments.bases,
            log_start=max(log_start, segments.bases[0]),
            recovered_from=scanned_from,
            now_ms=self._log.clock.now_ms(),
        )
        for batch in replay(segments, self._log.producers.end_offset, scanned_from):
            replaying.note(batch)
        known, below = list(self._log.damage.ranges), state.compacted_before
        recovery = LogRecovery(
            self._log.files.fs,
            self._log.epochs,
            LogVerifier(compacted_before=below, held_end=held_end, is_exact=is_exact, known=known),
            below,
            lambda segment, located: replaying.note(replayed(segment, located)),
            progress,
        )
        report = recovery.run(segments[first:])
        if first and (report.next_offset or 0) < recovery_point:
            # The recovery point is of an earlier log of that name, or damaged: nothing else confirms such an end.
            complete, replaying = self._recover(0, log_start, progress, held_end=held_end, is_exact=is_exact)
            complete.cut_bytes += report.cut_bytes
            complete.set_aside += report.set_aside
            return complete, replaying
        # missing offsets belong to the segment after them, so those that end where reading began are not found again
        kept = [d for d in known if d.segment < scanned_from or d.end_offset <= scanned_from]
        # in the compacted part missing offsets cannot be detected, so those that are known are kept
        kept += [
            replace(damage, end_offset=min(damage.end_offset, below))
            for damage in known
            if damage not in kept and damage.reason == "missing" and damage.start_offset < below
        ]
        # what was on the disk before, or known before, was not torn by this crash
        held = names.OFFSET_MAX if self._clean else max(held_end, recovery_point, state.held_end)
        new = [d for d in report.damaged if d.reason == "damaged" and d.start_offset >= held and d not in known]
        unsynced = (d for d in [*kept, *report.damaged] if d in new or state.is_unsynced(d))
        state.unsynced = [(damage.start_offset, damage.end_offset) for damage in unsynced]
        self._log.damage.replace([*kept, *report.damaged])
        if report.damaged or kept != known:
            self._log.state_file.save()
        if report.sync_error is not None:
            self._log.state_file.mark_read_only(f"an fsync failed: {report.sync_error}")
        if report.fresh_base is not None:  # appends go to a new segment, after the damage
            self._log.roller.begin(report.fresh_base)
        for segment in segments[first:-1]:
            settle_checksum(segment)
        self._log.files.fs.sync_directory(self._log.files.directory)
        return report, replaying

    def _load_transaction_indexes(self, producers: ProducerLoadReport, rebuilt: Sequence[int]) -> None:
        """Find the transaction indexes; build those of batches that were replayed, and those that are lost or wrong.

        ``rebuilt`` are the bases of segments whose other indexes were missing: then this one may be missing as well.
        """
        bases, end, transactions = self._log.segments.bases, self._log.offsets.end, self._log.transactions
        before = self._state.transaction_indexes
        doubtful = transactions.load(self._found, end)
        known_below = end
        if producers.replayed:
            known_below = bases[0] if producers.snapshot is None else producers.snapshot
            transactions.rebuild(producers.aborted, known_below)
        lost = {base for base in rebuilt if base < known_below}.intersection(bases) - set(transactions.bases)
        logs = {base: self._log.segments[self._log.segments.floor(base)].log for base in lost}
        wanted = {base for base, log in logs.items() if any(header.is_control for _, header in log.batches())}
        for base in sorted({*wanted, *doubtful}):
            if base in self._log.segments.awaited:
                continue  # it is of the same backup as the log, which cannot be asked yet
            # a kill in the middle of a compaction leaves others than the state says
            is_told = self._clean or base >= self._state.compacted_before
            if base < known_below and transactions.mend(base) and is_told:
                name = names.segment_file_name(base, names.TXN_INDEX_SUFFIX)
                self.problems.append(f"{name} was not as it was written, and has been made again from the log")
        if self._state.transaction_indexes != (before or {}):
            self._log.state_file.mark_dirty()

    def _rebuild_missing_indexes(self) -> list[int]:
        """Rebuild missing index files of closed segments; return their bases. The first seek checks the others."""
        rebuilt: list[int] = []
        for segment in self._log.segments.closed_without_index():
            number = self._log.segments.first_from(segment.base_offset)
            while not (segment.offset_index.exists and segment.time_index.exists):
                try:
                    segment.indexes.rebuild()
                    rebuilt.append(segment.base_offset)
                    break
                except CorruptRecordError as error:
                    self._log.finder.measure(segment, self._log.segments.end_of(number, self._log.offsets.end), error)
        return rebuilt

    def _restart_at(self, offset: int) -> None:
        """Restart the log at ``offset``, its proven log start, which is after its end: all its records were deleted."""
        files, former = self._log.files, self._log.segments[:]
        self._log.roller.begin(offset)
        files.fs.sync_directory(files.directory)  # first, or a crash could leave no segment
        for segment in former:
            segment.forget()
        # the last first, or a crash could leave a gap
        deleted = DeletedSegments(files.fs, files.directory, [segment.base_offset for segment in reversed(former)])
        deleted.set_aside()
        deleted.remove()
        self._log.segments.drop_oldest(len(former))
        self._log.epochs.entries = []
        self._state.checksum = None
        self._log.damage.replace(())
        self._log.offsets.start = self._log.offsets.end = self._log.offsets.durable_end = offset
        self._log.state_file.save()

    def _begin_epoch(self, *, clean: bool) -> None:
        """Choose the leader epoch of this start, which is to be saved before anything is appended."""
        epochs, end = self._log.epochs, self._log.offsets.end
        current = max(
            self._epoch_before, epochs.latest, self._log.segments.active.last_leader_epoch
        )  # the highest ever used, before anything is trimmed
        if not clean or current < 0:
            current += 1
        if current > EPOCH_MAX:
            raise StorageError(
                f"{self._log.files.directory} has reached leader epoch {current}, which no batch can carry"
            )
        newest = epochs.entries[-1] if epochs.entries else None
        epochs.truncate_from_end(end)
        if newest is not None and newest.epoch == current and newest.start_offset <= end:
            epochs.assign(*newest)
        else:
            epochs.assign(current, end)
        epochs.truncate_from_start(self._log.offsets.start)
        self._log.leader_epoch = current


def _read_state(files: LogFiles) -> tuple[partition_state.PartitionState, str | None]:
    """The state of the directory, and why its file was ignored, if it was."""
    try:
        return partition_state.PartitionState.read(files.fs, files.directory), None
    except partition_state.MalformedStateError as error:
        copied = keep_copy(files.fs, f"{files.directory}/{partition_state.PARTITION_STATE_FILE}")
        return partition_state.PartitionState(), f"{partition_state.PARTITION_STATE_FILE} is ignored: {error}; {copied}"
