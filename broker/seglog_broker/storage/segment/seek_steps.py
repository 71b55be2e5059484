"""What a seek does to the files of a segment, step by step.

``SegmentLog.steps`` is used by whatever seeks in that segment. For the time of one seek a trace replaces it by an heir
that takes the same steps and notes each (``traced_steps``).
"""

from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.offset_index import OffsetIndex, OffsetPosition
from seglog_broker.storage.segment.sparse_index import SparseIndex
from seglog_broker.storage.segment.time_index import TimeEntries, TimeIndex, TimestampOffset
from seglog_protocol.header_scan import LocatedBatch, ReadBytes

Behind = tuple[int, int]
"""The position and the offset behind a batch."""


class SeekSteps:
    """The steps, of which nothing is noted."""

    def read(self, handles: HandlePool, path: str, size: int, position: int, *, may_wait: bool) -> ReadBytes:
        """As ``HandlePool.read``, of a ``.log``."""
        return handles.read(path, size, position, may_wait=may_wait)

    def offset_floor(self, index: OffsetIndex, offset: int) -> OffsetPosition:
        """As ``OffsetIndex.lookup``."""
        return index.lookup(offset)

    def time_floor(self, index: TimeIndex, timestamp: int) -> TimeEntries | None:
        """As ``TimeIndex.below``."""
        return index.below(timestamp)

    def recall(self, verified: dict[TimestampOffset, Behind], entry: TimestampOffset) -> Behind | None:
        """What is remembered of an entry of the time index; None if nothing is."""
        return verified.get(entry)

    def begins_at(self, proof: LocatedBatch | None) -> LocatedBatch | None:
        """Where a scan begins that an entry of the time index leads to; None: where the offset index says."""
        return proof

    def begin_scan(self, position: int) -> None:
        """A walk over headers begins at ``position``."""

    def pass_batch(self, position: int) -> None:
        """The walk has met the header at ``position``."""

    def find(self, found: LocatedBatch) -> None:
        """This batch is what was looked for."""

    def look_at(self, index: SparseIndex) -> None:
        """Entries of an index are looked at, other than by a look-up."""

    def begin_proof(self) -> None:
        """Look-ups and walks verify an index entry now, until ``end_proof``."""

    def end_proof(self) -> None:
        """The entry is verified, or not."""

    def rebuild(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """Both indexes are rebuilt."""
