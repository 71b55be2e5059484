"""The reports of a check as text: each finding with its place and advice, then counts, and whether all is sound."""

from collections.abc import Iterable, Iterator
from typing import Final

from seglog_broker.inspect.check.findings import Finding, PartitionCounts, Remaining, Repaired, Report, Severity, Totals
from seglog_broker.texts import counted, range_text, size_text
from seglog_protocol.texts import printable

_HEADINGS: Final = {Severity.DAMAGE: "DAMAGED", Severity.DERIVED: "WRONG", Severity.NOTE: "note"}


def readable(reports: Iterable[Report]) -> Iterator[str]:
    """Lines, without their newlines."""
    for report in reports:
        if isinstance(report, Finding):
            yield f"{_HEADINGS[report.severity]}: {_place(report)}: {printable(report.what)} [{report.code}]"
            yield f"  {report.remedy}"
        elif isinstance(report, Remaining):
            finding = report.finding
            yield f"STILL {_HEADINGS[finding.severity]}: {_place(finding)}: {printable(finding.what)}"
        elif isinstance(report, Repaired):
            yield f"repaired: {printable(report.path)}: {printable(report.what)}"
        elif isinstance(report, PartitionCounts):
            yield _partition(report)
        else:
            yield ""
            yield _counts(report)
            yield _verdict(report)


def _place(finding: Finding) -> str:
    place = printable(finding.path)
    if finding.position is not None and finding.end_position is not None:
        place += f", {range_text(finding.position, finding.end_position)}"
    if finding.start_offset is not None and finding.end_offset is not None:
        last = finding.end_offset - 1
        span = f"offset {last}" if last == finding.start_offset else f"offsets {finding.start_offset} to {last}"
        place += f", {span}"
    return place


def _partition(counts: PartitionCounts) -> str:
    offsets = (
        f"offsets {counts.start_offset} to {counts.end_offset - 1}"
        if counts.start_offset < counts.end_offset
        else "no records"
    )
    closed = max(0, counts.segments - 1)
    covered = f", checksums for {counts.covered} of {closed} closed" if closed else ""
    return (
        f"{printable(counts.path)}: {offsets}, {counted(counts.batches, 'batch', 'batches')} in "
        f"{counted(counts.segments, 'segment')}, {size_text(counts.bytes)}{covered}"
    )


def _counts(totals: Totals) -> str:
    return (
        f"{counted(totals.partitions, 'partition')}, {counted(totals.segments, 'segment')}, "
        f"{counted(totals.batches, 'batch', 'batches')}, {counted(totals.records, 'record')}, "
        f"{size_text(totals.bytes)} read" + (f", {counted(totals.repairs, 'repair')}" if totals.repairs else "")
    )


def _verdict(totals: Totals) -> str:
    damage, derived, notes = (totals.findings[severity] for severity in Severity)
    beside = f" ({counted(notes, 'note')})" if notes else ""
    if totals.is_sound:
        return f"{printable(totals.path)} is sound{beside}."
    parts = []
    if damage:
        parts.append(f"damaged in {counted(damage, 'place')}")
    if derived:
        parts.append(
            f"has {counted(derived, 'file')} to rebuild" if not damage else f"{counted(derived, 'file')} to rebuild"
        )
    return f"{printable(totals.path)} is not sound: " + ", ".join(parts) + beside + "."
