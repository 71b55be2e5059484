"""What is known before a partition is checked, and what the check decides to have repaired."""

from dataclasses import dataclass, field
from enum import Enum, auto

from seglog_broker.storage.partition_state import DamagedRange, PartitionState


class Gaps(Enum):
    """What offsets without a record mean in a partition, where compaction is not known to have been at work."""

    NEVER = auto()  # nothing removes single records from it: they are lost
    UNKNOWN = auto()  # Kafka wrote it, and whether it was compacted is not in the directory


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the log directory says of a partition. ``topic_id`` None: it does not say."""

    is_clean: bool = True  # the marker of a stop in order is there
    is_adopted: bool = False  # Kafka wrote it, or part of it
    gaps: Gaps = Gaps.NEVER
    compacted_before: int = 0  # by the cleaner's checkpoint; the partition's state may know more
    topic_id: str | None = None
    recovery_point: int = 0
    log_start: int = 0
    index_interval: int = 4096
    index_bytes_max: int = 10 * 1024 * 1024
    deep: bool = False  # open every batch and read its records


@dataclass(frozen=True, slots=True)
class Replacement:
    """A small file that is to have another content."""

    path: str
    content: bytes
    what: str  # the end of a sentence about it, for when it is done


@dataclass(slots=True)
class Plan:
    """What is to be done to one partition; nothing, as long as it is as it was made."""

    set_aside: list[DamagedRange] = field(default_factory=list)  # damage nobody knew of: its bytes are copied
    state: PartitionState | None = None  # what the state file should say, its read-only mark as it was
    saves_state: bool = False  # it says something else
    replace: list[Replacement] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)  # paths of files that are of no use
    cover: list[int] = field(default_factory=list)  # base offsets of sound segments without a checksum file
    lower_recovery_point: int | None = None  # to the log end there is
    write_anew: list[int] | None = None  # to lift a read-only mark: base offsets of segments to bring to the disk
