"""The findings of a check. Each kind has a stable name and advice for the operator; each finding has a severity.

*Damage*: records are lost, unreadable, or may differ from what was written. *Derived*: a file that can be rebuilt from
the log is wrong. *Note*: information; nothing is wrong.
"""

from collections.abc import Iterator
from enum import Enum, StrEnum
from typing import Any, Final, Self

from msgspec import field

from seglog_broker.inspect.facts import Fact
from seglog_broker.texts import counted, range_text, size_text
from seglog_protocol.texts import printable


class Severity(StrEnum):
    """The severity of a finding; the first two make the exit code 1."""

    DAMAGE = "damage"
    DERIVED = "derived"
    NOTE = "note"

    @property
    def heading(self) -> str:
        """The word before a finding."""
        return {"damage": "DAMAGED", "derived": "WRONG"}.get(self, "note")


DAMAGE, DERIVED, NOTE = Severity
_RESTORE: Final = "restore the partition from a backup if you have one"
_MOVE_AWAY: Final = "restore it from a backup, or move it away"
_REBUILT: Final = "--repair rebuilds it from the log; so does a start, or the first seek that needs it"
_NONE: Final = "no action needed"


class Code(Enum):
    """The kind of a finding: its usual severity, and advice for the operator. Its text does not change."""

    def __new__(cls, *_: object) -> Self:
        """A code of its own, even where another one has the same advice."""
        code = object.__new__(cls)
        code._value_ = len(cls.__members__)
        return code

    def __init__(self, severity: Severity, remedy: str) -> None:
        self.severity = severity
        """Findings have another one only where it is given."""
        self.remedy = remedy

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")

    # The log itself
    BATCH_DAMAGED = DAMAGE, f"{_RESTORE}; --repair copies the bytes aside, and the broker then skips them"
    TAIL_DAMAGED = DAMAGE, f"{_RESTORE}; --repair copies the bytes aside; a start keeps and skips them"
    TORN_TAIL = NOTE, f"{_NONE}: the broker was killed while it wrote, and the next start cuts these bytes off"
    DAMAGE_KNOWN = NOTE, f"{_NONE}: the broker skips it and reports the offsets to readers"
    OFFSETS_MISSING = DAMAGE, f"{_RESTORE}; --repair records the offsets, so that the broker reports them to readers"
    FIRST_SEGMENT_GONE = DAMAGE, f"{_RESTORE}; --repair accepts the loss: the log begins at its first existing segment"
    SEGMENTS_GONE = DAMAGE, f"{_RESTORE}; a start continues the log without them, at its last known end"
    LOG_TOO_SHORT = DAMAGE, f"{_RESTORE}; --repair makes the next start begin a new leader epoch at the present end"
    CHECKSUM_MISMATCH = DAMAGE, f"{_RESTORE}; or delete the .checksum file to accept the log as it is"
    RECORDS_UNREADABLE = DAMAGE, "cannot be repaired: the producer sent them so; consumers skip them or stop"
    EPOCH_WRONG = DAMAGE, f"{_RESTORE}; the records match their checksum, only their epoch is in doubt"
    READ_ONLY = DAMAGE, "check the disk and its log; --repair lifts the mark if every batch is valid"
    UNREADABLE = DAMAGE, "check the disk, and the permissions of the file"
    # Files derived from the log
    INDEX_WRONG = DERIVED, _REBUILT
    INDEX_MISSING = DERIVED, _REBUILT  # noqa: PIE796 - no alias
    INDEX_SPACING = NOTE, f"{_NONE}: every entry is right; seeks may read a little more"
    INDEX_PADDING = NOTE, f"{_NONE}: Kafka was killed before it trimmed the file, and the next start rebuilds it"
    CHECKSUM_FILE_WRONG = DERIVED, "--repair rewrites it if every batch of its segment is valid"
    CHECKSUM_OUTDATED = NOTE, f"{_NONE}: a start removes it, the scrub or --repair writes a new one"
    SEGMENT_AWAITED = DAMAGE, "run seglogd on the directory, which fetches it; keep the backup until then"
    SNAPSHOT_WRONG = DERIVED, "--repair removes it; the state of the producers is then read from the log"
    TXN_INDEX_WRONG = DERIVED, "--repair rebuilds it from the log"
    EPOCHS_MALFORMED = DERIVED, "--repair rewrites it from the batches"
    EPOCHS_WRONG = DERIVED, "--repair writes it as the last stop left it, as does a start unless it has a higher epoch"
    EPOCHS_EMPTY = NOTE, f"{_NONE}: it was emptied, or never filled; the next start continues from the batches"
    STATE_MALFORMED = DERIVED, "--repair rewrites it; whether the partition was read-only is lost"
    RANGE_UNTRUE = DERIVED, "--repair drops the range, so that the records there can be read"
    CHECKPOINT_MALFORMED = DERIVED, "--repair writes it with what can be read; a start takes a malformed one as empty"
    CHECKPOINT_WRONG = DERIVED, "--repair writes the offset of the last stop"
    CHECKPOINT_BEYOND_END = NOTE, f"{_NONE}: a start does not rely on it"
    LOG_START_WRONG = DERIVED, "--repair writes the known log start; a start ignores this one, and keeps the records"
    LOG_START_BEYOND_END = NOTE, f"{_NONE}: the next start continues the log at its log start offset"
    # Files of the log directory, and which files belong together
    REGISTRY_MALFORMED = DAMAGE, f"{_MOVE_AWAY}: a start then adopts the topics without their settings"
    REGISTRY_MISSING = DAMAGE, "a start rebuilds it from the directories, and keeps every record; if seglog wrote it, "
    "restore it from a backup before: the topics' configuration is in no other file"
    IDENTITY_WRONG = DAMAGE, "restore it from a backup: no broker starts on it"
    IDENTITY_MISSING = DAMAGE, "restore it from a backup: otherwise a start generates another cluster id, and logs it"
    FORMAT_WRONG = DERIVED, "--repair writes it; a start refuses only a higher number"
    PRODUCER_IDS_MALFORMED = DAMAGE, f"{_MOVE_AWAY}: ids then begin above those in the logs"
    CONFIGS_MALFORMED = DAMAGE, f"{_MOVE_AWAY}: a start is then without the settings that were made at run time"
    ACLS_MALFORMED = DAMAGE, f"{_MOVE_AWAY} and make the ACLs anew: no broker starts on it"
    ACCOUNTS_MALFORMED = DAMAGE, f"{_MOVE_AWAY} and make the accounts anew: no broker starts on it"
    CLOCK_MALFORMED = (
        DERIVED,
        "--repair removes it and keeps a copy; a start keeps a copy and trusts the clock as it is",
    )
    TOPIC_ID_WRONG = DAMAGE, "find out which topic the files belong to: the broker does not serve the partition"
    TOPIC_ID_MISSING = DERIVED, "--repair writes it from the registry, as a start does"
    METADATA_WRONG = DERIVED, "--repair writes it as Kafka does, with the same topic id"
    KAFKA_WAS_HERE = NOTE, f"{_NONE}: the next start adopts what Kafka changed, and logs it"
    PARTITION_GONE = DAMAGE, f"{_RESTORE}, or find it in another directory; see seglog.missing.partitions"
    PARTITION_NOT_MADE = NOTE, f"{_NONE}: a start creates it"
    PARTITION_UNKNOWN = NOTE, f"{_NONE}: a start adopts it if Kafka created it, else sets it aside"
    PARTITION_ASIDE = NOTE, f"{_NONE}: no broker serves it; seglogd dump shows its contents"
    FOREIGN_DIRECTORY = DAMAGE, "move it away: neither seglog nor Kafka starts while it is there"
    LEFT_OVER = NOTE, f"{_NONE}: the next start removes it or puts it in place, as does --repair"
    SET_ASIDE = NOTE, f"{_NONE}: a copy of damaged bytes, by --repair or a start; delete it when you do not need it"
    UNKNOWN_FILE = NOTE, f"{_NONE}: seglog and Kafka ignore it"


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

    def as_json(self) -> dict[str, Any]:
        """The fields, and the advice."""
        return {**Fact.as_json(self), "code": str(self.code), "remedy": self.code.remedy}

    def sentence(self) -> str:
        """The severity, the place, and what was found."""
        place = printable(self.path)
        if self.position is not None and self.end_position is not None:
            place += f", {range_text(self.position, self.end_position)}"
        if self.start_offset is not None and self.end_offset is not None:
            last = self.end_offset - 1
            place += f", offset {last}" if last == self.start_offset else f", offsets {self.start_offset} to {last}"
        return f"{self.severity.heading}: {place}: {printable(self.what)}"

    def _lines(self) -> Iterator[str]:
        yield f"{self.sentence()} [{self.code}]"
        yield f"  {self.code.remedy}"


