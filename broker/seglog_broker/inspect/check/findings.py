"""What a check can find: each kind has a name that stays, a sentence of advice, and a place.

Three severities. *Damage*: records are lost, unreadable, or no longer known to be what was written. *Derived*: a file
that can be made anew from the log is wrong. *Note*: what an operator should know, and nothing is wrong.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How bad it is; the first two make the exit code 1."""

    DAMAGE = "damage"
    DERIVED = "derived"
    NOTE = "note"


class Code(StrEnum):
    """What was found. The names are for programs and do not change."""

    # The log itself
    BATCH_DAMAGED = "batch-damaged"
    TAIL_DAMAGED = "tail-damaged"
    TORN_TAIL = "torn-tail"
    DAMAGE_KNOWN = "damage-known"
    OFFSETS_MISSING = "offsets-missing"
    FIRST_SEGMENT_GONE = "first-segment-gone"
    SEGMENTS_GONE = "segments-gone"
    LOG_TOO_SHORT = "log-too-short"
    CHECKSUM_MISMATCH = "checksum-mismatch"
    RECORDS_UNREADABLE = "records-unreadable"
    EPOCH_WRONG = "epoch-wrong"
    READ_ONLY = "read-only"
    UNREADABLE = "unreadable"
    # Files that follow from it
    INDEX_WRONG = "index-wrong"
    INDEX_MISSING = "index-missing"
    INDEX_SPACING = "index-spacing"
    INDEX_PADDING = "index-padding"
    CHECKSUM_FILE_WRONG = "checksum-file-wrong"
    CHECKSUM_OUTDATED = "checksum-outdated"
    SNAPSHOT_WRONG = "snapshot-wrong"
    TXN_INDEX_WRONG = "txn-index-wrong"
    EPOCHS_MALFORMED = "epochs-malformed"
    EPOCHS_WRONG = "epochs-wrong"
    EPOCHS_EMPTY = "epochs-empty"
    STATE_MALFORMED = "state-malformed"
    RANGE_UNTRUE = "range-untrue"
    CHECKPOINT_MALFORMED = "checkpoint-malformed"
    CHECKPOINT_WRONG = "checkpoint-wrong"
    CHECKPOINT_BEYOND_END = "checkpoint-beyond-end"
    LOG_START_WRONG = "log-start-wrong"
    LOG_START_BEYOND_END = "log-start-beyond-end"
    # What belongs together
    REGISTRY_MALFORMED = "registry-malformed"
    REGISTRY_MISSING = "registry-missing"
    IDENTITY_WRONG = "identity-wrong"
    IDENTITY_MISSING = "identity-missing"
    FORMAT_WRONG = "format-wrong"
    PRODUCER_IDS_MALFORMED = "producer-ids-malformed"
    TOPIC_ID_WRONG = "topic-id-wrong"
    TOPIC_ID_MISSING = "topic-id-missing"
    METADATA_WRONG = "metadata-wrong"
    KAFKA_WAS_HERE = "kafka-was-here"
    PARTITION_GONE = "partition-gone"
    PARTITION_NOT_MADE = "partition-not-made"
    PARTITION_UNKNOWN = "partition-unknown"
    PARTITION_ASIDE = "partition-aside"
    FOREIGN_DIRECTORY = "foreign-directory"
    LEFT_OVER = "left-over"
    SET_ASIDE = "set-aside"
    UNKNOWN_FILE = "unknown-file"


_RESTORE: Final = "restore the partition from a backup if you have one"
_REBUILT: Final = "--repair makes it anew from the log; a start or the first seek that needs it does, too"

