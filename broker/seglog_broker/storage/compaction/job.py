"""Jobs for the cleaner and their results: values that are sent between processes as JSON.

Offsets count records, positions and sizes are bytes, times are epoch milliseconds.
"""

from dataclasses import dataclass
from typing import Final

from seglog_broker.storage.segment.damage import DamagedRange

UNREADABLE: Final = "unreadable"
"""Reason of a range whose batch is whole and has the right checksum, and whose records cannot be opened."""


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """A segment to be cleaned. ``damaged``: its known damaged ranges, in order."""

    base_offset: int
    damaged: tuple[DamagedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One round of cleaning of one partition; ``directory`` is the partition's.

    ``segments`` are all closed segments below ``upper_bound``, ascending; ``later_segments`` the bases of all others,
    of which only headers are read. Records from ``first_dirty`` on have never been cleaned. ``map_bytes`` is what the
    offset map may take, of which ``map_load_factor`` is used.
    """

    directory: str
    segments: tuple[SourceSegment, ...]
    later_segments: tuple[int, ...]
    first_dirty: int
    upper_bound: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    map_load_factor: float
    decompressed_batch_bytes_max: int
    producer_id_expiration_ms: int
    bytes_per_second: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        bases = [segment.base_offset for segment in self.segments]
        if not bases:
            raise ValueError("there is no segment to clean")
        if sorted({*bases, self.upper_bound}) != [*bases, self.upper_bound]:
            raise ValueError(f"the segments {bases} do not rise towards the upper bound {self.upper_bound}")
        later = list(self.later_segments)
        if later != sorted(set(later)) or min(later, default=self.upper_bound) < self.upper_bound:
            raise ValueError(f"the later segments {later} do not rise from the upper bound {self.upper_bound} on")
        if not bases[0] <= self.first_dirty <= self.upper_bound:
            raise ValueError(f"the first dirty offset {self.first_dirty} is not in [{bases[0]}, {self.upper_bound}]")
        if self.bytes_per_second is not None and not self.bytes_per_second > 0:
            raise ValueError(f"{self.bytes_per_second} bytes a second are no rate")


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Source segments that became one, at ``base_offset``.

    ``unchanged``: the one source is already what it would become, and there are no ``.cleaned`` files. ``damaged``
    and ``unreadable`` (whole batches whose records cannot be opened) name places in the new segment.
    """

    base_offset: int
    sources: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    records_read: int
    records_kept: int
    unchanged: bool
    damaged: tuple[DamagedRange, ...]
    unreadable: tuple[DamagedRange, ...]


@dataclass(frozen=True, slots=True)
class SegmentLoss:
    """How many records, and bytes of the ``.log``, of one source segment compaction takes away."""

    base_offset: int
    records: int
    size: int


@dataclass(slots=True)
class RecordCounts:
    """Counts of the records that were filtered.

    ``keyless`` records were dropped because nothing can tell what replaces them. ``tombstones_due_ms`` is when the
    first of the tombstones and markers that were kept may go, None when there are none.
    """

    records_read: int = 0
    records_kept: int = 0
    keyless: int = 0
    tombstones_kept: int = 0
    tombstones_dropped: int = 0
    tombstones_due_ms: int | None = None

    def note_due(self, horizon: int) -> None:
        """Something is kept until ``horizon`` (ms)."""
        if self.tombstones_due_ms is None or horizon < self.tombstones_due_ms:
            self.tombstones_due_ms = horizon


@dataclass(slots=True, kw_only=True)
class CleaningResult(RecordCounts):
    """The result of a job. ``first_dirty`` is where the next round begins, if this one's files are put in place."""

    first_dirty: int
    groups: tuple[CleanedGroup, ...]
    losses: tuple[SegmentLoss, ...]
    bytes_read: int
    bytes_written: int
