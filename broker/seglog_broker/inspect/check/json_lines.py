"""The reports of a check as JSON lines: one object each, ``kind`` first. Names of fields and codes are stable."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from seglog_broker.inspect.check.findings import Finding, PartitionCounts, Remaining, Repaired, Report, Totals


def json_lines(reports: Iterable[Report]) -> Iterator[str]:
    """One line for each report, without its newline."""
    for report in reports:
        yield json.dumps(_json_object(report), ensure_ascii=False)


def _json_object(report: Report) -> dict[str, Any]:
    if isinstance(report, Finding):
        return {"kind": "finding", **_finding(report)}
    if isinstance(report, Remaining):
        return {"kind": "left", **_finding(report.finding)}
    if isinstance(report, Repaired):
        return {"kind": "repaired", **asdict(report)}
    if isinstance(report, PartitionCounts):
        return {"kind": "partition", **asdict(report)}
    assert isinstance(report, Totals)
    return {"kind": "totals", "sound": report.is_sound, **asdict(report)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "remedy": finding.remedy}
