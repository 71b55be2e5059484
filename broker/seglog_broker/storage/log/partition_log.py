"""A partition's log: its segments in order, appended to at one end, read anywhere, shortened at either end.

Synchronous, one owner, no locks: every method is atomic to a caller on the same loop. Time comes in as a clock, files
through the seam. What needs the disk to be waited for is handed out as a ``Flush``, whose ``run`` may go to a thread:
it holds leases and touches nothing of the log.

Offsets: [``log_start_offset``, ``log_end_offset``) can be read, everything below ``durable_end_offset`` survives a
power cut. ``loader.load`` makes what a ``PartitionLog`` is made of; each part of the log owns what it changes, and they
share ``LogOffsets`` and the segments. Invariants 1 to 5 of ARCHITECTURE.md live in those parts.
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
    that a request calls them without a layer in between. ``traced(trace)`` is a reader that records one seek.
    """

    def __init__(self, loaded: LoadedLog) -> None:
        """``loaded`` is taken over."""
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
        """The configuration that is in force; see ``reconfigure``."""
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
        """Whether a start after a crash finds the log start where it is now."""
        return self._state_file.start_is_proven

    @property
    def first_base_on_disk(self) -> int:
        """Where a start would find the log beginning, were it not told otherwise."""
        return self._truncation.first_base_on_disk

    @property
    def first_dirty_offset(self) -> int | None:
        """Where the last round of compaction ended, None before the first."""
        return self._cleaning.first_dirty_offset

    @property
    def state(self) -> PartitionState:
        """What is remembered of the partition beside its records. Only the log itself changes it."""
        return self._state_file.state

    @property
    def segments(self) -> SegmentList:
        """In offset order; the last one is active. Only the log itself changes the list."""
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
        """The wall time (ms) at which the idle timer closes the active segment; None: nothing is in it, or never."""
        return self._roller.idle_roll_ms

    # --- Configuration and rolling ------------------------------------------------------------------------------------

    def reconfigure(self, config: TopicConfig) -> None:
        """Take another configuration: limits hold from the next append on, index settings from the next roll."""
        self._settings.config = config
        self._roller.policy.draw_age()

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """Forget producers that have appended nothing for so long (ms)."""
        self.producers.expiration_ms = expiration_ms

    def roll_if_idle(self) -> bool:
        """Close the active segment if the wall time since its first append exceeds its age; say whether it was.

        Raises StorageError when the new one could not be begun; it is tried again, at the latest by the next append.
        """
        return self._roller.roll_if_idle()

    # --- Durability ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync now, in line. Raises StorageError when it fails."""
        self._flusher.flush()

    def prepare_checkpoint(self) -> Flush:
        """What must be synced so that no start need read below the result's ``end_offset``.

        That is closed segments with their indexes, up to the base of the active one. Give the result's ``run`` to a
        thread, then call ``finish_flush`` whatever happened. Raises StorageError when a file cannot be opened.
        """
        return self._flusher.prepare_checkpoint()

    def prepare_state(self) -> StateWrite | None:
        """The write that brings ``state`` to the disk, None when nothing in it is new.

        Give its ``run`` to a thread, then call ``finish_state`` whatever happened.
        """
        return self._state_file.prepare()

    def finish_state(self, *, written: bool) -> None:
        """Take note of the end of a state's writing; what was to be saved meanwhile follows."""
        self._state_file.finish(written=written)

    def mark_read_only(self, reason: str, *, to_disk: bool = True) -> None:
        """Take no more appends, now and, with ``to_disk``, after a restart: what the disk holds is no longer known."""
        self._state_file.mark_read_only(reason, to_disk=to_disk)

    def replace_indexes(self, segment: Segment, suffixes: Sequence[str]) -> None:
        """``Segment.replace_indexes``, with their names to be synced by the next checkpoint."""
        self._flusher.mark_directory_dirty()
        segment.replace_indexes(suffixes)

    def note_damage(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Serve around ranges that a reader of a whole closed segment met; return those that were not known."""
        news = self._damage.note(found)
        if news:
            self._state_file.mark_dirty()
        return news

    # --- Shortening ---------------------------------------------------------------------------------------------------

    def judge_segments(self) -> Iterator[tuple[Segment, Verdict]]:
        """What retention does with each segment now, from the oldest on; see ``LogRetention.judge_segments``."""
        return self._retention.judge_segments()

    def last_write(self, segment: Segment) -> LastWrite:
        """When something was last appended to ``segment``, as well as it can be told."""
        return self._retention.last_write(segment)

    def forget_last_append(self) -> None:
        """What is remembered of it cannot be true: the file's modification time tells of the active segment as well."""
        self._state_file.state.last_append_ms = None
        self._state_file.mark_dirty()

    def truncate_before(self, offset: int) -> int:
        """Move the log start up to ``offset`` (delete records before it); return the new log start.

        Segments that lie wholly below are left to retention. The caller persists the log start checkpoint, and where
        the start is not proven yet, because the state is just being written, first has that end. OSError: it has moved,
        and what is remembered of that is saved by the next call, for whatever offset, or later. Raises
        OffsetOutOfRangeError for an offset beyond the log end.
        """
        self.check_offset(max(offset, self._offsets.start))
        return self._truncation.truncate_before(offset)

    def truncate_to(self, offset: int) -> None:
        """Drop every record at or above ``offset``; batches are not split, so the log may end below it.

        Returns when what is left, and that the rest is gone, survives a power cut.
        """
        self._truncation.truncate_to(offset)

    def close_unreadable(self) -> bool:
        """Begin a new segment if no record of the active one can be read any more; say whether that was so.

        Its records have been deleted: retention takes it then, as it takes no active one for that reason. StorageError:
        there is no room even for that.
        """
        return self._truncation.close_unreadable()

    def drop_oldest(self, count: int) -> DeletedSegments:
        """Take the oldest ``count`` segments out of the log and move the log start up to what is left.

        If none would be left, a new active one is begun first; the log end never changes. Where that fails, as it does
        on a full disk, the active segment stays and the others make room. From now on they are not found any more. Have
        the state written, which proves the log start, then the log start checkpoint, then set the result's files aside:
        in this order a crash at any moment leaves a log without a hole. StorageError: nothing has changed.
        """
        return self._truncation.drop_oldest(count)

    # --- Compaction ---------------------------------------------------------------------------------------------------

    def find_cleanable(self) -> Cleanable:
        """What a round of compaction could do now. May raise ColdReadError and TurnWantedError."""
        return self._cleaning.find_cleanable()

    def plan_cleaning(self, cleanable: Cleanable, broker: BrokerConfig, *, dry_run: bool = False) -> CleaningJob:
        """The round of compaction that ``cleanable`` speaks of, for a process of its own."""
        return self._cleaning.plan_cleaning(cleanable, broker, dry_run=dry_run)

    def note_compacted(self, before: int) -> None:
        """Holes below ``before`` are no loss from now on; have the state saved before any record goes."""
        self._cleaning.note_compacted(before)

    def finish_cleaning(self, result: CleaningResult) -> None:
        """Take note of a round whose segments are all in their places."""
        self._cleaning.finish_cleaning(result)

    def note_cleaner_error(self, reason: str | None) -> None:
        """Remember how the last round ended: why it failed, None if it did not."""
        self._cleaning.note_cleaner_error(reason)

    def install_cleaned(self, swap: SegmentSwap, damaged: Sequence[DamagedRange]) -> DeletedSegments:
        """Let a cleaned segment that has been promoted take the place of its sources; what is to be removed later.

        ``damaged`` are the ranges in it that could not be read. StorageError: the log is what it was before.
        """
        return self._cleaning.install_cleaned(swap, damaged)

    # --- The end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Bring everything to disk and let go of every file; after this a start may trust the directory blindly.

        Raises StorageError when the disk refuses; the next start then has to read the log again.
        """
        state, end = self.state, self._offsets.end
        try:
            self._segments.active.close()
            self._flusher.flush_deep()
            self._snapshots.close(self._segments.bases, end)
            if state.read_only is None:
                state.held_end = end
            self.epochs.save()  # retention has cut them, which alone is not worth an fsync
            state.stopped = StoppedAt(self._offsets.start, end)
            self._state_file.save()
        except OSError as error:
            raise StorageError(f"{self.directory} could not be closed: {error}") from error
        finally:
            self.release()

    def release(self) -> None:
        """Let go of every file without writing anything."""
        self.release_writers()
        self._files.handles.forget_in(self.directory)

    def release_writers(self) -> None:
        """As ``release``; other files that are open are left to the caller of ``HandlePool.forget_in``."""
        for segment in self._segments.known():
            segment.release()
