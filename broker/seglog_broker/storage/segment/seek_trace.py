"""The trace of a seek, which ``TracedReader`` and ``TracedSteps`` record while they make the seek."""

from dataclasses import dataclass, field
from typing import Final

from seglog_protocol.record_batch import BatchHeader

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

    def note_scan(self, start: int) -> None:
        """Record that the scan of headers begins at position ``start``."""
        self.scan_start, self.scanned_bytes, self.scanned_batches = start, 0, 0
        self.positions.clear()

    def note_batch(self, position: int) -> None:
        """Record that the header at ``position`` was read."""
        self.scanned_batches += 1
        if len(self.positions) < POSITIONS_MAX:
            self.positions.append(position)
        self.scanned_bytes = position - self.scan_start

    def note_found(self, position: int, header: BatchHeader) -> None:
        """Record the batch found."""
        self.position, self.base_offset, self.last_offset = position, header.base_offset, header.last_offset
        self.batch_size = header.size

    def note_nothing_found(self, why: str) -> None:
        """Record that no segment has what was sought; the steps so far stay recorded."""
        self.segment, self.why_segment = None, why
