"""The findings of a check. Each kind has a stable name and advice for the operator; each finding has a severity.

*Damage*: records are lost, unreadable, or may differ from what was written. *Derived*: a file that can be rebuilt from
the log is wrong. *Note*: information; nothing is wrong.
"""

from enum import StrEnum
from typing import Any, Final, Self

from msgspec import field

from seglog_broker.inspect.facts import Fact


class Severity(StrEnum):
    """The severity of a finding; the first two make the exit code 1."""

    DAMAGE = "damage"
    DERIVED = "derived"
    NOTE = "note"


class Code(StrEnum):
    """The kind of a finding, with its usual severity. The names are for programs and do not change."""

    severity: Severity

    def __new__(cls, name: str, severity: Severity) -> Self:
        """A code of this name; findings have another severity only where one is given."""
        code = str.__new__(cls, name)
        code._value_, code.severity = name, severity
        return code

    # The log itself
    BATCH_DAMAGED = "batch-damaged", Severity.DAMAGE
    TAIL_DAMAGED = "tail-damaged", Severity.DAMAGE
    TORN_TAIL = "torn-tail", Severity.NOTE
    DAMAGE_KNOWN = "damage-known", Severity.NOTE
    OFFSETS_MISSING = "offsets-missing", Severity.DAMAGE
    FIRST_SEGMENT_GONE = "first-segment-gone", Severity.DAMAGE
    SEGMENTS_GONE = "segments-gone", Severity.DAMAGE
    LOG_TOO_SHORT = "log-too-short", Severity.DAMAGE
    CHECKSUM_MISMATCH = "checksum-mismatch", Severity.DAMAGE
    RECORDS_UNREADABLE = "records-unreadable", Severity.DAMAGE
    EPOCH_WRONG = "epoch-wrong", Severity.DAMAGE
    READ_ONLY = "read-only", Severity.DAMAGE
    UNREADABLE = "unreadable", Severity.DAMAGE
    # Files derived from the log
    INDEX_WRONG = "index-wrong", Severity.DERIVED
    INDEX_MISSING = "index-missing", Severity.DERIVED
    INDEX_SPACING = "index-spacing", Severity.NOTE
    INDEX_PADDING = "index-padding", Severity.NOTE
    CHECKSUM_FILE_WRONG = "checksum-file-wrong", Severity.DERIVED
    CHECKSUM_OUTDATED = "checksum-outdated", Severity.NOTE
    SNAPSHOT_WRONG = "snapshot-wrong", Severity.DERIVED
    TXN_INDEX_WRONG = "txn-index-wrong", Severity.DERIVED
    EPOCHS_MALFORMED = "epochs-malformed", Severity.DERIVED
    EPOCHS_WRONG = "epochs-wrong", Severity.DERIVED
    EPOCHS_EMPTY = "epochs-empty", Severity.NOTE
    STATE_MALFORMED = "state-malformed", Severity.DERIVED
    RANGE_UNTRUE = "range-untrue", Severity.DERIVED
    CHECKPOINT_MALFORMED = "checkpoint-malformed", Severity.DERIVED
    CHECKPOINT_WRONG = "checkpoint-wrong", Severity.DERIVED
    CHECKPOINT_BEYOND_END = "checkpoint-beyond-end", Severity.NOTE
    LOG_START_WRONG = "log-start-wrong", Severity.DERIVED
    LOG_START_BEYOND_END = "log-start-beyond-end", Severity.NOTE
    # Files of the log directory, and which files belong together
    REGISTRY_MALFORMED = "registry-malformed", Severity.DAMAGE
    REGISTRY_MISSING = "registry-missing", Severity.DAMAGE
    IDENTITY_WRONG = "identity-wrong", Severity.DAMAGE
    IDENTITY_MISSING = "identity-missing", Severity.DAMAGE
    FORMAT_WRONG = "format-wrong", Severity.DERIVED
    PRODUCER_IDS_MALFORMED = "producer-ids-malformed", Severity.DAMAGE
    DYNAMIC_CONFIGS_MALFORMED = "configs-malformed", Severity.DAMAGE
    ACCOUNTS_MALFORMED = "accounts-malformed", Severity.DAMAGE
    CLOCK_MALFORMED = "clock-malformed", Severity.DERIVED
    TOPIC_ID_WRONG = "topic-id-wrong", Severity.DAMAGE
    TOPIC_ID_MISSING = "topic-id-missing", Severity.DERIVED
    METADATA_WRONG = "metadata-wrong", Severity.DERIVED
    KAFKA_WAS_HERE = "kafka-was-here", Severity.NOTE
    PARTITION_GONE = "partition-gone", Severity.DAMAGE
    PARTITION_NOT_MADE = "partition-not-made", Severity.NOTE
    PARTITION_UNKNOWN = "partition-unknown", Severity.NOTE
    PARTITION_ASIDE = "partition-aside", Severity.NOTE
    FOREIGN_DIRECTORY = "foreign-directory", Severity.DAMAGE
    LEFT_OVER = "left-over", Severity.NOTE
    SET_ASIDE = "set-aside", Severity.NOTE
    UNKNOWN_FILE = "unknown-file", Severity.NOTE


