"""The input of a partition's check, and its output: counts, findings, and the plan of repairs."""

from dataclasses import dataclass, field

from seglog_broker.inspect.findings import Code, Finding, PartitionCounts, Severity
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.damage import DamagedRange


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """The facts about a partition from the rest of the log directory and the configuration; offsets count records.

    ``topic_id`` is None where no file has one.
    """

    is_clean: bool = True  # the marker of a clean stop exists
    is_own_stop: bool = False  # the marker is seglog's, so that seglog's own files describe the present state
    is_adopted: bool = False  # Kafka wrote the partition, or a part of it
    is_from_kafka: bool = False  # Kafka used the directory after seglog
    is_being_made: bool = False  # the broker crashed while it created the partition
    compacted_before: int = 0  # by the cleaner's checkpoint; the partition's state may have a higher offset
    topic_id: str | None = None
    recovery_point: int = 0
    high_watermark: int | None = None  # None: the checkpoint has none
    log_start: int = 0
    index_interval: int = 4096
    index_bytes_max: int = 10 * 1024 * 1024
    deep: bool = False  # open every batch and read its records


@dataclass(frozen=True, slots=True)
class Replacement:
    """A small file and its new content."""

    path: str
    content: bytes
    what: str  # reported once it is written, as the end of a sentence about the file


@dataclass(slots=True)
class RepairPlan:
    """The repairs that one partition needs; none by default."""

    set_aside: list[DamagedRange] = field(default_factory=list)  # new damage, whose bytes are to be copied
    state: PartitionState | None = None  # the correct content of the state file, its read-only mark unchanged
    saves_state: bool = False  # whether the state file is to be written
    replace: list[Replacement] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)  # paths of useless files
    cover: list[int] = field(default_factory=list)  # base offsets of sound segments without a checksum file
    lower_recovery_point: int | None = None  # to the present log end
    lower_log_start: int | None = None  # to the known log start
    rewrite: list[int] | None = None  # to lift a read-only mark: base offsets of segments to rewrite and flush


@dataclass(slots=True)
class CheckResult:
    """The result of checking one partition. The ``plan`` has the repairs for its findings; none is done yet."""

    counts: PartitionCounts
    findings: list[Finding] = field(default_factory=list)
    plan: RepairPlan = field(default_factory=RepairPlan)

    @property
    def faults(self) -> list[Finding]:
        """The findings that are more than notes."""
        return [finding for finding in self.findings if finding.severity != Severity.NOTE]

    @property
    def state(self) -> PartitionState:
        """The correct content of the state file, which is the first that a check reads."""
        assert self.plan.state is not None, "the state is read before"
        return self.plan.state

    def add(
        self,
        code: Code,
        path: str,
        what: str,
        positions: tuple[int, int] | None = None,
        offsets: tuple[int, int] | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Add a finding with its bytes and offsets, if it has any, the ends exclusive. See ``Finding``."""
        places = (*(positions or (None, None)), *(offsets or (None, None)))
        self.findings.append(Finding(severity or code.severity, code, path, what, *places))

    def replace(self, path: str, content: bytes, what: str) -> None:
        """Plan to replace a file, see ``Replacement``."""
        self.plan.replace.append(Replacement(path, content, what))
