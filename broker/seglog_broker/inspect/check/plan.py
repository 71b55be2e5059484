"""What is known before a partition is checked, and what the check decides to have repaired."""

from dataclasses import dataclass, field

from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.damaged_range import DamagedRange


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the log directory says of a partition. ``topic_id`` None: it does not say."""

    is_clean: bool = True  # the marker of a stop in order is there
    is_own_stop: bool = False  # and it is seglog's: what that stop remembers beside Kafka's files is true of them
    is_adopted: bool = False  # Kafka wrote it, or part of it
    is_from_kafka: bool = False  # Kafka had the directory since seglog did
    is_being_made: bool = False  # or was, when a crash came
    compacted_before: int = 0  # by the cleaner's checkpoint; the partition's state may know more
    topic_id: str | None = None
    recovery_point: int = 0
    high_watermark: int | None = None  # None: the checkpoint has none
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
    lower_log_start: int | None = None  # to what is known of it
    write_anew: list[int] | None = None  # to lift a read-only mark: base offsets of segments to bring to the disk
