"""The trace of a seek, and the steps of a seek that record it.

The record is exact, because no step is repeated for it: the code of the seek is the same, and so is its state.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.offset_index import OffsetIndex, OffsetPosition
from seglog_broker.storage.segment.seek_steps import Behind, SeekSteps
from seglog_broker.storage.segment.sparse_index import FloorSearch, SparseIndex
from seglog_broker.storage.segment.time_index import TimeEntries, TimeIndex, TimestampOffset
from seglog_protocol import segment_files as files
from seglog_protocol.header_scan import LocatedBatch, ReadBytes

POSITIONS_MAX: Final = 256
"""Positions of batch headers that a trace keeps; a scan of tiny batches may pass many more."""


@dataclass(slots=True)
class IndexLookup:
    """One search of one index file: the entry found, as (key, value), or None if all are above."""

    index: str  # "offset" or "time"
    path: str
    entries: int
    wanted: int
    probes: int = 0
    trail: list[tuple[int, int]] = field(default_factory=list)  # of each probe the number of the entry, and its key
    entry: tuple[int, int] | None = None
    in_file: bool = False  # whether the file had to be searched; the newest entries are in memory


@dataclass(slots=True)
class SeekTrace:
    """The steps of one seek, in bytes, counts and paths."""

    segments: int = 0  # of the log
    segment: int | None = None  # base offset of the segment found
    why_segment: str = ""
    passed_over: int = 0  # segments checked before it
    lookups: list[IndexLookup] = field(default_factory=list)
    scan_start: int = 0  # position at which the scan of headers began
    scanned_bytes: int = 0  # from there to the position of the batch found
    scanned_batches: int = 0  # headers read, the one found included
    positions: list[int] = field(default_factory=list)  # of the first of these headers
    read_bytes: int = 0  # bytes of .log files read by system calls
    log_size: int = 0  # of the segment found
    position: int | None = None  # position of the batch found
    batch_size: int = 0
    base_offset: int | None = None
    last_offset: int | None = None
    record_offset: int | None = None  # a seek by timestamp also finds the record
    record_timestamp: int | None = None
    files: list[str] = field(default_factory=list)  # opened, mapped or read, in order, once each
    rebuilt_indexes: bool = False

    def touch(self, path: str) -> None:
        """Record that bytes of a file are used."""
        if path not in self.files:
            self.files.append(path)

    def note_nothing_found(self, why: str) -> None:
        """Record that no segment has what was sought; the steps so far stay recorded."""
        self.segment, self.why_segment = None, why


class TracedSteps(SeekSteps):
    """The steps of one seek. What verifies an index entry counts by its files and bytes, not as look-up or scan."""

    def __init__(self, trace: SeekTrace) -> None:
        self._trace = trace
        self._aside = 0  # how many proofs are under way, one within the other

    def read(self, handles: HandlePool, path: str, size: int, position: int, *, may_wait: bool) -> ReadBytes:
        """Count the bytes."""
        self._trace.touch(path)
        data = handles.read(path, size, position, may_wait=may_wait)
        self._trace.read_bytes += len(data)
        return data

    def offset_floor(self, index: OffsetIndex, offset: int) -> OffsetPosition:
        """Note the look-up."""
        noted = IndexLookup("offset", index.path, index.count, offset)
        floor = _NotedFloor(files.find_offset_floor, files.OFFSET_FIELD.unpack_from, index, noted)
        found = index.lookup(offset, floor)
        self._note(noted, found if floor.has_found else None)
        return found

    def time_floor(self, index: TimeIndex, timestamp: int) -> TimeEntries | None:
        """Note the look-up."""
        noted = IndexLookup("time", index.path, index.count, timestamp)
        floor = _NotedFloor(files.find_time_floor, files.TIME_FIELD.unpack_from, index, noted)
        found = index.below(timestamp, floor)
        self._note(noted, None if found is None else found.entry)
        return found

    def recall(self, verified: dict[TimestampOffset, Behind], entry: TimestampOffset) -> Behind | None:
        """Nothing: the trace shows how a batch is found without that."""
        del verified, entry
        nothing: Behind | None = None
        return nothing

    def begins_at(self, proof: LocatedBatch | None) -> LocatedBatch | None:
        """None: the trace shows the look-up."""
        del proof
        nothing: LocatedBatch | None = None
        return nothing

    def _note(self, noted: IndexLookup, entry: tuple[int, int] | None) -> None:
        noted.entry = entry
        if noted.in_file:
            self._trace.touch(noted.path)
        if not self._aside:
            self._trace.lookups.append(noted)

    def begin_scan(self, position: int) -> None:
        """Note where."""
        if not self._aside:
            trace = self._trace
            trace.scan_start, trace.scanned_bytes, trace.scanned_batches = position, 0, 0
            trace.positions.clear()

    def pass_batch(self, position: int) -> None:
        """Count the header."""
        if not self._aside:
            trace = self._trace
            trace.scanned_batches += 1
            if len(trace.positions) < POSITIONS_MAX:
                trace.positions.append(position)
            trace.scanned_bytes = position - trace.scan_start

    def find(self, found: LocatedBatch) -> None:
        """Note the batch."""
        trace, header = self._trace, found.header
        trace.position, trace.base_offset, trace.last_offset = found.position, header.base_offset, header.last_offset
        trace.batch_size = header.size

    def look_at(self, index: SparseIndex) -> None:
        """Note the file."""
        if index.count:
            self._trace.touch(index.path)

    def begin_proof(self) -> None:
        """Only files and bytes count from now on."""
        self._aside += 1

    def end_proof(self) -> None:
        """Everything counts again."""
        self._aside -= 1

    def rebuild(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """Note it, with both files."""
        self._trace.rebuilt_indexes = True
        self._trace.touch(offset_index.path)
        self._trace.touch(time_index.path)


class _NotedFloor:
    """A floor search that notes the entries it reads, and whether any of them is in the file."""

    def __init__(self, floor: FloorSearch, unpack: files.Unpack, index: SparseIndex, noted: IndexLookup) -> None:
        self.has_found = False
        self._floor = floor
        self._unpack = unpack
        self._index = index
        self._noted = noted
        self._first = 0  # number of the first entry of what is searched
        self._base = index.base_offset if noted.index == "offset" else 0

    def __call__(self, data: files.Buffer, count: int, wanted: int, /, *, low: int = 0) -> int:
        in_memory = isinstance(data, bytearray)
        self._noted.in_file |= not in_memory
        self._first = self._index.count - len(data) // self._index.entry_size if in_memory else 0
        number = self._floor(data, count, wanted, low=low, unpack=self._probe)
        self.has_found = number >= 0
        return number

    def _probe(self, data: files.Buffer, position: int) -> tuple[Any, ...]:
        fields = self._unpack(data, position)
        self._noted.probes += 1
        self._noted.trail.append((self._first + position // self._index.entry_size, self._base + fields[0]))
        return fields
