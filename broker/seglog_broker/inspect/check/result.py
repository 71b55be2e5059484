"""The result of checking one partition."""

from dataclasses import dataclass, field

from seglog_broker.inspect.check.findings import Finding, PartitionCounts, Severity
from seglog_broker.inspect.check.plan import RepairPlan


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
