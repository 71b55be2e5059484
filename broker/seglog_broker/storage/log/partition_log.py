"""A partition's log: segments in order, appended to at the end, read anywhere, truncated at its start.

Synchronous, one owner, no locks: every method is atomic for callers on the same loop. Clock and file system are passed
in. Work that waits for the disk is returned as a ``Flush``, whose ``run`` may go to a thread: it holds leases and uses
nothing else of the log.

Offsets: [``log_start_offset``, ``log_end_offset``) can be read, everything below ``durable_end_offset`` survives a
power cut. ``loader.load`` makes the parts of a ``PartitionLog``. Each part owns what it changes; they share
``LogOffsets`` and the segments. Invariants 1 to 5 of ARCHITECTURE.md live in those parts.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.appender import Appender
from seglog_broker.storage.log.cleaning import LogCleaning
from seglog_broker.storage.log.closing import FrozenLog, LogClosing, close_together, freeze
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.log.reader import LogReader
from seglog_broker.storage.log.traced_reader import TracedReader
from seglog_broker.storage.log.truncation import LogRetention, LogTruncation
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.storage.segment.segment_log import LogSlice
from seglog_protocol.transaction_files import AbortedTransaction


class PartitionLog:
    """One partition, from ``load`` until ``close`` or ``release``.

    ``append`` and ``append_marker`` are those of ``Appender``; ``read``, ``seek``, ``find_timestamp``, ``check_offset``
    and ``slice_near_end`` are those of ``LogReader``; ``prepare_flush`` and ``finish_flush`` those of ``LogFlusher``.
    They are bound here so that a request calls them directly. ``traced(trace)`` is a reader that records one seek. The
    other parts are used under their names: ``flusher``, ``roller``, ``state_file``, ``truncation``, ``retention`` and
    ``cleaning``.
    """

    def __init__(self, loaded: LoadedLog) -> None:
        """Takes ownership of ``loaded``."""
        self.directory = loaded.files.directory
        self.epochs = loaded.epochs
        self.leader_epoch = loaded.leader_epoch
        self.offsets = loaded.offsets
        """Its offsets as they are at any time, for those who look at many logs. Only the log itself changes them."""
        self.producers = loaded.producers
        self.segments = loaded.segments
        """The segments in offset order; the last one is active. Only the log itself changes the list."""
        self.state_file = loaded.state_file
        self.transactions = loaded.transactions
        self.flusher = loaded.flusher
        self.roller = loaded.roller
        self.truncation = LogTruncation(loaded)
        self.retention = LogRetention(loaded)
        self.cleaning = LogCleaning(loaded, loaded.first_dirty_offset)
        self._log = loaded
        appender = Appender(loaded)
        reader = LogReader(loaded)
        self.append = appender.append
        self.append_marker = appender.append_marker
        self.read = reader.read
        self._end_of_slice = reader.end_of
        self.seek = reader.seek
        self.find_timestamp = reader.find_timestamp
        self.traced = partial(TracedReader, loaded)
        self.check_offset = reader.check_offset
        self.slice_near_end = reader.slice_near_end
        self.prepare_flush = loaded.flusher.prepare_flush
        self.finish_flush = loaded.flusher.finish_flush
        self.release = loaded.release
        self.release_writers = loaded.release_writers

    @property
    def config(self) -> TopicConfig:
        """The topic configuration in force; see ``reconfigure``."""
        return self._log.settings.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self.offsets.start

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.offsets.end

    @property
    def last_stable_offset(self) -> int:
        """Where the first open transaction begins; the log end without one."""
        return self.offsets.stable_end(self.producers.first_unstable_offset)

    @property
    def durable_end_offset(self) -> int:
        """Everything below it survives a power cut."""
        return self.offsets.durable_end

    @property
    def start_is_proven(self) -> bool:
        """Whether a start after a crash would find the current log start."""
        return self.state_file.start_is_proven

    @property
    def state(self) -> PartitionState:
        """The content of ``seglog-partition.json``. Only the log itself changes it."""
        return self.state_file.state

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments.active

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.segments.total_size

    def behind_unsynced(self, offset: int) -> int:
        """``offset``, or where a reader goes on that passes what a power cut may have torn."""
        for damage in self.state.damaged if self.state.unsynced else ():
            if damage.start_offset <= offset < damage.end_offset and self.state.is_unsynced(damage):
                return damage.end_offset
        return offset

    def aborted_in(self, found: LogSlice) -> list[AbortedTransaction]:
        """The aborted transactions that may have batches among those that were read.

        Raises StorageError when an index cannot be read, and ColdReadError within ``only_warm``.
        """
        if not self.transactions.bases:
            return []
        base = self.segments.bases[self.segments.floor(found.start_offset)]
        try:
            return self.transactions.find(base, found.start_offset, self._end_of_slice(found))
        except OSError as error:
            raise storage_error(
                f"a transaction index of {self.directory} could not be read: {why(error)}", error
            ) from error

    def reconfigure(self, config: TopicConfig) -> None:
        """Use another topic configuration: limits apply from the next append on, index settings from the next roll."""
        self._log.settings.config = config
        self.roller.policy.draw_age()

    def replace_indexes(self, segment: Segment, suffixes: Sequence[str]) -> None:
        """As ``SegmentIndexes.replace``; the next checkpoint syncs their names."""
        self.flusher.mark_directory_dirty()
        segment.indexes.replace(suffixes)

    def note_damage(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Skip damaged ranges, found by reading a whole closed segment, from now on; return those that are new."""
        news = self._log.damage.note(found)
        if news:
            self.state_file.mark_dirty()
        return news

    def forget_last_append(self) -> None:
        """Drop the recorded time of the last append, which cannot be true: the file's modification time is used."""
        self.state.last_append_ms = None
        self.state_file.mark_dirty()

    def truncate_before(self, offset: int) -> int:
        """Move the log start up to ``offset`` (delete records before it); return the new log start.

        Retention removes the segments that lie wholly below. The caller writes the log start checkpoint; if the start
        is not proven yet, because a write of the state is in progress, it waits for that write first. OSError: the
        start has moved, but the state that records it is only saved by the next call, for whatever offset, or later.
        Raises OffsetOutOfRangeError for an offset beyond the log end.
        """
        self.check_offset(max(offset, self.offsets.start))
        return self.truncation.truncate_before(offset)

    def freeze(self) -> FrozenLog:
        """Freeze the log: see ``freezing.freeze``."""
        return freeze(self._log)

    def closing(self) -> LogClosing:
        """What closes the log, alone or with others: see ``close_together``. It is released afterwards."""
        return LogClosing(self._log)

    def close(self) -> None:
        """Flush everything and close every file. After this a start need not check the directory.

        Raises StorageError when the disk fails; the next start then has to recover the log.
        """
        [error] = close_together(self._log.files.fs, self._log.files.handles, [self.closing()])
        if error is not None:
            raise error
