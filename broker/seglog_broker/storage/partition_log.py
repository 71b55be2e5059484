"""A partition's log: its segments in order, appended to at one end, read anywhere, shortened at either end.

Synchronous, one owner, no locks: every method is atomic to whoever calls it from one loop. Time comes in as a clock,
files through the seam. What needs the disk to be waited for is handed out as a ``Flush``, whose ``run`` may go to a
thread: it holds leases and touches nothing of the log.

Offsets: [``log_start_offset``, ``log_end_offset``) can be read, everything below ``durable_end_offset`` survives a
power cut. Invariants 1 to 5 of ARCHITECTURE.md live here.
"""

import errno
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final, NamedTuple, NoReturn

from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.config.values import LONG_MAX
from seglog_broker.storage.batch_scan import LocatedBatch
from seglog_broker.storage.cleanable import Cleanable, find_cleanable
from seglog_broker.storage.clock import Clock
from seglog_broker.storage.compaction_job import CleaningJob, CleaningResult, SourceSegment
from seglog_broker.storage.doomed import DoomedSegments
from seglog_broker.storage.failures import NO_RESOURCES, storage_error
from seglog_broker.storage.filenames import (
    PARTITION_METADATA_FILE,
    decode_partition_metadata,
    encode_partition_metadata,
)
from seglog_broker.storage.filesystem import File, FileSystem, read_file, write_file_atomically
from seglog_broker.storage.flushes import Flush
from seglog_broker.storage.handles import HandlePool, Lease
from seglog_broker.storage.leader_epochs import LeaderEpochs
from seglog_broker.storage.partition_state import (
    PARTITION_STATE_FILE,
    ActiveChecksum,
    DamagedRange,
    PartitionState,
    StateWrite,
)
from seglog_broker.storage.producer_snapshots import LoadReport, ProducerSnapshots, Replaying
from seglog_broker.storage.producer_state import ProducerState
from seglog_broker.storage.recovery import (
    LogRecovery,
    Progress,
    RecoveryReport,
    TailUnreadError,
    settle_checksum,
    tidy_directory,
)
from seglog_broker.storage.replay import replay, replayed
from seglog_broker.storage.retention import AgeSource, LastWrite, RetentionJudge, Verdict
from seglog_broker.storage.rolling import RollReason, draw_segment_age
from seglog_broker.storage.seek_trace import SeekTrace
from seglog_broker.storage.segment import DerivedFile, FoundTimestamp, Segment
from seglog_broker.storage.segment_checksum import NO_BYTES, SegmentChecksum
from seglog_broker.storage.swap import SegmentSwap
from seglog_broker.storage.tail import TailRange
from seglog_protocol import segment_files as names
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    PartitionReadOnlyError,
    RecordListTooLargeError,
    StorageError,
)
from seglog_protocol.record_batch import NO_PRODUCER_ID, BatchHeader, rewrite_offset_and_epoch

CHECKSUM_CATCH_UP_BYTES: Final = 16 * 1024 * 1024
"""Read at a clean start where the active segment's checksum is not known; a larger one is covered by the scrub."""

CHECKSUM_SAVE_BYTES: Final = 4 * 1024 * 1024
"""By which the active segment has grown before a checkpoint writes for its checksum alone: a start that has to read the
log anyway adds up the rest."""

SEGMENTS_PER_FLUSH_MAX: Final = 32
"""Synced with one flush: each takes a descriptor, or three with its indexes, for as long as it lasts."""

PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""The default of ``producer.id.expiration.ms``."""


class Appended(NamedTuple):
    """Where a batch is; ``rolled`` says why a new segment was begun for it, None if none was.

    ``duplicate_of`` is None for a batch that was written, else the timestamp (ms) of the one that it repeats.
    """

    base_offset: int
    last_offset: int
    rolled: RollReason | None
    duplicate_of: int | None = None


class LogSlice:
    """Whole batches: [position, position + size) of a leased ``.log`` file, the first with base ``start_offset``."""

    __slots__ = ("_lease", "file", "position", "size", "start_offset")

    def __init__(self, lease: Lease[File], position: int, size: int, start_offset: int) -> None:
        self._lease = lease
        self.file = lease.resource
        self.position = position
        self.size = size
        self.start_offset = start_offset

    def is_of(self, near: TailRange) -> bool:
        """Whether it is what the tail of the same log gave."""
        return self.start_offset == near.start_offset and self.size == near.end - near.position

    @property
    def is_removed(self) -> bool:
        """Whether the file has left the log since."""
        return self._lease.is_forgotten

    def release(self) -> None:
        """Give the file back. A second release does nothing."""
        self._lease.release()


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What opening a partition found, for the log of the broker."""

    recovery: RecoveryReport | None
    rebuilt_indexes: int
    epoch_problem: str | None
    producers: LoadReport