class Repaired(Fact, tag="repaired"):
    """A repair that was done: ``what`` is the end of a sentence about ``path``."""

    path: str
    what: str

    def _lines(self) -> Iterator[str]:
        yield f"repaired: {printable(self.path)}: {printable(self.what)}"


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

    def _lines(self) -> Iterator[str]:
        is_empty = self.start_offset >= self.end_offset
        offsets = "no records" if is_empty else f"offsets {self.start_offset} to {self.end_offset - 1}"
        closed = max(0, self.segments - 1)
        covered = f", checksums for {self.covered} of {closed} closed" if closed else ""
        yield (
            f"{printable(self.path)}: {offsets}, {counted(self.batches, 'batch', 'batches')} in "
            f"{counted(self.segments, 'segment')}, {size_text(self.bytes)}{covered}"
        )


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

    def _lines(self) -> Iterator[str]:
        yield ""
        yield (
            f"{counted(self.partitions, 'partition')}, {counted(self.segments, 'segment')}, "
            f"{counted(self.batches, 'batch', 'batches')}, {counted(self.records, 'record')}, "
            f"{size_text(self.bytes)} read" + (f", {counted(self.repairs, 'repair')}" if self.repairs else "")
        )
        damage, derived, notes = (self.findings[severity] for severity in Severity)
        verdict = "is sound" if self.is_sound else "is not sound: "
        if damage:
            verdict += f"damaged in {counted(damage, 'place')}" + (", " if derived else "")
        if derived:
            verdict += f"{'' if damage else 'has '}{counted(derived, 'file')} to rebuild"
        beside = f" ({counted(notes, 'note')})" if notes else ""
        yield f"{printable(self.path)} {verdict}{beside}."


class Remaining(Fact, tag="left"):
    """A finding, other than a note, that is still true after the repairs."""

    finding: Finding

    def as_json(self) -> dict[str, Any]:
        """Those of the finding."""
        return self.finding.as_json()

    def _lines(self) -> Iterator[str]:
        yield f"STILL {self.finding.sentence()}"


Report = Finding | Repaired | Remaining | PartitionCounts | Totals
"""One report of a check. Each partition has findings, repairs, remaining findings and counts; the totals come last."""