_RESTORE: Final = "restore the partition from a backup if you have one"
_REBUILT: Final = "--repair rebuilds it from the log; so does a start, or the first seek that needs it"
_NO_ACTION: Final = "no action needed"

REMEDIES: Final[dict[Code, str]] = {
    Code.BATCH_DAMAGED: f"{_RESTORE}; --repair copies the bytes aside, and the broker then skips them",
    Code.TAIL_DAMAGED: f"{_RESTORE}; --repair copies the bytes aside; a start keeps and skips them",
    Code.TORN_TAIL: f"{_NO_ACTION}: the broker was killed while it wrote, and the next start cuts these bytes off",
    Code.DAMAGE_KNOWN: f"{_NO_ACTION}: the broker skips it and reports the offsets to readers",
    Code.OFFSETS_MISSING: f"{_RESTORE}; --repair records the offsets, so that the broker reports them to readers",
    Code.FIRST_SEGMENT_GONE: f"{_RESTORE}; --repair accepts the loss: the log begins at its first existing segment",
    Code.SEGMENTS_GONE: f"{_RESTORE}; a start continues the log without them, at its last known end",
    Code.LOG_TOO_SHORT: f"{_RESTORE}; --repair makes the next start begin a new leader epoch at the present end",
    Code.CHECKSUM_MISMATCH: f"{_RESTORE}; or delete the .checksum file to accept the log as it is",
    Code.RECORDS_UNREADABLE: "cannot be repaired: the producer sent them so; consumers skip them or stop",
    Code.EPOCH_WRONG: f"{_RESTORE}; the records match their checksum, only their epoch is in doubt",
    Code.READ_ONLY: "check the disk and its log; --repair lifts the mark if every batch is valid",
    Code.UNREADABLE: "check the disk, and the permissions of the file",
    Code.INDEX_WRONG: _REBUILT,
    Code.INDEX_MISSING: _REBUILT,
    Code.INDEX_SPACING: f"{_NO_ACTION}: every entry is right; seeks may read a little more",
    Code.INDEX_PADDING: f"{_NO_ACTION}: Kafka was killed before it trimmed the file, and the next start rebuilds it",
    Code.CHECKSUM_FILE_WRONG: "--repair rewrites it if every batch of its segment is valid",
    Code.CHECKSUM_OUTDATED: f"{_NO_ACTION}: a start removes it, the scrub or --repair writes a new one",
    Code.SNAPSHOT_WRONG: "--repair removes it; the state of the producers is then read from the log",
    Code.TXN_INDEX_WRONG: "--repair rebuilds it from the log",
    Code.EPOCHS_MALFORMED: "--repair rewrites it from the batches",
    Code.EPOCHS_WRONG: "--repair writes it as the last stop left it, as does a start unless it has a higher epoch",
    Code.EPOCHS_EMPTY: f"{_NO_ACTION}: it was emptied, or never filled; the next start continues from the batches",
    Code.STATE_MALFORMED: "--repair rewrites it; whether the partition was read-only is lost",
    Code.RANGE_UNTRUE: "--repair drops the range, so that the records there can be read",
    Code.CHECKPOINT_MALFORMED: "--repair writes it with what can be read; a start takes a malformed one as empty",
    Code.CHECKPOINT_WRONG: "--repair writes the offset of the last stop",
    Code.CHECKPOINT_BEYOND_END: f"{_NO_ACTION}: a start does not rely on it",
    Code.LOG_START_WRONG: "--repair writes the known log start; a start ignores this one, and keeps the records",
    Code.LOG_START_BEYOND_END: f"{_NO_ACTION}: the next start continues the log at its log start offset",
    Code.REGISTRY_MALFORMED: "restore it from a backup, or move it away: a start then adopts the topics without "
    "their settings",
    Code.REGISTRY_MISSING: "a start rebuilds it from the directories, and keeps every record; if seglog wrote it, "
    "restore it from a backup before: the topics' configuration is in no other file",
    Code.IDENTITY_WRONG: "restore it from a backup: no broker starts on it",
    Code.IDENTITY_MISSING: "restore it from a backup: otherwise a start generates another cluster id, and logs it",
    Code.FORMAT_WRONG: "--repair writes it; a start refuses only a higher number",
    Code.PRODUCER_IDS_MALFORMED: "restore it from a backup, or move it away: ids then begin above those in the logs",
    Code.DYNAMIC_CONFIGS_MALFORMED: "restore it from a backup, or move it away: a start is then without the settings "
    "that were made at run time",
    Code.ACCOUNTS_MALFORMED: "restore it from a backup, or move it away and make the accounts anew: no broker starts "
    "on it",
    Code.CLOCK_MALFORMED: "--repair removes it and keeps a copy; a start keeps a copy and trusts the clock as it is",
    Code.TOPIC_ID_WRONG: "find out which topic the files belong to: the broker does not serve the partition",
    Code.TOPIC_ID_MISSING: "--repair writes it from the registry, as a start does",
    Code.METADATA_WRONG: "--repair writes it as Kafka does, with the same topic id",
    Code.KAFKA_WAS_HERE: f"{_NO_ACTION}: the next start adopts what Kafka changed, and logs it",
    Code.PARTITION_GONE: f"{_RESTORE}, or find it in another directory; see seglog.missing.partitions",
    Code.PARTITION_NOT_MADE: f"{_NO_ACTION}: a start creates it",
    Code.PARTITION_UNKNOWN: f"{_NO_ACTION}: a start adopts it if Kafka created it, else sets it aside",
    Code.PARTITION_ASIDE: f"{_NO_ACTION}: no broker serves it; seglogd dump shows its contents",
    Code.FOREIGN_DIRECTORY: "move it away: neither seglog nor Kafka starts while it is there",
    Code.LEFT_OVER: f"{_NO_ACTION}: the next start removes it or puts it in place, as does --repair",
    Code.SET_ASIDE: f"{_NO_ACTION}: a copy of damaged bytes, by --repair or a start; delete it when you do not need it",
    Code.UNKNOWN_FILE: f"{_NO_ACTION}: seglog and Kafka ignore it",
}
"""Advice for the operator, by kind of finding."""


