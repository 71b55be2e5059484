"""The job and the result of the scrubber: for the loop, which does not load what a scrub needs, and for the worker.

Offsets count records, positions and sizes are bytes.
"""

from dataclasses import dataclass

from seglog_broker.storage.segment.checksum import SegmentChecksum
from seglog_broker.storage.segment.damage import DamagedRange


@dataclass(frozen=True, slots=True)
class ScrubJob:
    """Scrub one closed segment of the partition in ``directory``; ``next_base`` is the next segment's base offset.

    ``index_interval`` and ``index_bytes_max`` are from the topic's configuration. ``is_adopted``: Kafka may have
    written the segment.
    """

    directory: str
    base_offset: int
    next_base: int
    index_interval: int
    index_bytes_max: int
    is_adopted: bool
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """What the scrub of a segment found.

    ``measured`` is the checksum of all bytes; ``stored`` the one in the checksum file, None if it is missing or
    malformed. ``damaged``: bytes without a valid batch; ``missing``: offsets without a batch that no damage explains.
    ``index_problems`` are sentences about wrong indexes. ``rebuilt`` has the suffixes of the indexes for which a right
    one was written and synced, under the index's name with ``.tmp`` appended.
    """

    measured: SegmentChecksum
    stored: SegmentChecksum | None
    batches: int
    damaged: tuple[DamagedRange, ...]
    missing: tuple[DamagedRange, ...]
    index_problems: tuple[str, ...]
    rebuilt: tuple[str, ...]
