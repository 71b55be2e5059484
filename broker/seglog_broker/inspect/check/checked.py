"""The result of checking a partition: counts, findings, and the plan of repairs."""

from dataclasses import dataclass, field

from seglog_broker.inspect.check.findings import Finding, PartitionCounts, Severity
from seglog_broker.inspect.check.plan import RepairPlan


@dataclass(slots=True)
class Checked:
    """The result of a partition's check."""

    counts: PartitionCounts
    findings: list[Finding] = field(default_factory=list)
    plan: RepairPlan = field(default_factory=RepairPlan)

    @property
    def faults(self) -> list[Finding]:
        """The findings that are more than notes."""
        return [finding for finding in self.findings if finding.severity != Severity.NOTE]