class Finding(Fact, tag="finding"):
    """One finding in ``path``, with its bytes [position, end_position) and offsets [start_offset, end_offset), if any.

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
        """Advice for the operator."""
        return REMEDIES[self.code]

    def as_json(self) -> dict[str, Any]:
        """The fields, and the advice."""
        return {**Fact.as_json(self), "remedy": self.remedy}


class Repaired(Fact, tag="repaired"):
    """A repair that was done: ``what`` is the end of a sentence about ``path``."""

    path: str
    what: str


class PartitionCounts(Fact, frozen=False, tag="partition"):  # type: ignore[misc]  # it counts
    """Totals of one partition; ``covered`` counts closed segments with a checksum file."""

    path: str
    segments: int = 0
    covered: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    start_offset: int = 0
    end_offset: int = 0


class Totals(Fact, frozen=False, tag="totals"):  # type: ignore[misc]  # it counts
    """Totals of a check. After repairs ``findings`` counts those that remain."""

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
        """Add the counts of a partition."""
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

    def as_json(self) -> dict[str, Any]:
        """The verdict, and the fields."""
        return {"sound": self.is_sound, **Fact.as_json(self)}


class Remaining(Fact, tag="left"):
    """A finding, other than a note, that is still true after the repairs."""

    finding: Finding

    def as_json(self) -> dict[str, Any]:
        """Those of the finding."""
        return self.finding.as_json()


Report = Finding | Repaired | Remaining | PartitionCounts | Totals
"""One report of a check. Each partition has findings, repairs, remaining findings and counts; the totals come last."""
