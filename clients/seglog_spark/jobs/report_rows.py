"""The rows of a report, one for each partition and period, as JSON, a table and Parquet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import tzinfo
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from seglog.core.moments import format_time
from seglog_spark.jobs.manifest import whole_file

_SHOWN: Final = {"hour": 13, "day": 10, "month": 7, "year": 4}
"""Characters of a time that are shown for each period."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Records of one partition (None: of all) in the period that begins at ``period`` (epoch ms; None: at any time).

    ``bytes`` are those of keys and values; ``null_keys`` and ``tombstones`` are records without a key, or a value. In a
    report by period, None is where records without a timestamp are.
    """

    partition: int | None
    period: int | None
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    min_timestamp: int | None
    max_timestamp: int | None
    null_keys: int
    tombstones: int

    @property
    def null_key_share(self) -> float:
        """The share of records without a key, from 0 to 1."""
        return round(self.null_keys / self.records, 4) if self.records else 0.0

    def to_json(self, by: Sequence[str]) -> dict[str, Any]:
        """The fields of a report by ``by``; those of other groupings are left out."""
        known = asdict(self) | {"null_key_share": self.null_key_share}
        left_out = {"partition"} if "partition" not in by else set()
        left_out |= {"period"} if period_of(by) is None else set()
        left_out |= {"first_offset", "last_offset"} if "partition" not in by else set()
        return {name: value for name, value in known.items() if name not in left_out}


def period_of(by: Sequence[str]) -> str | None:
    """hour, day, month or year; None when there is none of them."""
    return next((word for word in by if word != "partition"), None)


def merged(rows: Iterable[ReportRow]) -> ReportRow:
    """One row or more summed up in one; its partition is theirs if they have the same."""
    kept = list(rows)
    partitions = {row.partition for row in kept}
    times = [time for row in kept for time in (row.min_timestamp, row.max_timestamp) if time is not None]
    return ReportRow(
        partition=partitions.pop() if len(partitions) == 1 else None,
        period=None,
        records=sum(row.records for row in kept),
        bytes=sum(row.bytes for row in kept),
        first_offset=min(row.first_offset for row in kept),
        last_offset=max(row.last_offset for row in kept),
        min_timestamp=min(times, default=None),
        max_timestamp=max(times, default=None),
        null_keys=sum(row.null_keys for row in kept),
        tombstones=sum(row.tombstones for row in kept),
    )


def by_partition(rows: Iterable[ReportRow]) -> dict[int, ReportRow]:
    """One row for each partition with records; empty for a report that is not by partition."""
    found: dict[int, list[ReportRow]] = {}
    for row in rows:
        if row.partition is not None:
            found.setdefault(row.partition, []).append(row)
    return {partition: merged(found[partition]) for partition in sorted(found)}


def table(
    rows: Iterable[ReportRow], by: Sequence[str], zone: tzinfo | None
) -> tuple[list[str], Iterator[Sequence[Any]]]:
    """Column titles and lines of the table, times in ``zone``."""
    period = period_of(by)
    titles = [word.upper() for word in by]
    titles += ["RECORDS", "BYTES", "FIRST OFFSET", "LAST OFFSET"] if "partition" in by else ["RECORDS", "BYTES"]
    titles += ["FROM", "TO", "NULL KEYS", "TOMBSTONES"]

    def line(row: ReportRow) -> list[Any]:
        cells: list[Any] = [row.partition if word == "partition" else _period(row.period, period, zone) for word in by]
        cells += [row.records, row.bytes]
        cells += [row.first_offset, row.last_offset] if "partition" in by else []
        cells += [_time(row.min_timestamp, zone), _time(row.max_timestamp, zone)]
        return [*cells, f"{row.null_key_share:.1%}", row.tombstones]

    return titles, map(line, rows)


def _time(time_ms: int | None, zone: tzinfo | None) -> str:
    return format_time(-1 if time_ms is None else time_ms, zone)


def _period(time_ms: int | None, period: str | None, zone: tzinfo | None) -> str:
    return "-" if time_ms is None or period is None else _time(time_ms, zone)[: _SHOWN[period]]


def write_parquet(path: Path, rows: Sequence[ReportRow], by: Sequence[str]) -> None:
    """Write the rows to a file atomically, times as timestamps."""
    moment = pa.timestamp("ms", tz="UTC")
    times = {"period", "min_timestamp", "max_timestamp"}
    kinds: Mapping[str, Any] = {
        field.name: pa.int32() if field.name == "partition" else moment if field.name in times else pa.int64()
        for field in fields(ReportRow)
    } | {"null_key_share": pa.float64()}
    names = list(rows[0].to_json(by)) if rows else list(kinds)
    schema = pa.schema([(name, kinds[name]) for name in names])
    made = pa.Table.from_pylist([row.to_json(by) for row in rows], schema)
    with whole_file(path) as temporary:
        pq.write_table(made, temporary)
