"""A segment that records the steps of a seek: it runs the code of ``Segment`` on the state of the traced segment.

The record is exact, because no step is repeated for it. ``Segment`` itself records nothing: its steps are methods of
it, of its log and of its indexes, and those of the traced classes record their arguments and results. A traced object
shares all fields with the one it stands for, except its own slots, so that both have each change.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from seglog_broker.storage.io.filesystem import File
from seglog_broker.storage.segment.flaws import FlawFinder
from seglog_broker.storage.segment.offset_index import OffsetPosition
from seglog_broker.storage.segment.seek_trace import IndexLookup, SeekTrace
from seglog_broker.storage.segment.segment import FoundTimestamp, Segment
from seglog_broker.storage.segment.segment_indexes import SegmentIndexes
from seglog_broker.storage.segment.segment_log import SegmentLog, Start
from seglog_broker.storage.segment.sparse_index import FloorSearch
from seglog_broker.storage.segment.time_index import TimeEntries, TimestampOffset
from seglog_protocol import segment_files as files
from seglog_protocol.header_scan import LocatedBatch, Readable


class TracedSegment(Segment):
    """For one seek."""

    __slots__ = ("_trace", "flaws", "indexes", "log")

    def __init__(self, segment: Segment, trace: SeekTrace) -> None:
        self.__dict__ = segment.__dict__  # the same object, not a copy, so that caches of a seek are kept
        self._trace = trace
        self.log = _TracedLog(segment.log, trace)
        self.indexes = _TracedIndexes(segment.indexes, self.log, trace)
        self.flaws = FlawFinder(self.log, segment.offset_index)

    def find(self, offset: int) -> LocatedBatch | None:
        """As ``Segment.find``, also where a fetch would need no look-up, because an earlier read ended there."""
        found = self._look_up(offset)
        if found is not None:
            self._trace.note_found(*found)
        return found

    def _first_in(self, found: LocatedBatch, data: bytes, timestamp: int, offset_min: int) -> FoundTimestamp | None:
        first = super()._first_in(found, data, timestamp, offset_min)
        if first is not None:
            self._trace.note_found(*found)
        return first


class _TracedLog(SegmentLog):
    __slots__ = ("_trace",)

    def __init__(self, log: SegmentLog, trace: SeekTrace) -> None:
        self.__dict__ = log.__dict__
        self._trace = trace

    def walk(self, question: tuple[object, ...], start: Start, *, strict: bool = True) -> Iterator[LocatedBatch]:
        self._trace.note_scan(start.position)
        for found in super().walk(question, start, strict=strict):
            self._trace.note_batch(found.position)
            yield found

    def for_seeking(self, file: File) -> Readable:
        return super().for_seeking(self._trace.watch(file))

    def for_walking(self, file: File) -> Readable:
        return super().for_walking(self._trace.watch(file))


class _TracedIndexes(SegmentIndexes):
    __slots__ = ("_log", "_trace")

    def __init__(self, indexes: SegmentIndexes, log: _TracedLog, trace: SeekTrace) -> None:
        self.__dict__ = indexes.__dict__
        self._log = log
        self._trace = trace

    # --- What proves an index entry: files and bytes of it count, its look-ups and scans are not the seek's -----------

    def proves_last_time(self) -> bool:
        if self.time_index.count:
            self._trace.touch(self.time_index.path)
        return super().proves_last_time()

    def _is_youngest(self, last: TimestampOffset) -> bool:
        with self._trace.aside():
            return super()._is_youngest(last)

    def _proves(self, entries: TimeEntries) -> LocatedBatch | None:
        with self._trace.aside():
            return super()._proves(entries)

    # --- Look-ups -----------------------------------------------------------------------------------------------------

    def _floor(self, offset: int) -> OffsetPosition:
        index = self.offset_index
        noted = IndexLookup("offset", index.path, index.count, offset)
        self._trace.note_lookup(noted)
        floor = _CountedFloor(files.find_offset_floor, files.OFFSET_FIELD.unpack_from, noted)
        found = index.lookup(offset, floor)
        self._end_lookup(noted, found if floor.has_found else None)
        return found

    def _time_floor(self, timestamp: int) -> TimeEntries | None:
        index = self.time_index
        noted = IndexLookup("time", index.path, index.count, timestamp)
        self._trace.note_lookup(noted)
        found = index.below(timestamp, _CountedFloor(files.find_time_floor, files.TIME_FIELD.unpack_from, noted))
        self._end_lookup(noted, None if found is None else found.entry)
        return found

    def _end_lookup(self, noted: IndexLookup, entry: tuple[int, int] | None) -> None:
        noted.entry = entry
        if noted.in_file:
            self._trace.touch(noted.path)

    def _why_time_index_unusable(self) -> str | None:
        if self.time_index.count:
            self._trace.touch(self.time_index.path)
        return super()._why_time_index_unusable()

    def _why_offset_index_unusable(self) -> str | None:
        if self.offset_index.count:
            self._trace.touch(self.offset_index.path)
        return super()._why_offset_index_unusable()

    def rebuild(self, batches: Iterable[LocatedBatch] | None = None) -> int | None:
        self._trace.rebuilt_indexes = True
        self._trace.touch(self.offset_index.path)
        self._trace.touch(self.time_index.path)
        return super().rebuild(batches)


class _CountedFloor:
    """A floor search that counts the entries it reads, and records whether any of them is in the file."""

    def __init__(self, floor: FloorSearch, unpack: files.Unpack, noted: IndexLookup) -> None:
        self.has_found = False
        self._floor = floor
        self._unpack = unpack
        self._noted = noted

    def __call__(self, data: files.Buffer, count: int, wanted: int, /, *, low: int = 0) -> int:
        self._noted.in_file |= not isinstance(data, bytearray)
        number = self._floor(data, count, wanted, low=low, unpack=self._probe)
        self.has_found = number >= 0
        return number

    def _probe(self, data: files.Buffer, position: int) -> tuple[Any, ...]:
        self._noted.probes += 1
        return self._unpack(data, position)