class PartitionLog:
    """One partition; of no use before ``open``."""

    def __init__(
        self,
        fs: FileSystem,
        handles: HandlePool,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        random: Random | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.epochs = LeaderEpochs(fs, directory)
        self.leader_epoch = 0
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.durable_end_offset = 0
        self.first_dirty_offset: int | None = None  # where the last round of compaction ended, None before the first
        self.state = PartitionState()
        self.producers = ProducerState(expiration_ms=producer_expiration_ms)
        self._snapshots = ProducerSnapshots(fs, directory, self.producers)
        self._fs = fs
        self._handles = handles
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - spreads rolls, protects nothing
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._segment_ms_max = 0
        self._directory_is_dirty = False
        self._is_flushing = False
        self._unfinished_roll: RollReason | None = None  # its files are there in part; nothing more goes before them
        self._state_unsaved = False  # something in ``state`` is newer than its file; the next checkpoint writes it
        self._state_is_urgent = False  # and is not to wait that long
        self._state_being_saved: StateWrite | None = None
        self._leaving: list[DoomedSegments] = []  # out of the log; some may still be found by a start
        self._indexes_unsaved = False  # of a closed segment: a write failed, the next checkpoint tries again

    # --- Opening ------------------------------------------------------------------------------------------------------

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
        for base in sorted(base for name in found if (base := _log_base(name)) is not None):
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

    def _take_up_checksum(self, *, bytes_max: int, is_sound: bool) -> None:
        """Go on with the active segment's checksum from where it is known, if at most ``bytes_max`` must be read.

        Unless the bytes are what was counted (``is_sound``) it begins anew. What is known of bytes that were cut off,
        or have changed, is forgotten for good before any is appended.
        """
        active, known = self.active, self.state.checksum
        if active.checksum.running is not None:
            return  # it was just made
        if known is not None and known.segment != active.base_offset:
            known = None
        so_far = NO_BYTES
        for found in (active.checksum.read(), known and SegmentChecksum(known.size, known.crc)):
            if found is not None and is_sound and so_far.size < found.size <= active.size:
                so_far = found
        if active.checksum.drop():
            self._fs.sync_directory(self.directory)
        if active.size - so_far.size <= bytes_max:
            active.checksum.begin(active.measure(so_far))
        if known is not None and so_far.size < known.size:
            self.state.checksum = None
            self._save_state()

    def _settle_appends(self, *, clean: bool) -> None:
        """Restore when the active segment was written to first and last; after a crash the first is an estimate.

        Its first timestamp is a good one if it can be true: not before the segment existed, not after its last write.
        """
        state, active = self.state, self.active
        closed = set(self._bases[:-1])
        state.rolls = {base: roll for base, roll in state.rolls.items() if base in closed}
        if not clean:
            state.last_append_ms = None  # the file's modification time knows better
        if not active.size:
            state.first_append_ms = None  # what had been appended is gone
        elif state.active_segment != active.base_offset or state.first_append_ms is None:
            begun = f"{self.directory}/{PARTITION_METADATA_FILE}"
            not_before = self._segments[-2].modified_ms if len(self._segments) > 1 else self._fs.stat(begun).mtime_ms
            state.first_append_ms = min(max(not_before, active.first_timestamp), active.modified_ms)
            state.active_segment = active.base_offset
            self._state_unsaved = True

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

    # --- Facts --------------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[Segment]:
        """In offset order; the last one is active."""
        return self._segments

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    # --- Appending ----------------------------------------------------------------------------------------------------

    def append(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Write one checked batch at the end, under the next offsets and the current epoch.

        ``batch`` is changed in place: its base offset and leader epoch, which its checksum does not cover. One that
        repeats a recent batch of its producer is not written again. Nothing is synced; see ``flush``. Raises
        PartitionReadOnlyError, RecordListTooLargeError, what ``ProducerState.check`` raises, or StorageError with the
        log as it was before.
        """
        self._refuse_if_read_only()
        if header.producer_id > NO_PRODUCER_ID:
            repeated = self.producers.check((header,))
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset, None, repeated.timestamp)
        size = header.size
        if size > self.config.segment_bytes:
            raise RecordListTooLargeError(
                f"the batch has {size} bytes, more than segment.bytes = {self.config.segment_bytes}: send less at once",
                size=size,
                limit=self.config.segment_bytes,
            )
        base = self.log_end_offset
        last_offset = base + header.last_offset_delta
        if last_offset > names.OFFSET_MAX:
            raise StorageError(f"offset {last_offset} is beyond what a log can hold")
        now = self._clock.now_ms()
        try:
            reason = self._roll_reason(size, last_offset, header.max_timestamp, now)
        except OSError as error:
            raise self._unreadable(self.active, error) from error
        if reason is not None and not self._roll_or_note(base, reason):
            reason = None
        rewrite_offset_and_epoch(batch, 0, base, self.leader_epoch)
        try:
            position = self.active.append(batch, last_offset, header.max_timestamp)
        except OSError as error:
            self._cut_back(error)
        self.active.tail.note(base, last_offset + 1, position, position + size)
        self.log_end_offset = last_offset + 1
        self.producers.apply(header, base, now)
        state = self.state
        if state.first_append_ms is None:
            state.first_append_ms = now
            state.active_segment = self._bases[-1]
            self._state_unsaved = True
        state.last_append_ms = now
        return Appended(base, last_offset, reason)

    def _refuse_if_read_only(self) -> None:
        if self.state.read_only is not None:
            raise PartitionReadOnlyError(
                f"this partition takes no more records because {self.state.read_only}; "
                "stop the broker, look at the disk, and start it again when it is sound",
                reason=self.state.read_only,
            )

    def _cut_back(self, error: OSError) -> NoReturn:
        try:
            self.active.cut_back()
        except OSError as second:
            self.mark_read_only(f"a write failed ({error}) and what it left could not be removed ({second})")
        raise storage_error(f"the batch could not be written to {self.directory}: {error}", error) from error

    def mark_read_only(self, reason: str) -> None:
        """Take no more appends, now and after a restart: what the disk holds is no longer known."""
        if self.state.read_only is None:
            self.state.read_only = reason
            try:
                self._save_state()
            except OSError:
                return  # the disk that failed does not take the mark either; this process knows

    def _roll_reason(self, size: int, last_offset: int, max_timestamp: int, now: int) -> RollReason | None:
        """Whether, and why, a batch goes to a new segment. Source: Kafka's LogSegment.shouldRoll."""
        if self._unfinished_roll is not None:
            return self._unfinished_roll
        active = self._segments[-1]
        if active.size > self.config.segment_bytes - size:
            return RollReason.SIZE
        if active.size > 0:
            first = active.first_timestamp
            waited = max_timestamp - first if first >= 0 else now - (self.state.first_append_ms or now)
            if waited > self._segment_ms_max:
                return RollReason.TIME
        if active.offset_index.is_full:
            return RollReason.OFFSET_INDEX_FULL
        if active.time_index.is_full:
            return RollReason.TIME_INDEX_FULL
        if last_offset - active.base_offset > names.RELATIVE_OFFSET_MAX:
            return RollReason.OFFSET_RANGE
        return None

    def _roll(self, base_offset: int, reason: RollReason) -> bool:
        """Close the active segment and begin one at ``base_offset``; False when there is nothing to close.

        OSError leaves the old segment active and the log as it was.
        """
        old = self.active
        if old.size == 0 and old.base_offset == base_offset:
            return False  # its index is too small to hold anything: another segment at the same place would not help
        new = self._segment(base_offset, ())
        try:
            new.create()  # first, so that with no room for it the old one goes on
        except OSError:
            new.release()
            raise
        try:
            old.close()
        except OSError:
            self._indexes_unsaved = True  # derived data: what is in memory serves, the next checkpoint tries again
        try:
            old.checksum.save()
        except OSError:
            self._indexes_unsaved = True
        self._adopt(new)
        with suppress(OSError):  # a start then has more to read
            self._snapshots.take(base_offset, sync=False)
        self._unfinished_roll = None
        self.state.note_roll(old.base_offset, reason, self._clock.now_ms())
        self.state.first_append_ms = None
        self._state_unsaved = True
        return True

    def _roll_or_note(self, base_offset: int, reason: RollReason) -> bool:
        """As ``_roll``; StorageError when the new segment could not be begun, which the next append then tries again.

        What was begun may already be there, and a start would append to it: so must we, sooner or later.
        """
        try:
            return self._roll(base_offset, reason)
        except OSError as error:
            self._unfinished_roll = reason
            raise storage_error(f"a new segment could not be begun in {self.directory}: {error}", error) from error

    def roll_if_idle(self) -> bool:
        """Close the active segment if the wall time since its first append exceeds its age; say whether it was.

        Raises StorageError when the new one could not be begun; it is tried again, at the latest by the next append.
        """
        if not self.active.size:
            return False
        now = self._clock.now_ms()
        first = self.state.first_append_ms
        if first is None or first > now:  # not known, or the clock was set back: counted from now on
            self.state.first_append_ms, self.state.active_segment = now, self.active.base_offset
            self._state_unsaved = True
            return False
        if self.state.read_only is not None or now - first <= self._segment_ms_max:
            return False
        return self._roll_or_note(self.log_end_offset, RollReason.IDLE)

    @property
    def idle_roll_ms(self) -> int | None:
        """The wall time (ms) at which the idle timer closes the active segment; None: nothing is in it, or never."""
        first = self.state.first_append_ms
        if first is None or not self.active.size or first + self._segment_ms_max > LONG_MAX:
            return None
        return first + self._segment_ms_max

    def _add_segment(self, base_offset: int) -> None:
        segment = self._segment(base_offset, ())
        segment.create()
        self._adopt(segment)

    def _adopt(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._directory_is_dirty = True
        self._draw_segment_age()

    def reconfigure(self, config: TopicConfig) -> None:
        """Take another configuration: limits hold from the next append on, index settings from the next roll."""
        self.config = config
        self._draw_segment_age()

    def _draw_segment_age(self) -> None:
        self._segment_ms_max = draw_segment_age(self.config, self._random)

    def _segment(self, base_offset: int, existing: Sequence[str]) -> Segment:
        return Segment(
            self._fs,
            self._handles,
            self.directory,
            base_offset,
            index_bytes_max=self.config.segment_index_bytes,
            index_interval=self.config.index_interval_bytes,
            existing=existing,
        )

    # --- Durability ---------------------------------------------------------------------------------------------------

    def prepare_flush(self) -> Flush:
        """What must be synced so that everything appended so far survives a power cut.

        Give the result's ``run`` to a thread, then call ``finish_flush`` whatever happened. Raises StorageError, with
        everything as it was, when a file cannot be opened. Where very many segments are to be synced, those are the
        oldest ones, and the result's ``end_offset`` says how far it goes.
        """
        dirty: list[Segment] = []
        for segment in reversed(self._segments):
            if segment.is_dirty:
                dirty.append(segment)
            elif segment.base_offset <= self.durable_end_offset:
                break
        dirty.reverse()
        return self._flush_of(*_first_of(dirty, self.log_end_offset))

    def finish_flush(self, flush: Flush, error: OSError | None) -> None:
        """Take note of a flush's end. A failed one is final: the pages it lost are clean in the cache by now."""
        flush.release()
        self._is_flushing = False
        if error is not None and flush.files_are_synced and error.errno in NO_RESOURCES:
            # Only opening the directory takes a descriptor. That is tried again.
            self._directory_is_dirty = self._directory_is_dirty or flush.directory is not None
        elif error is not None:
            self.mark_read_only(f"an fsync failed: {error}")
        elif self.state.read_only is None:  # after a failure a success proves nothing
            self.durable_end_offset = max(self.durable_end_offset, min(flush.end_offset, self.log_end_offset))
            self.active.rest()

    def flush(self) -> None:
        """Sync now, in line. Raises StorageError when it fails."""
        while self._run_flush(self.prepare_flush()) < self.log_end_offset:
            pass

    def _run_flush(self, flush: Flush) -> int:
        try:
            flush.run()
        except OSError as error:
            self.finish_flush(flush, error)
            raise StorageError(f"{self.directory} could not be synced: {error}") from error
        self.finish_flush(flush, None)
        return flush.end_offset

    def prepare_checkpoint(self) -> Flush:
        """What must be synced so that no start need read below the result's ``end_offset``.

        That is closed segments with their indexes, up to the base of the active one. For the caller the same rules hold
        as for ``prepare_flush``.
        """
        return self._prepare_deep_flush(self._segments[:-1], self.active.base_offset)

    def _prepare_deep_flush(self, segments: Sequence[Segment], end_offset: int) -> Flush:
        if self._indexes_unsaved:
            for segment in segments:
                segment.save_indexes()
                if segment is not self.active:
                    segment.checksum.save()
            self._indexes_unsaved = False
        unsynced = [s for s in segments if s.is_dirty or any(file.is_dirty for file in s.derived_files)]
        snapshots = self._snapshots.unsynced
        flush = self._flush_of(*_first_of(unsynced, end_offset), with_derived=True, others=snapshots)
        for path in snapshots:
            self._handles.forget(path)  # nobody else opens it, and it may be removed
        self._snapshots.note_synced()
        return flush

    def _flush_of(
        self,
        segments: Sequence[Segment],
        end_offset: int,
        *,
        with_derived: bool = False,
        others: Sequence[str] = (),
    ) -> Flush:
        assert not self._is_flushing, "one flush of a log at a time"
        derived: list[DerivedFile] = []
        if with_derived:
            derived = [file for segment in segments for file in segment.derived_files if file.is_dirty]
            segments = [segment for segment in segments if segment.is_dirty]
        leases: list[Lease[File]] = []
        try:
            for path in (*(segment.log_path for segment in segments), *(file.path for file in derived), *others):
                leases.append(self._handles.lease(path))  # noqa: PERF401 - those before a failure are given back
        except OSError as error:
            for lease in leases:
                lease.release()
            raise storage_error(f"{self.directory} could not be synced: {error}", error) from error
        for segment in segments:
            segment.is_dirty = False
        for file in derived:
            file.is_dirty = False
        self._is_flushing = True
        return Flush(self._fs, leases, self._take_dirty_directory(), end_offset)

    def _take_dirty_directory(self) -> str | None:
        directory = self.directory if self._directory_is_dirty else None
        self._directory_is_dirty = False
        return directory

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

    # --- What is remembered -------------------------------------------------------------------------------------------

    def prepare_state(self) -> StateWrite | None:
        """The write that brings ``state`` to the disk, None when nothing in it is new.

        Give its ``run`` to a thread, then call ``finish_state`` whatever happened.
        """
        if not (self._state_unsaved or self._checksum_is_due()):
            return None
        self._state_unsaved = False
        self._note_checksum()
        path = f"{self.directory}/{PARTITION_STATE_FILE}"
        self._state_being_saved = StateWrite(self._fs, path, self.state.encode())
        return self._state_being_saved

    def finish_state(self, *, written: bool) -> None:
        """Take note of the end of a state's writing; what was to be saved meanwhile follows."""
        self._state_being_saved = None
        if not written:
            self._state_unsaved = True
        elif self._state_is_urgent:
            self._save_state()

    def _save_state(self) -> None:
        """Have ``state`` on the disk now; two writers must not meet in one temporary file."""
        if self._state_being_saved is not None:
            self._state_unsaved = self._state_is_urgent = True
            return
        self._note_checksum()
        self.state.save(self._fs, self.directory)
        self._state_unsaved = self._state_is_urgent = False

    def _checksum_is_due(self) -> bool:
        running, saved = self.active.checksum.running, self.state.checksum
        if running is None:
            return False
        saved_size = saved.size if saved is not None and saved.segment == self.active.base_offset else 0
        return running.value.size - saved_size >= CHECKSUM_SAVE_BYTES

    def _note_checksum(self) -> None:
        """Have the state say how far the checksum of the active segment has come, if anybody counts."""
        running = self.active.checksum.running if self._segments else None  # between an old log and one begun anew
        if running is not None:
            self.state.checksum = ActiveChecksum(self.active.base_offset, running.value.size, running.value.crc)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, *, min_one: bool = True) -> LogSlice | None:
        """Whole batches from the one that holds or follows ``offset``, at most ``bytes_max`` of them.

        With ``min_one`` at least one batch, however large. None when there is nothing: at the end, or when not even
        one batch fits. Raises what ``seek`` raises.
        """
        if self.log_start_offset <= offset:
            try:
                near = self.active.find_near_end(offset, bytes_max, min_one=min_one)
                if near is not None:
                    return self.slice_near_end(near) if near.end > near.position else None
            except OSError as error:
                raise self._unreadable(self.active, error) from error
        while (place := self.seek(offset)) is not None:
            number, found = place
            segment = self._segments[number]
            try:
                end = segment.boundary_at_most(found.position, bytes_max)
                if end <= found.position:
                    if not min_one:
                        return None
                    end = found.end
                return LogSlice(segment.lease(), found.position, end - found.position, found.header.base_offset)
            except CorruptRecordError as error:
                self._measure(number, error)  # behind what was found: from now on a slice ends before it
            except OSError as error:
                raise self._unreadable(segment, error) from error
        return None

    def slice_near_end(self, near: TailRange) -> LogSlice:
        """What the active segment just found, leased. OSError when its file cannot be opened."""
        return LogSlice(self.active.lease(), near.position, near.end - near.position, near.start_offset)

    def seek(self, offset: int, trace: SeekTrace | None = None) -> tuple[int, LocatedBatch] | None:
        """(number of the segment, batch) of the batch that holds or follows ``offset``; None at the end.

        Raises OffsetOutOfRangeError with the valid range before any file is touched, and CorruptRecordError naming the
        range when ``offset`` lies in a damaged one.
        """
        self.check_offset(offset)
        if trace is not None:
            trace.segments = len(self._segments)
        if offset == self.log_end_offset:
            if trace is not None:
                trace.why_segment = "the offset is the end of the log: nothing is looked up, a fetch waits"
            return None
        first = bisect_right(self._bases, offset) - 1
        for number in range(first, len(self._segments)):
            segment = self._segments[number]
            if trace is not None:
                trace.segment, trace.passed_over = segment.base_offset, number - first
                trace.why_segment = (
                    f"number {number + 1} of {len(self._segments)}, the last with a base offset at or below {offset}"
                    if number == first
                    else f"the segment before it ends below {offset}, so the next one follows"
                )
                if segment.remembers(offset):
                    trace.why_segment += (
                        "; a fetch goes there at once, for where that batch begins is remembered: "
                        "what follows is how it is found without that"
                    )
            found = self._find_in(number, offset, trace)
            if found is not None:
                return number, found
        if trace is not None:
            trace.note_nothing_found(f"no batch from {offset} to the end of the log is left")
        return None

    def _find_in(self, number: int, offset: int, trace: SeekTrace | None) -> LocatedBatch | None:
        segment = self._segments[number]
        while True:
            damage = next((d for d in segment.damaged if d.start_offset <= offset < d.end_offset), None)
            if damage is not None:
                raise self._damage_error(damage)
            try:
                return segment.find(offset, trace)
            except CorruptRecordError as error:
                self._measure(number, error, trace)  # known from now on; elsewhere, the scan steps over it
            except OSError as error:
                raise self._unreadable(segment, error) from error

    @staticmethod
    def _unreadable(segment: Segment, error: OSError) -> StorageError:
        return storage_error(f"{segment.log_path} could not be read: {error}", error)

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError, with the valid range, unless ``offset`` can be read or waited for."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            start, end = self.log_start_offset, self.log_end_offset
            reason, words = "beyond_end", "beyond the end of the log"
            if offset < start and self.state.log_start_reason == "truncated":
                reason, words = "truncated", f"below the start of the log, the records before {start} were deleted"
            elif offset < start:
                reason, words = "expired", f"below the start of the log, the records before {start} have expired"
            left = f"records {start} to {end - 1} can be read, and the next one will be {end}"
            raise OffsetOutOfRangeError(
                f"offset {offset} is {words}: {left if start < end else f'the log is empty, its end is {end}'}",
                requested=offset,
                earliest=start,
                latest=end,
                reason=reason,
            )

    def find_timestamp(self, timestamp: int, trace: SeekTrace | None = None) -> FoundTimestamp | None:
        """The first record, in offset order, with a timestamp at or after ``timestamp`` (ms); None when there is none.

        Segments whose largest timestamp lies below are passed over by their closing time entry alone. Unlike Kafka, a
        segment without timestamps is passed over too, whatever its file's modification time.
        """
        if trace is not None:
            trace.segments = len(self._segments)
        first = max(0, bisect_right(self._bases, self.log_start_offset) - 1)
        for number in range(first, len(self._segments)):
            segment = self._segments[number]
            try:
                largest = segment.find_max_timestamp(trace).timestamp
                if largest < timestamp:
                    continue
                if trace is not None:
                    trace.segment, trace.passed_over = segment.base_offset, number - first
                    trace.why_segment = (
                        f"number {number + 1} of {len(self._segments)}, the first whose largest timestamp, {largest}, "
                        f"is at or after {timestamp}"
                    )
                found = self._find_timestamp_in(number, timestamp, trace)
            except OSError as error:
                raise self._unreadable(segment, error) from error
            if found is not None:
                if trace is not None:
                    trace.record_timestamp, trace.record_offset = found.timestamp, found.offset
                return found
        if trace is not None:
            trace.passed_over = len(self._segments) - first
            trace.note_nothing_found(f"no record is at or after {timestamp}: a fetch waits at the end")
        return None

    def _find_timestamp_in(self, number: int, timestamp: int, trace: SeekTrace | None) -> FoundTimestamp | None:
        while True:
            try:
                return self._segments[number].find_timestamp(timestamp, self.log_start_offset, trace)
            except CorruptRecordError as error:
                self._measure(number, error, trace)  # from now on the scan steps over it

    def _measure(self, number: int, error: CorruptRecordError, trace: SeekTrace | None = None) -> None:
        """Damage met while reading: find out how far it goes, remember it, so that the next reader steps around.

        Raises the error itself when there are no bytes to step over, which would be a bug.
        """
        segment = self._segments[number]
        next_base = self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset
        damage = segment.measure_damage(error.position, error.start_offset, next_base, trace)
        if damage.end_position <= damage.position:
            raise error
        self.state.damaged.append(damage)
        try:
            self._save_state()
        except OSError:
            return  # it will be found again

    def note_damage(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Serve around ranges that somebody who read a closed segment met; those nobody knew of."""
        news = []
        for damage in found:
            known = [d for d in self.state.damaged if d.segment == damage.segment and d.reason == damage.reason]
            if any(d.position <= damage.position and damage.end_position <= d.end_position for d in known):
                continue
            within = [d for d in known if damage.position <= d.position and d.end_position <= damage.end_position]
            self.state.damaged = [*(d for d in self.state.damaged if d not in within), damage]
            for segment in self._segments:
                if segment.base_offset == damage.segment:
                    segment.damaged = [d for d in segment.damaged if d not in within]
            self._take_note_of(damage)
            news.append(damage)
        if news:
            self._state_unsaved = True
        return news

    def replace_indexes(self, segment: Segment, suffixes: Sequence[str]) -> None:
        """``Segment.replace_indexes``, with their names to be synced by the next checkpoint."""
        self._directory_is_dirty = True
        segment.replace_indexes(suffixes)

    def _damage_error(self, damage: DamagedRange) -> CorruptRecordError:
        path = f"{self.directory}/{names.segment_file_name(damage.segment, names.LOG_SUFFIX)}"
        return CorruptRecordError(
            f"offsets {damage.start_offset} to {damage.end_offset - 1} are damaged on disk ({path}, bytes "
            f"{damage.position} to {damage.end_position}); reading can go on at offset {damage.end_offset}",
            path=path,
            position=damage.position,
            start_offset=damage.start_offset,
            next_offset=damage.end_offset,
        )

    def _take_note_of(self, damage: DamagedRange) -> None:
        if damage.reason == "damaged":
            for segment in self._segments:
                if segment.base_offset == damage.segment:
                    segment.damaged = sorted([*segment.damaged, damage], key=lambda d: d.position)

    # --- Compaction ---------------------------------------------------------------------------------------------------

    def find_cleanable(self) -> Cleanable:
        """What a round of compaction could do now. May raise ColdReadError."""
        return find_cleanable(
            self._segments,
            self.config,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            checkpoint=self.first_dirty_offset,
            tombstones_due_ms=self.state.cleaner.tombstones_due_ms,
            now_ms=self._clock.now_ms(),
        )

    def plan_cleaning(self, cleanable: Cleanable, broker: BrokerConfig, *, dry_run: bool = False) -> CleaningJob:
        """The round of compaction that ``cleanable`` speaks of, for a process of its own."""
        below = bisect_left(self._bases, cleanable.until_offset)
        threads = max(1, broker.log_cleaner_threads)
        rate = broker.log_cleaner_io_max_bytes_per_second / threads
        return CleaningJob(
            self.directory,
            tuple(SourceSegment(segment.base_offset, tuple(segment.damaged)) for segment in self._segments[:below]),
            tuple(self._bases[below:]),
            first_dirty=min(cleanable.first_dirty_offset, cleanable.until_offset),
            upper_bound=cleanable.until_offset,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=self.config.delete_retention_ms,
            segment_bytes=self.config.segment_bytes,
            segment_index_bytes=self.config.segment_index_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            map_bytes=broker.log_cleaner_dedupe_buffer_size // threads,
            map_load_factor=broker.log_cleaner_io_buffer_load_factor,
            decompressed_batch_bytes_max=DECOMPRESSED_BATCH_BYTES_MAX,
            producer_id_expiration_ms=broker.producer_id_expiration_ms,
            bytes_per_second=rate if rate < sys.float_info.max / threads else None,
            dry_run=dry_run,
        )

    def note_compacted(self, before: int) -> None:
        """Holes below ``before`` are no loss from now on; have the state saved before any record goes."""
        self.state.compacted_before = max(self.state.compacted_before, before)
        self._state_unsaved = True

    def finish_cleaning(self, result: CleaningResult) -> None:
        """Take note of a round whose segments are all in their places."""
        self.first_dirty_offset = result.first_dirty
        cleaner = self.state.cleaner
        cleaner.last_run_ms = self._clock.now_ms()
        cleaner.bytes_before = sum(group.bytes_before for group in result.groups)
        cleaner.bytes_after = sum(group.bytes_after for group in result.groups)
        cleaner.keyless_dropped += result.keyless
        cleaner.tombstones_due_ms = result.tombstones_due_ms
        self._state_unsaved = True

    def note_cleaner_error(self, reason: str | None) -> None:
        """Remember how the last round ended: why it failed, None if it did not."""
        if self.state.cleaner.last_error != reason:
            self.state.cleaner.last_error = reason
            self._state_unsaved = True

    def install_cleaned(self, swap: SegmentSwap, damaged: Sequence[DamagedRange]) -> DoomedSegments:
        """Let a cleaned segment that has been promoted take the place of its sources; what is to be removed later.

        ``damaged`` are the ranges in it that could not be read. StorageError: the log is what it was before.
        """
        first = bisect_left(self._bases, swap.base_offset)
        behind = first + len(swap.sources)
        sources = self._segments[first:behind]
        assert tuple(self._bases[first:behind]) == swap.sources, "the log has changed under a round of compaction"
        for segment in sources:
            segment.forget()
        try:
            swap.install()
        except OSError as error:
            raise storage_error(
                f"compacted files could not be put in place in {self.directory}: {error}", error
            ) from error
        existing = [names.segment_file_name(swap.base_offset, suffix) for suffix in names.SEGMENT_SUFFIXES]
        cleaned = self._segment(swap.base_offset, existing)
        self._segments[first:behind] = [cleaned]
        self._bases[first:behind] = [swap.base_offset]
        kept = [d for d in self.state.damaged if d.segment not in swap.sources or d.reason == "missing"]
        self.state.damaged = [*kept, *damaged]
        for damage in damaged:
            self._take_note_of(damage)
        for base in swap.sources:
            self.state.rolls.pop(base, None)
        with suppress(OSError):  # a start removes what is out of place
            self._snapshots.drop(swap.sources[1:])
        self.state.note_roll(swap.base_offset, "compaction", self._clock.now_ms())
        self._state_unsaved = True
        return DoomedSegments(self._fs, self.directory, swap.sources)

    # --- Shortening ---------------------------------------------------------------------------------------------------

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

    def _forget_expired_damage(self) -> None:
        """Damaged bytes of a segment that is still there stay known, also where no offset is left for them."""
        first = self._bases[0]
        self.state.damaged = [
            damage
            for damage in self.state.damaged
            if damage.end_offset > first or (damage.reason == "damaged" and damage.segment >= first)
        ]

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

    def _forget_damage_that_went(self) -> None:
        """Bytes that were cut off may come again, and be sound."""
        left = {segment.base_offset: segment for segment in self._segments}
        kept = [d for d in self.state.damaged if d.segment in left and d.end_position <= left[d.segment].size]
        if kept != self.state.damaged:
            self.state.damaged = kept
            self._save_state()

    def _discard(self, segments: Sequence[Segment]) -> None:
        """Remove segments from the disk: renamed first, so that a crash between two files leaves no half segment.

        The last one goes first, so that a crash between two segments leaves no hole.
        """
        for segment in segments:
            segment.forget()
        doomed = DoomedSegments(self._fs, self.directory, [segment.base_offset for segment in reversed(segments)])
        doomed.set_aside()
        doomed.remove()


def _first_of(segments: list[Segment], end_offset: int) -> tuple[list[Segment], int]:
    """As many of the oldest as are synced at a time, and the offset up to which they go."""
    if len(segments) <= SEGMENTS_PER_FLUSH_MAX:
        return segments, end_offset
    return segments[:SEGMENTS_PER_FLUSH_MAX], segments[SEGMENTS_PER_FLUSH_MAX].base_offset


def make_partition(fs: FileSystem, directory: str, topic_id: str) -> None:
    """Make the directory of a new partition with everything an empty log has; returns when its files are on the disk.

    The caller syncs the directory above. What an earlier attempt left is completed. ``partition.metadata`` comes last:
    without it the directory is not yet a partition, see ``make_is_incomplete``.
    """
    if not fs.exists(directory):
        fs.make_directory(directory)
    elif PARTITION_METADATA_FILE in fs.list_directory(directory):
        found = decode_partition_metadata(read_file(fs, f"{directory}/{PARTITION_METADATA_FILE}"))
        if found != topic_id:
            raise FileExistsError(errno.EEXIST, f"it belongs to an earlier topic, {found}", directory)
    for suffix in (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
        fs.open(f"{directory}/{names.segment_file_name(0, suffix)}", create=True).close()
    epochs = LeaderEpochs(fs, directory)
    epochs.assign(0, 0)
    epochs.save()
    write_file_atomically(fs, f"{directory}/{PARTITION_METADATA_FILE}", encode_partition_metadata(topic_id))


def make_is_incomplete(fs: FileSystem, directory: str) -> bool:
    """Whether a crash interrupted ``make_partition``: no metadata, and no record."""
    found = fs.list_directory(directory)
    return PARTITION_METADATA_FILE not in found and not any(
        base > 0 or fs.stat(f"{directory}/{name}").size for name in found if (base := _log_base(name)) is not None
    )


def _log_base(name: str) -> int | None:
    parsed = names.parse_segment_file_name(name)
    return parsed[0] if parsed is not None and parsed[1] == names.LOG_SUFFIX else None
