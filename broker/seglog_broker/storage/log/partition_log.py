"""A partition's log: segments in order, appended to at the end, read anywhere, truncated at either end.

Synchronous, one owner, no locks: every method is atomic for callers on the same loop. Clock and file system are passed
in. Work that waits for the disk is returned as a ``Flush``, whose ``run`` may go to a thread: it holds leases and uses
nothing else of the log.

Offsets: [``log_start_offset``, ``log_end_offset``) can be read, everything below ``durable_end_offset`` survives a
power cut. ``loader.load`` makes the parts of a ``PartitionLog``. Each part owns what it changes; they share
``LogOffsets`` and the segments. Invariants 1 to 5 of ARCHITECTURE.md live in those parts.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.storage.compaction.cleanable import Cleanable
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.compaction.swap import SegmentSwap
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.storage.log.appender import Appender
from seglog_broker.storage.log.cleaning import LogCleaning
from seglog_broker.storage.log.deleted_segments import DeletedSegments
from seglog_broker.storage.log.loader import LoadedLog
from seglog_broker.storage.log.partition_state import PartitionState, StoppedAt
from seglog_broker.storage.log.reader import LogReader
from seglog_broker.storage.log.retention import LastWrite, LogRetention, Verdict
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.state_file import StateWrite
from seglog_broker.storage.log.traced_reader import TracedReader
from seglog_broker.storage.log.truncation import LogTruncation
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError


class PartitionLog:
    """One partition, from ``load`` until ``close`` or ``release``.

    ``append`` is that of ``Appender``; ``read``, ``seek``, ``find_timestamp``, ``check_offset`` and ``slice_near_end``
    are those of ``LogReader``; ``prepare_flush`` and ``finish_flush`` those of ``LogFlusher``. They are bound here so
    that a request calls them directly. ``traced(trace)`` is a reader that records one seek.
    """

    def __init__(self, loaded: LoadedLog) -> None:
        """Takes ownership of ``loaded``."""
        self.directory = loaded.files.directory
        self.epochs = loaded.epochs
        self.leader_epoch = loaded.leader_epoch
        self.producers = loaded.producers
        self._files = loaded.files
        self._settings = loaded.settings
        self._offsets = loaded.offsets
        self._segments = loaded.segments
        self._state_file = loaded.state_file
        self._damage = loaded.damage
        self._snapshots = loaded.snapshots
        self._flusher = loaded.flusher
        self._roller = loaded.roller
        appender = Appender(
            loaded.files.directory,
            loaded.clock,
            loaded.settings,
            loaded.offsets,
            loaded.segments,
            loaded.state_file,
            loaded.producers,
            loaded.roller,
            loaded.leader_epoch,
        )
        reader = LogReader(loaded.offsets, loaded.segments, loaded.state_file.state, loaded.damage, loaded.finder)
        self._truncation = LogTruncation(
            loaded.files,
            loaded.clock,
            loaded.offsets,
            loaded.segments,
            loaded.state_file,
            loaded.damage,
            loaded.epochs,
            loaded.leader_epoch,
            loaded.snapshots,
            loaded.roller,
            loaded.flusher,
        )
        self._retention = LogRetention(
            loaded.clock, loaded.settings, loaded.offsets, loaded.segments, loaded.state_file.state
        )
        self._cleaning = LogCleaning(
            loaded.files,
            loaded.clock,
            loaded.settings,
            loaded.offsets,
            loaded.segments,
            loaded.state_file,
            loaded.damage,
            loaded.snapshots,
            loaded.first_dirty_offset,
        )
        self.append = appender.append
        self.read = reader.read
        self.seek = reader.seek
        self.find_timestamp = reader.find_timestamp
        self.traced = partial(
            TracedReader, loaded.offsets, loaded.segments, loaded.state_file.state, loaded.damage, loaded.finder
        )
        self.check_offset = reader.check_offset
        self.slice_near_end = reader.slice_near_end
        self.prepare_flush = loaded.flusher.prepare_flush
        self.finish_flush = loaded.flusher.finish_flush

    # --- Facts --------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """The topic configuration in force; see ``reconfigure``."""
        return self._settings.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._offsets.start

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._offsets.end

    @property
    def durable_end_offset(self) -> int:
        """Everything below it survives a power cut."""
        return self._offsets.durable_end

    @property
    def proven_start_offset(self) -> int:
        """The log start that the disk proves, for the checkpoint."""
        return self._state_file.proven_start

    @property
    def start_is_proven(self) -> bool:
        """Whether a start after a crash would find the current log start."""
        return self._state_file.start_is_proven

    @property
    def first_base_on_disk(self) -> int:
        """The base offset of the first segment that a start would find."""
        return self._truncation.first_base_on_disk

    @property
    def first_dirty_offset(self) -> int | None:
        """Where the last round of compaction ended, None before the first."""
        return self._cleaning.first_dirty_offset

    @property
    def state(self) -> PartitionState:
        """The content of ``seglog-partition.json``. Only the log itself changes it."""
        return self._state_file.state

    @property
    def segments(self) -> SegmentList:
        """The segments in offset order; the last one is active. Only the log itself changes the list."""
        return self._segments

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self._segments.active

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.total_size

    @property
    def idle_roll_ms(self) -> int | None:
        """The wall time (ms) at which the idle timer closes the active segment; None if it is empty, or for never."""
        return self._roller.idle_roll_ms

    # --- Configuration and rolling ------------------------------------------------------------------------------------

    def reconfigure(self, config: TopicConfig) -> None:
        """Use another topic configuration: limits apply from the next append on, index settings from the next roll."""
        self._settings.config = config
        self._roller.policy.draw_age()

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """Set after how many ms without an append a producer is forgotten."""
        self.producers.expiration_ms = expiration_ms

    def roll_if_idle(self) -> bool:
        """Close the active segment if the wall time since its first append exceeds its age; return whether it did.

        Raises StorageError when the new segment could not be begun; the next append tries again.
        """
        return self._roller.roll_if_idle()

    # --- Durability ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync now, in line. Raises StorageError when it fails."""
        self._flusher.flush()

    def prepare_checkpoint(self) -> Flush:
        """A flush after which a start need not read below its ``end_offset``.

        It syncs closed segments with their indexes, up to the base of the active one. Give the result's ``run`` to a
        thread, then call ``finish_flush`` whatever happened. Raises StorageError when a file cannot be opened.
        """
        return self._flusher.prepare_checkpoint()

    def prepare_state(self) -> StateWrite | None:
        """The write that saves ``state``, None if nothing has changed.

        Give its ``run`` to a thread, then call ``finish_state`` whatever happened.
        """
        return self._state_file.prepare()

    def finish_state(self, *, written: bool) -> None:
        """End a write of the state; save at once what became urgent meanwhile."""
        self._state_file.finish(written=written)

    def mark_read_only(self, reason: str, *, to_disk: bool = True) -> None:
        """Refuse appends, now and, with ``to_disk``, after a restart, because the disk's content is no longer known."""
        self._state_file.mark_read_only(reason, to_disk=to_disk)

    def replace_indexes(self, segment: Segment, suffixes: Sequence[str]) -> None:
        """As ``SegmentIndexes.replace``; the next checkpoint syncs their names."""
        self._flusher.mark_directory_dirty()
        segment.indexes.replace(suffixes)

    def note_damage(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Skip damaged ranges, found by reading a whole closed segment, from now on; return those that are new."""
        news = self._damage.note(found)
        if news:
            self._state_file.mark_dirty()
        return news

    # --- Truncation ---------------------------------------------------------------------------------------------------

    def judge_segments(self) -> Iterator[tuple[Segment, Verdict]]:
        """Retention's verdict on each segment, from the oldest on; see ``LogRetention.judge_segments``."""
        return self._retention.judge_segments()

    def last_write(self, segment: Segment) -> LastWrite:
        """The time of the last append to ``segment``, by the best source there is."""
        return self._retention.last_write(segment)

    def forget_last_append(self) -> None:
        """Drop the recorded time of the last append, which cannot be true: the file's modification time is used."""
        self._state_file.state.last_append_ms = None
        self._state_file.mark_dirty()

    def truncate_before(self, offset: int) -> int:
        """Move the log start up to ``offset`` (delete records before it); return the new log start.

        Retention removes the segments that lie wholly below. The caller writes the log start checkpoint; if the start
        is not proven yet, because a write of the state is in progress, it waits for that write first. OSError: the
        start has moved, but the state that records it is only saved by the next call, for whatever offset, or later.
        Raises OffsetOutOfRangeError for an offset beyond the log end.
        """
        self.check_offset(max(offset, self._offsets.start))
        return self._truncation.truncate_before(offset)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to ``offset``; batches are not split, so it may end below that.

        Returns when the truncation, and what is left, survive a power cut.
        """
        self._truncation.truncate_to(offset)

    def close_unreadable(self) -> bool:
        """Roll if all records of the active segment are below the log start; return whether that was so.

        Retention removes a closed segment below the log start, but never the active one. StorageError when the disk has
        no room for the roll.
        """
        return self._truncation.close_unreadable()

    def drop_oldest(self, count: int) -> DeletedSegments:
        """Remove the oldest ``count`` segments from the log, and move the log start up to the first that stays.

        If none would be left, a new active segment is begun first; the log end never changes. If that fails, as on a
        full disk, the active segment stays and the others are still removed. Look-ups no longer find them. Then write
        the state, which proves the log start, then the log start checkpoint, then set the result's files aside: in this
        order a crash at any moment leaves a log without a gap. StorageError: nothing has changed.
        """
        return self._truncation.drop_oldest(count)

    # --- Compaction ---------------------------------------------------------------------------------------------------

    def find_cleanable(self) -> Cleanable:
        """What is cleanable now. May raise ColdReadError and TurnWantedError."""
        return self._cleaning.find_cleanable()

    def plan_cleaning(self, cleanable: Cleanable, broker: BrokerConfig, *, dry_run: bool = False) -> CleaningJob:
        """The job that compacts what ``cleanable`` describes, for a worker process."""
        return self._cleaning.plan_cleaning(cleanable, broker, dry_run=dry_run)

    def note_compacted(self, before: int) -> None:
        """From now on gaps below ``before`` count as compacted. Save the state before any record is removed."""
        self._cleaning.note_compacted(before)

    def finish_cleaning(self, result: CleaningResult) -> None:
        """Record the result of a round whose segments are all installed."""
        self._cleaning.finish_cleaning(result)

    def note_cleaner_error(self, reason: str | None) -> None:
        """Record why the last round failed, None if it succeeded."""
        self._cleaning.note_cleaner_error(reason)

    def install_cleaned(self, swap: SegmentSwap, damaged: Sequence[DamagedRange]) -> DeletedSegments:
        """Replace the sources of ``swap`` with their cleaned, promoted segment; return them, to be removed later.

        ``damaged`` are the ranges in it that could not be read. StorageError: the log is unchanged.
        """
        return self._cleaning.install_cleaned(swap, damaged)

    # --- Closing ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything and close every file. After this a start need not check the directory.

        Raises StorageError when the disk fails; the next start then has to recover the log.
        """
        state, end = self.state, self._offsets.end
        try:
            self._segments.active.close()
            self._flusher.flush_deep()
            self._snapshots.close(self._segments.bases, end)
            if state.read_only is None:
                state.held_end = end
            self.epochs.save()  # truncated by retention, which does not fsync them
            state.stopped = StoppedAt(self._offsets.start, end)
            self._state_file.save()
        except OSError as error:
            raise StorageError(f"{self.directory} could not be closed: {error}") from error
        finally:
            self.release()

    def release(self) -> None:
        """Close every file without writing anything."""
        self.release_writers()
        self._files.handles.forget_in(self.directory)

    def release_writers(self) -> None:
        """As ``release``, except for files in the handle pool: the caller calls ``HandlePool.forget_in``."""
        for segment in self._segments.known():
            segment.release()
