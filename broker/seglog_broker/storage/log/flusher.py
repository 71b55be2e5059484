"""Flushes of a log: prepared on the loop, run in a thread, and their result applied on the loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.storage.io.filesystem import File
from seglog_broker.storage.io.flushes import Flush, run_flushes
from seglog_broker.storage.io.handle_pool import Lease
from seglog_broker.storage.io.os_errors import NO_RESOURCES, LogDirectoryGoneError, storage_error, why
from seglog_broker.storage.log.log_files import LogFiles, LogOffsets
from seglog_broker.storage.log.partition_state import StateFile
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.transaction_indexes import TransactionIndexes
from seglog_broker.storage.producers.producer_snapshots import ProducerSnapshots
from seglog_broker.storage.segment.segment import DerivedFile, Segment
from seglog_protocol.errors import OutOfResourcesError

SEGMENTS_PER_FLUSH_MAX: Final = 32
"""Segments in one flush: each takes a descriptor, or three with its indexes, until the flush ends."""


@dataclass(slots=True, eq=False)
class LogFlusher:
    """Flushes one log and knows what of it is not on the disk yet.

    ``directory_is_dirty``: names in the directory have changed since it was last synced.
    """

    _files: LogFiles
    _offsets: LogOffsets
    _segments: SegmentList
    _state_file: StateFile
    _snapshots: ProducerSnapshots
    _transactions: TransactionIndexes
    directory_is_dirty: bool = field(default=False, init=False)
    _is_flushing: bool = field(default=False, init=False)
    _indexes_unsaved: bool = field(default=False, init=False)
    """Those of a closed segment, because a write failed: the next checkpoint tries again."""

    def mark_directory_dirty(self) -> None:
        """Names have changed: the next flush syncs the directory."""
        self.directory_is_dirty = True

    def mark_indexes_unsaved(self) -> None:
        """An index or a checksum of a closed segment could not be written: the next checkpoint tries again."""
        self._indexes_unsaved = True

    def prepare_flush(self) -> Flush:
        """A flush after which everything appended so far survives a power cut.

        Give the result's ``run`` to a thread, then call ``finish_flush`` whatever happened. Raises StorageError, with
        nothing changed, when a file cannot be opened. If there are very many segments to sync, the flush has the oldest
        ones, up to its ``end_offset``.
        """
        dirty: list[Segment] = []
        for number in range(len(self._segments) - 1, -1, -1):
            segment = self._segments[number]
            if segment.log.is_dirty:
                dirty.append(segment)
            elif segment.base_offset <= self._offsets.durable_end:
                break
        dirty.reverse()
        return _with_what_can_be_opened(
            lambda segments_max: self._flush_of(*_first_of(dirty, self._offsets.end, segments_max))
        )

    def finish_flush(self, flush: Flush, error: OSError | None) -> None:
        """Apply the result of a flush. A failure is final: the page cache now shows the lost pages as clean."""
        flush.release()
        self._is_flushing = False
        if error is not None and flush.files_are_synced and error.errno in NO_RESOURCES:
            # only opening the directory needs a descriptor; the next flush tries again
            self.directory_is_dirty = self.directory_is_dirty or flush.directory is not None
        elif error is not None:
            # the mark would be written into the directory that has replaced this one
            self._state_file.mark_read_only(
                f"an fsync failed: {why(error)}", to_disk=not isinstance(error, LogDirectoryGoneError)
            )
        elif self._state_file.state.read_only is None:  # after a failure a success proves nothing
            self._offsets.durable_end = max(self._offsets.durable_end, min(flush.end_offset, self._offsets.end))
            self._segments.active.log.release_idle_writer()

    def flush(self) -> None:
        """Sync now, in line. Raises StorageError when it fails."""
        while self._run(self.prepare_flush()) < self._offsets.end:
            pass

    def settle_flush(self, flush: Flush, error: OSError | None) -> int:
        """As ``finish_flush``; returns up to where the log is flushed. Raises StorageError if it has failed."""
        self.finish_flush(flush, error)
        if error is not None:
            raise storage_error(f"{self._files.directory} could not be synced: {why(error)}", error) from error
        return flush.end_offset

    def _run(self, flush: Flush) -> int:
        [error] = run_flushes(self._files.fs, [flush])
        return self.settle_flush(flush, error)

    def prepare_checkpoint(self) -> Flush:
        """A flush after which a start need not read below its ``end_offset``.

        It syncs closed segments with their indexes, up to the base of the active one. The caller does the same as with
        ``prepare_flush``, then makes ``end_offset`` the recovery point, which ``OffsetCheckpoints`` holds and
        ``CheckpointWriter`` writes.
        """
        closed = [segment for segment in self._segments.known() if segment is not self._segments.active]
        return self._prepare_deep_flush(closed, self._segments.active.base_offset)

    def flush_deep(self, *, sparing: bool = False) -> None:
        """Sync everything now, as ``prepare_deep_flush``. Raises OSError or StorageError."""
        while self._run(self.prepare_deep_flush(sparing=sparing)) < self._offsets.end:
            pass

    def prepare_deep_flush(self, *, sparing: bool = False) -> Flush:
        """A flush of everything, indexes and producer snapshots included. The caller does as with ``prepare_flush``.

        If there is very much to sync, it has the oldest, up to its ``end_offset``. With ``sparing`` no checksum is
        written, which takes a file: the scrub does that later. Raises OSError or StorageError.
        """
        return self._prepare_deep_flush([*self._segments.known()], self._offsets.end, sparing=sparing)

    def _prepare_deep_flush(self, segments: Sequence[Segment], end_offset: int, *, sparing: bool = False) -> Flush:
        if self._indexes_unsaved:
            for segment in segments:
                segment.indexes.writer.save()
                if segment is not self._segments.active and not sparing:
                    segment.checksum.save()
            self._indexes_unsaved = False
        return _with_what_can_be_opened(
            lambda segments_max: self._deep_flush_of(segments, end_offset, segments_max=segments_max)
        )

    def _deep_flush_of(self, segments: Sequence[Segment], end_offset: int, *, segments_max: int) -> Flush:
        with_aborted = self._transactions.unsynced
        unsynced = [
            s
            for s in segments
            if s.log.is_dirty or s.base_offset in with_aborted or any(file.is_dirty for file in s.derived_files)
        ]
        unsynced, end_offset = _first_of(unsynced, end_offset, segments_max)
        aborted = [s.base_offset for s in unsynced if s.base_offset in with_aborted]
        snapshots = [offset for offset in self._snapshots.unsynced if offset <= end_offset]
        if len(snapshots) > segments_max:
            end_offset = snapshots[segments_max]
            del snapshots[segments_max:]
        paths = self._snapshots.paths(snapshots)
        indexes = [self._transactions.path(base) for base in aborted]
        self.directory_is_dirty = self.directory_is_dirty or bool(aborted)  # they may be new
        flush = self._flush_of(unsynced, end_offset, with_derived=True, others=[*indexes, *paths])
        for base in aborted:
            with_aborted.pop(base, None)
        for path in paths:
            self._files.handles.forget(path)  # it is not opened again, and may be removed
        self._snapshots.note_synced(snapshots)
        return flush

    def _flush_of(
        self, segments: Sequence[Segment], end_offset: int, *, with_derived: bool = False, others: Sequence[str] = ()
    ) -> Flush:
        assert not self._is_flushing, "one flush of a log at a time"
        derived: list[DerivedFile] = []
        if with_derived:
            derived = [file for segment in segments for file in segment.derived_files if file.is_dirty]
            segments = [segment for segment in segments if segment.log.is_dirty]
        leases: list[Lease[File]] = []
        try:
            for path in (*(segment.log_path for segment in segments), *(file.path for file in derived), *others):
                leases.append(self._files.handles.lease(path))  # noqa: PERF401 - those before a failure are given back
        except OSError as error:
            for lease in leases:
                lease.release()
            raise storage_error(f"{self._files.directory} could not be synced: {why(error)}", error) from error
        for segment in segments:
            segment.log.is_dirty = False
        for file in derived:
            file.is_dirty = False
        self._is_flushing = True
        directory = self._files.directory if self.directory_is_dirty else None
        self.directory_is_dirty = False
        return Flush(self._files.fs, leases, directory, end_offset)


def _first_of(segments: list[Segment], end_offset: int, segments_max: int) -> tuple[list[Segment], int]:
    """The oldest ``segments_max`` segments, and their end offset."""
    if len(segments) <= segments_max:
        return segments, end_offset
    return segments[:segments_max], segments[segments_max].base_offset


def _with_what_can_be_opened(make: Callable[[int], Flush]) -> Flush:
    """``make(segments_max)`` with as many segments as descriptors allow; OutOfResourcesError if not even one."""
    segments_max = SEGMENTS_PER_FLUSH_MAX
    while True:
        try:
            return make(segments_max)
        except OutOfResourcesError:
            if segments_max == 1:
                raise
            segments_max //= 2