REMEDIES: Final[dict[Code, str]] = {
    Code.BATCH_DAMAGED: f"{_RESTORE}; --repair sets the bytes aside and has the broker serve around them",
    Code.TAIL_DAMAGED: f"{_RESTORE}; --repair sets the bytes aside, a start keeps them and serves around them",
    Code.TORN_TAIL: "nothing: the broker was killed while it wrote, and the next start cuts these bytes off",
    Code.DAMAGE_KNOWN: "nothing: the broker serves around it and names the offsets to whoever reads there",
    Code.OFFSETS_MISSING: f"{_RESTORE}; --repair notes the offsets, so that readers are told",
    Code.FIRST_SEGMENT_GONE: f"{_RESTORE}; --repair takes the first segment there is as the beginning, as a start does",
    Code.SEGMENTS_GONE: f"{_RESTORE}; a start has the log go on without them, where it had come to as far as is known",
    Code.LOG_TOO_SHORT: f"{_RESTORE}; --repair makes the next start begin a new leader epoch at the end there is",
    Code.CHECKSUM_MISMATCH: f"{_RESTORE}; or delete the .checksum file to accept the log as it is",
    Code.RECORDS_UNREADABLE: "nothing can be done here: the producer sent them so; consumers skip them or stop",
    Code.EPOCH_WRONG: f"{_RESTORE}; the records are proven by their checksum, only their epoch is in doubt",
    Code.READ_ONLY: "look at the disk and its log; --repair lifts the mark once every batch has been proven",
    Code.UNREADABLE: "look at the disk, and at the permissions of the file",
    Code.INDEX_WRONG: _REBUILT,
    Code.INDEX_MISSING: _REBUILT,
    Code.INDEX_SPACING: "nothing: every entry leads where it should; seeks may read a little more",
    Code.INDEX_PADDING: "nothing: Kafka was killed before it trimmed it, and the next start makes it anew",
    Code.CHECKSUM_FILE_WRONG: "--repair writes it anew if every batch of its segment is proven",
    Code.CHECKSUM_OUTDATED: "nothing: a start removes it, the scrub or --repair writes it for the segment as it is",
    Code.SNAPSHOT_WRONG: "--repair removes it; what is known of producers is then read from the log",
    Code.TXN_INDEX_WRONG: "delete it; Kafka makes it anew with its segment, seglog does not read it",
    Code.EPOCHS_MALFORMED: "--repair writes it anew from the batches",
    Code.EPOCHS_WRONG: "--repair writes it as the last stop left it, as does a start unless it has a higher epoch",
    Code.EPOCHS_EMPTY: "nothing: it was emptied, or never filled; the next start goes on from the batches",
    Code.STATE_MALFORMED: "--repair writes it anew; whether the partition was read-only is not known any more",
    Code.RANGE_UNTRUE: "--repair drops the range, so that the records there can be read",
    Code.CHECKPOINT_MALFORMED: "--repair writes it with what can be read; a start takes a malformed one as empty",
    Code.CHECKPOINT_WRONG: "--repair writes what the last stop left in it",
    Code.CHECKPOINT_BEYOND_END: "nothing: a start does not go by it",
    Code.LOG_START_WRONG: "--repair writes what is known of it; a start does not go by it, and keeps the records",
    Code.LOG_START_BEYOND_END: "nothing: the next start has the log go on where it begins",
    Code.REGISTRY_MALFORMED: "restore it from a backup, or move it away to have the topics adopted without settings",
    Code.REGISTRY_MISSING: "a start makes it from the directories, and keeps every record; if seglog wrote it, restore "
    "it from a backup before: the topics' configuration is in no other file",
    Code.IDENTITY_WRONG: "restore it from a backup: no broker starts on it",
    Code.IDENTITY_MISSING: "restore it from a backup: a start makes up another cluster id, and says so",
    Code.FORMAT_WRONG: "--repair writes it; a start refuses only a higher number",
    Code.PRODUCER_IDS_MALFORMED: "restore it from a backup, or move it away to have ids begin above those in the logs",
    Code.TOPIC_ID_WRONG: "find out which topic the files belong to: the broker does not serve the partition",
    Code.TOPIC_ID_MISSING: "--repair writes it from the registry, as a start does",
    Code.METADATA_WRONG: "--repair writes it as Kafka does, with the same topic id",
    Code.KAFKA_WAS_HERE: "nothing: the next start takes over what Kafka changed, and says what that is",
    Code.PARTITION_GONE: f"{_RESTORE}, or find it in another directory; see seglog.missing.partitions",
    Code.PARTITION_NOT_MADE: "nothing: a start makes it",
    Code.PARTITION_UNKNOWN: "nothing, or move it away: a start takes it over if Kafka made it, else sets it aside",
    Code.PARTITION_ASIDE: "nothing: no broker serves it; look into it with seglogd dump",
    Code.FOREIGN_DIRECTORY: "move it away: neither seglog nor Kafka starts while it is there",
    Code.LEFT_OVER: "nothing: the next start removes it or puts it in place, as does --repair",
    Code.SET_ASIDE: "nothing: a copy of damaged bytes that --repair made; delete it when it is of no more use",
    Code.UNKNOWN_FILE: "nothing: seglog and Kafka leave it alone",
}
"""What to do now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found in ``path``: bytes [position, end_position), offsets [start_offset, end_offset), None if neither.

    ``what`` is the end of a sentence about the file.
    """

    severity: Severity
    code: Code
    path: str
    what: str
    position: int | None = None
    end_position: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None

    @property
    def remedy(self) -> str:
        """What to do now."""
        return REMEDIES[self.code]


@dataclass(frozen=True, slots=True)
class Repaired:
    """Something that was done: ``what`` is a sentence's end about ``path``."""

    path: str
    what: str


@dataclass(slots=True)
class PartitionCounts:
    """What was read of one partition; ``covered`` counts closed segments with a checksum file."""

    path: str
    segments: int = 0
    covered: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0


@dataclass(slots=True)
class Totals:
    """What a whole check comes to. After repairs ``findings`` are those that are left."""

    path: str
    partitions: int = 0
    segments: int = 0
    covered: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    repairs: int = 0
    findings: dict[Severity, int] = field(default_factory=lambda: dict.fromkeys(Severity, 0))

    def add(self, counts: PartitionCounts) -> None:
        """Count a partition in."""
        self.partitions += 1
        self.segments += counts.segments
        self.covered += counts.covered
        self.batches += counts.batches
        self.records += counts.records
        self.bytes += counts.bytes

    @property
    def is_sound(self) -> bool:
        """Whether nothing but notes was found."""
        return not (self.findings[Severity.DAMAGE] or self.findings[Severity.DERIVED])


@dataclass(frozen=True, slots=True)
class Left:
    """A finding, other than a note, that is still true after the repairs."""

    finding: Finding


Told = Finding | Repaired | Left | PartitionCounts | Totals
"""What a check yields, in this order for each partition: findings, repairs, what is left, counts; the totals last."""
