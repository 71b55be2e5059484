"""What the loop asks of the scrubber, and what the scrubber answers: values that go between processes as JSON.

Offsets count records, positions and sizes are bytes.
"""

from dataclasses import dataclass

from seglog_broker.storage.segment.checksum import SegmentChecksum
from seglog_broker.storage.segment.damaged_range import DamagedRange


@dataclass(frozen=True, slots=True)
class ScrubJob:
    """One closed segment of the partition ``directory``; ``next_base`` is where the segment behind it begins.

    ``index_interval`` and ``index_bytes_max`` are how the topic is configured; ``is_adopted``: by Kafka, perhaps.
    """

    directory: str
    base_offset: int
    next_base: int
    index_interval: int
    index_bytes_max: int
    is_adopted: bool
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class ScrubVerdict:
    """What a segment's bytes come to.

    ``measured`` is the checksum of all of them, ``said`` what the checksum file says, None where there is none that can
    be understood. ``damaged``: bytes that are no batches; ``missing``: offsets that nothing accounts for.
    ``index_problems`` say what is wrong with an index; for the files with the suffixes ``remade`` a right one lies
    beside it, synced, with ``.tmp`` behind its name.
    """

    measured: SegmentChecksum
    said: SegmentChecksum | None
    batches: int
    damaged: tuple[DamagedRange, ...]
    missing: tuple[DamagedRange, ...]
    index_problems: tuple[str, ...]
    remade: tuple[str, ...]
