"""The trace of a seek, which ``TracedReader`` and ``TracedSegment`` record while they make the seek."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from seglog_broker.storage.io.filesystem import File
from seglog_protocol.record_batch import BatchHeader


@dataclass(slots=True)
class IndexLookup:
    """One search of one index file: the entry found, as (key, value), or None if all are above."""

    index: str  # "offset" or "time"
    path: str
    entries: int
    wanted: int
    probes: int = 0
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
    read_bytes: int = 0  # bytes of .log files read by system calls
    position: int | None = None  # position of the batch found
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

    def note_lookup(self, lookup: IndexLookup) -> None:
        """Begin the search of an index, whose probes and entry are recorded next."""
        self.lookups.append(lookup)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Record only files and bytes in this block, which verifies an index entry, and not its look-ups and scans."""
        lookups, scan = len(self.lookups), (self.scan_start, self.scanned_bytes, self.scanned_batches)
        try:
            yield
        finally:
            del self.lookups[lookups:]
            self.scan_start, self.scanned_bytes, self.scanned_batches = scan

    def note_scan(self, start: int) -> None:
        """Record that the scan of headers begins at position ``start``."""
        self.scan_start, self.scanned_bytes, self.scanned_batches = start, 0, 0

    def note_batch(self, position: int) -> None:
        """Record that the header at ``position`` was read."""
        self.scanned_batches += 1
        self.scanned_bytes = position - self.scan_start

    def note_found(self, position: int, header: BatchHeader) -> None:
        """Record the batch found."""
        self.position, self.base_offset, self.last_offset = position, header.base_offset, header.last_offset

    def note_nothing_found(self, why: str) -> None:
        """Record that no segment has what was sought; the steps so far stay recorded."""
        self.segment, self.why_segment = None, why

    def watch(self, file: File) -> File:
        """A view of ``file`` that counts its reads."""
        self.touch(file.path)
        return _WatchedFile(file, self)


class _WatchedFile(File):
    """A File that counts what a seek reads through it. A seek does nothing else with it."""

    def __init__(self, file: File, trace: SeekTrace) -> None:
        self._path = file.path
        self._file = file
        self._trace = trace

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        self._trace.read_bytes += len(data)
        return data

    def is_cached(self, position: int, size: int) -> bool:
        return self._file.is_cached(position, size)
