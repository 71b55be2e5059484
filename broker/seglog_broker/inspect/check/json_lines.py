"""The reports of a check as JSON lines: one object each, ``kind`` first. Names of fields and codes are stable."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from seglog_broker.inspect.check.findings import Finding, PartitionCounts, Remaining, Repaired, Report, Totals


def json_lines(reports: Iterable[Report]) -> Iterator[str]:
    """A line for each, without its newline."""
    for one in reports:
        yield json.dumps(_shown(one), ensure_ascii=False)


def _shown(one: Report) -> dict[str, Any]:
    if isinstance(one, Finding):
        return {"kind": "finding", **_finding(one)}
    if isinstance(one, Remaining):
        return {"kind": "left", **_finding(one.finding)}
    if isinstance(one, Repaired):
        return {"kind": "repaired", **asdict(one)}
    if isinstance(one, PartitionCounts):
        return {"kind": "partition", **asdict(one)}
    assert isinstance(one, Totals)
    return {"kind": "totals", "sound": one.is_sound, **asdict(one)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "remedy": finding.remedy}
