"""Look-ups in both indexes of a segment that its log confirms, and the rebuild of indexes that it does not.

Indexes have no checksum: one flipped bit would otherwise skip records silently. So an entry is used only if a batch
that fits it is found; where none is, both indexes are rebuilt from the log.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from seglog_broker.storage.segment.index_rebuild import InTurns, rebuilt_beside, rebuilt_from
from seglog_broker.storage.segment.index_writer import IndexWriter
from seglog_broker.storage.segment.offset_index import OffsetIndex, OffsetPosition
from seglog_broker.storage.segment.seek_steps import Behind
from seglog_broker.storage.segment.segment_log import SegmentLog, Start
from seglog_broker.storage.segment.time_index import TimeEntries, TimeIndex, TimestampOffset
from seglog_protocol import segment_files as names
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import SEEK_WINDOW, LocatedBatch, Windowed
from seglog_protocol.record_batch import HEADER_SIZE, NO_TIMESTAMP

READ_AT_ONCE_MAX: Final = 64 * 1024
"""Bytes that a seek reads at once, at most: 6 µs to copy."""

VERIFIED_TIMES_MAX: Final = 256
"""Entries of the time index remembered in each segment: a seek for a time behind one reads the next batch alone."""


class ProvenTime(NamedTuple):
    """An entry of the time index, and the batch that proves it, unless the index was just rebuilt.

    ``behind`` is the end of that batch if an earlier seek has verified it; then there is no ``batch``.
    """

    entry: TimestampOffset
    batch: LocatedBatch | None
    behind: Behind | None = None


class SegmentIndexes:
    """Both indexes of one segment, beside the log that they are about. ``writer`` is the one that appends use."""

    def __init__(self, log: SegmentLog, offset_index: OffsetIndex, time_index: TimeIndex, interval: int) -> None:
        """An entry is due behind ``interval`` bytes without one."""
        self.offset_index = offset_index
        self.time_index = time_index
        self.writer = IndexWriter(offset_index, time_index, interval)
        self._log = log
        self._rebuild: InTurns[tuple[IndexWriter, int | None]] | None = None  # of both, in turns
        self._offset_index_checked = False  # looked at since this object was made
        self._time_index_checked = False
        self._verified: dict[TimestampOffset, Behind] = {}

    def create(self) -> None:
        """Make the files of a new, empty segment."""
        self.writer.create()
        self.writer.largest = TimestampOffset(NO_TIMESTAMP, self._log.base_offset)
        self._offset_index_checked = self._time_index_checked = True

    # --- Look-ups -----------------------------------------------------------------------------------------------------

    def window(self, steps: int) -> Windowed | None:
        """The log as a seek reads it that goes over so many entries of the offset index: once, if batches are alike.

        None where that would be much to read for a few headers.
        """
        step = self._log.size // (self.offset_index.count + 1)
        wanted = steps * step + step // 8 + 2 * HEADER_SIZE
        return Windowed(self._log, max(wanted, SEEK_WINDOW)) if wanted <= READ_AT_ONCE_MAX else None

    def start_for(self, offset: int, window: Windowed | None = None) -> Start:
        """Where a scan for ``offset`` begins: at the index floor, used only if a fitting batch begins there."""
        self.ensure_offset_index()
        try:
            entry = self._log.steps.offset_floor(self.offset_index, offset)
            if entry.position == 0:
                return Start(0)
            batch = self.batch_at(entry, window)
            if batch is not None:
                return Start(entry.position, batch)
        except ValueError:
            pass  # the file is shorter than it was: rebuilt below
        self.rebuild()
        return Start(self._log.steps.offset_floor(self.offset_index, offset).position)

    def batch_at(self, entry: OffsetPosition, window: Windowed | None = None) -> LocatedBatch | None:
        """The batch at the position of an offset index entry; None when no fitting batch begins there."""
        if not 0 < entry.position <= self._log.size - HEADER_SIZE:
            return None
        header = self._log.header_at(entry.position, window)
        return LocatedBatch(entry.position, header) if header and header.base_offset <= entry.offset else None

    def time_below(self, timestamp: int, window: Windowed | None) -> ProvenTime | None:
        """The last entry of the time index below ``timestamp`` (ms), None when there is none."""
        self._ensure_time_index()
        found = self._log.steps.time_floor(self.time_index, timestamp)
        if found is not None and found.is_in_order:
            behind = self._log.steps.recall(self._verified, found.entry)
            if behind is not None:
                return ProvenTime(found.entry, None, behind)
        proof = None if found is None else self._proves(found, window)
        if found is not None and proof is None:
            self.rebuild()
            found = self._log.steps.time_floor(self.time_index, timestamp)
        return None if found is None else ProvenTime(found.entry, proof)

    def note_verified(self, entry: TimestampOffset, batch: LocatedBatch) -> None:
        """Remember that ``batch`` proves an entry of the time index, and matches its checksum."""
        while len(self._verified) >= VERIFIED_TIMES_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[entry] = batch.end, batch.header.next_offset

    def find_max_timestamp(self) -> TimestampOffset:
        """(largest timestamp, last offset of the earliest batch that has it); no file is read once it is known.

        Raises CorruptRecordError when an index must be rebuilt from a log that is damaged.
        """
        if self.writer.largest is None:
            self._ensure_time_index()
            if not self.proves_last_time():
                self.rebuild()
            self.writer.largest = self.time_index.last
        return self.writer.largest

    # --- What the log says of time entries ----------------------------------------------------------------------------

    def proves_last_time(self) -> bool:
        """Whether the newest time entry is true, and no batch after the last offset entry has a later timestamp.

        Where bytes of the log are damaged the entry is trusted: only one of the two is wrong. So it is while they are
        awaited: a look-up by time passes over the segment, or asks for it.
        """
        last = self.time_index.around_last()
        if last is None or self._log.is_awaited:
            return True
        self._log.steps.look_at(self.time_index)
        try:
            return self._proves(last, self.window(1)) is not None and self._is_youngest(last.entry)
        except CorruptRecordError:
            return last.is_in_order

    def _is_youngest(self, last: TimestampOffset) -> bool:
        if self._log.is_active:
            return True  # what was appended since is younger, or not
        self._log.steps.begin_proof()
        try:
            indexed = self.start_for(names.OFFSET_MAX)
            behind = self._log.walk(("youngest", last.timestamp, indexed.position), indexed)
            while (found := behind.next()) is not None:
                if found.header.max_timestamp > last.timestamp:
                    return False
            return True
        finally:
            self._log.steps.end_proof()

    def _proves(self, entries: TimeEntries, window: Windowed | None) -> LocatedBatch | None:
        """The batch that a time entry names, None unless log and neighbours confirm the entry.

        The batches between two offset entries are read: it must name the earliest there that has its timestamp, and
        none before it may have a later one. Raises CorruptRecordError when that batch does not match its checksum.
        """
        entry, base_offset = entries.entry, self._log.base_offset
        if not entries.is_in_order or not base_offset <= entry.offset:
            return None
        self._log.steps.begin_proof()
        try:
            start = self.start_for(max(base_offset, entry.offset - 1), window=window)
            walk = self._log.walk(("proof", *entry, start.position), start, window=window)
            while (found := walk.next()) is not None:
                header = found.header
                is_named = header.last_offset >= entry.offset
                if is_named and header.base_offset <= entry.offset and header.max_timestamp == entry.timestamp:
                    return found
                if is_named or header.max_timestamp >= entry.timestamp:  # to find out which of the two is wrong
                    self._log.refuse_corrupt(found, (window or self._log).pread(header.size, found.position))
                    return None
            return None
        finally:
            self._log.steps.end_proof()

    # --- Whether they can be trusted at all ---------------------------------------------------------------------------

    def ensure(self) -> None:
        """Rebuild both indexes if either is missing or implausible; looks once, and only at their ends."""
        self.ensure_offset_index()
        self._ensure_time_index()

    def _ensure_time_index(self) -> None:
        """The half of ``ensure`` for the largest timestamp, so that skipping a segment reads one file."""
        if not self._time_index_checked:
            if not self._is_time_index_usable():
                self.rebuild()
            self._time_index_checked = True  # not before: a cold read interrupts the look, and damage the making

    def ensure_offset_index(self) -> None:
        """The half of ``ensure`` that a seek by offset needs: a log without timestamps has no time index."""
        if not self._offset_index_checked:
            if not self._is_offset_index_usable():
                self.rebuild()
            self._offset_index_checked = True

    def look_usable(self) -> bool:
        """Whether both are plausible, as far as their ends tell; nothing is rebuilt."""
        try:
            return self._is_offset_index_usable() and self.time_index.problem() is None
        except ValueError:
            return False

    def _is_offset_index_usable(self) -> bool:
        """True where there is one that is plausible: not empty where the log is long enough for an entry."""
        if not self.offset_index.exists:
            return False
        self._log.steps.look_at(self.offset_index)
        try:
            is_plausible = self.offset_index.problem(self._log.size) is None
        except ValueError:
            return False
        return is_plausible and (self.offset_index.count > 0 or not self._is_worth_an_entry())

    def _is_worth_an_entry(self) -> bool:
        """Whether any batch lies so far from the start that it is indexed; a few headers tell."""
        interval = self.writer.interval
        if self._log.size <= interval:
            return False
        walk = self._log.walk(("index",), Start(0), strict=False)
        while (found := walk.next()) is not None:
            if found.position > interval:
                return True
        return False

    def _is_time_index_usable(self) -> bool:
        """True where there is one that is plausible.

        Where that of a closed segment is empty, either no batch has a timestamp, or the closing entry was lost: only
        the headers can tell.
        """
        if not self.time_index.exists:
            return False
        self._log.steps.look_at(self.time_index)
        try:
            is_plausible = self.time_index.problem() is None
        except ValueError:
            return False
        return is_plausible and (self._log.is_active or not self._log.size or self.time_index.count > 0)

    # --- Rebuilding ---------------------------------------------------------------------------------------------------

    def rebuild(self, batches: Iterable[LocatedBatch] | None = None) -> int | None:
        """Rebuild both indexes from ``batches``, by default all headers; checksums are not verified.

        Returns the offset after the last batch, or None when there is none. Raises CorruptRecordError, with the old
        indexes unchanged, where headers show unknown damage.
        """
        self._log.steps.rebuild(self.offset_index, self.time_index)
        self._verified.clear()
        if batches is None:
            return self._rebuild_in_turns()
        self.writer.reset()
        self._offset_index_checked = self._time_index_checked = True
        next_offset = rebuilt_from(self._log, self.writer, batches)
        if not self._log.is_active:
            self.writer.save()
        return next_offset

    def _rebuild_in_turns(self) -> int | None:
        """``rebuild`` from all headers. If it stops half way, the next call continues."""
        if self._rebuild is None:
            self._rebuild = rebuilt_beside(self._log, self.writer)
        made: IndexWriter | None = None
        next_offset: int | None = None
        stop: Exception | None = None
        try:
            while stop is None or not self._log.pauses.are_wanted:
                stop = next(self._rebuild)
        except StopIteration as done:
            made, next_offset = done.value
        except BaseException:
            self.stop_rebuild()
            raise
        if made is None:
            assert stop is not None, "it has stopped, or it is done"
            raise stop
        self._rebuild = None
        self._offset_index_checked = self._time_index_checked = True
        self.writer.take_over(made)
        return next_offset

    def replace(self, suffixes: Sequence[str]) -> None:
        """Replace the index files of a closed segment by the correct ones beside them, which end in ``.tmp``.

        OSError: an old file is still there, which is no worse than before.
        """
        if names.OFFSET_INDEX_SUFFIX in suffixes:
            self.offset_index.replace(f"{self.offset_index.path}{names.TEMPORARY_SUFFIX}")
        if names.TIME_INDEX_SUFFIX in suffixes:
            self.time_index.replace(f"{self.time_index.path}{names.TEMPORARY_SUFFIX}")
        self.writer.largest = None
        self.forget_walks()
        self._offset_index_checked = self._time_index_checked = False

    def forget_walks(self) -> None:
        """Drop all interrupted walks over the log, so that they begin again, and what seeks have verified."""
        self._log.pauses.forget()
        self._verified.clear()
        if self._rebuild is not None:
            self.stop_rebuild()

    def stop_rebuild(self) -> None:
        """Give up a rebuild that is not complete: the old indexes stay, and are looked at again."""
        if self._rebuild is not None:
            self._rebuild.close()
            self._rebuild = None
        self._offset_index_checked = self._time_index_checked = False
        if not self._log.is_active:
            self.writer.largest = None
