"""``seglog spark report``: records and bytes of a topic or an archive, per partition and period."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from datetime import tzinfo
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from seglog.cli import main
from seglog.cli.arguments import Options
from seglog.cli.common import print_json, zone_of
from seglog.cli.exits import OK, UsageError
from seglog.cli.figures import bytes_text
from seglog.cli.tables import aligned, print_lines
from seglog.cli.terminal import print_line
from seglog.client import Client
from seglog.core.errors import count_of
from seglog.core.moments import format_time
from seglog_spark.jobs.common import open_client
from seglog_spark.jobs.inputs import Opened, open_input
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.running import Runner
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.stores import whole_file

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
        left_out = {"partition", "first_offset", "last_offset"} if "partition" not in by else set()
        left_out |= {"period"} if period_of(by) is None else set()
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
        first_offset=min(row.first_offset for row in kept),
        last_offset=max(row.last_offset for row in kept),
        min_timestamp=min(times, default=None),
        max_timestamp=max(times, default=None),
        **{name: sum(getattr(row, name) for row in kept) for name in ("records", "bytes", "null_keys", "tombstones")},
    )


def by_partition(rows: Iterable[ReportRow]) -> dict[int, ReportRow]:
    """One row for each partition with records; empty for a report that is not by partition."""
    of = attrgetter("partition")
    found = groupby(sorted((row for row in rows if row.partition is not None), key=of), of)
    return {partition: merged(group) for partition, group in found}


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
    """Write the rows to a file, times as timestamps."""
    moment = pa.timestamp("ms", tz="UTC")
    times = {"period", "min_timestamp", "max_timestamp"}
    kinds: Mapping[str, Any] = {
        field.name: pa.int32() if field.name == "partition" else moment if field.name in times else pa.int64()
        for field in fields(ReportRow)
    } | {"null_key_share": pa.float64()}
    names = list(rows[0].to_json(by)) if rows else list(kinds)
    schema = pa.schema([(name, kinds[name]) for name in names])
    made = pa.Table.from_pylist([row.to_json(by) for row in rows], schema)
    pq.write_table(made, path)


def grouped(rows: Any, by: Sequence[str]) -> Any:
    """A DataFrame of records aggregated to the columns of ReportRow."""
    period = period_of(by)
    partition = "partition" if "partition" in by else "cast(null as int)"
    begins = "cast(null as bigint)" if period is None else f"unix_millis(date_trunc('{period}', timestamp))"
    keyed = rows.selectExpr(
        f"{partition} as partition",
        f"{begins} as period",
        "offset",
        "unix_millis(timestamp) as time",
        "key is null as has_no_key",
        "value is null as has_no_value",
        "coalesce(length(key), 0) + coalesce(length(value), 0) as size",
    )
    keyed.createOrReplaceTempView("seglog_report")
    return keyed.sparkSession.sql(
        "select partition, period, count(*) as records, sum(size) as bytes, min(offset) as first_offset, "
        "max(offset) as last_offset, min(time) as min_timestamp, max(time) as max_timestamp, "
        "count_if(has_no_key) as null_keys, count_if(has_no_value) as tombstones "
        "from seglog_report group by partition, period order by partition, period"
    )


def count(opened: Opened, ranges: Sequence[OffsetRange], by: Sequence[str], runner: Runner) -> list[ReportRow]:
    """The rows of a report on these ranges."""
    wanted = [r for r in ranges if r.size]
    if not wanted:
        return []
    columns = ("partition", "offset", "timestamp", "key", "value")
    counted = runner.do(lambda: grouped(opened.source.frame(runner.spark, wanted, columns), by).collect())
    return [ReportRow(**row.asDict()) for row in counted]


def run(options: Options) -> int:
    """Run the job."""
    kind = options.format or ("json" if options.json else "table")
    _check(options, kind)
    progress = Progress("report")
    with ExitStack() as stack:
        client: Client | None = None
        if options.archive is None:
            client = stack.enter_context(open_client(options))
        opened = open_input(options, client)
        ranges = opened.ranges(options)
        progress.say(f"{count_of(sum(r.size for r in ranges), 'offset')} of {opened.source.topic}")
        rows = count(opened, ranges, options.by, stack.enter_context(Runner(options, progress)))
    _print_result(options, kind, opened.source.topic, rows, progress)
    return OK


def _check(options: Options, kind: str) -> None:
    """Raise UsageError for contradictory options, before anything is begun."""
    if kind == "parquet" and options.out is None:
        raise UsageError("--format parquet needs --out FILE: Parquet is not written to a terminal")
    if options.out is not None and not Path(options.out).absolute().parent.is_dir():
        raise UsageError(f"there is no folder for {options.out}")


def _print_result(options: Options, kind: str, topic: str, rows: Sequence[ReportRow], progress: Progress) -> None:
    """Print the summary, as sentences or as JSON."""
    total = merged(rows) if rows else None
    nothing = {"records": 0, "bytes": 0, "min_timestamp": None, "max_timestamp": None, "null_keys": 0}
    summary = {
        "job": "report",
        "topic": topic,
        "by": list(options.by),
        **{name: getattr(total, name, otherwise) for name, otherwise in nothing.items()},
        "partitions": [row.to_json(("partition",)) for row in by_partition(rows).values()],
        "out": None if options.out is None else str(Path(options.out).absolute()),
        "seconds": progress.seconds,
    }
    written = [row.to_json(options.by) for row in rows]
    lines = [*aligned(*table(rows, options.by, zone_of(options)))]
    if options.out is not None:
        with whole_file(Path(options.out).absolute()) as path:
            if kind == "parquet":
                write_parquet(path, rows, options.by)
            else:
                text = json.dumps(summary | {"rows": written}) if kind == "json" else "\n".join(lines)
                path.write_text(f"{text}\n", "utf-8")
    if options.json or (kind == "json" and options.out is None):
        print_json(summary if options.out is not None else summary | {"rows": written})
        return
    if options.out is None:
        print_lines([*lines, ""])
    print_line(_sentence(topic, total, options))


def _sentence(topic: str, total: ReportRow | None, options: Options) -> str:
    if total is None:
        return f"{topic} has no records there"
    first, last = (_time(time, zone_of(options)) for time in (total.min_timestamp, total.max_timestamp))
    size = f"{bytes_text(total.bytes)} of keys and values"
    share = f"{total.null_key_share:.1%} without a key"
    return f"{topic}: {count_of(total.records, 'record')}, {size}, {first} to {last}, {share}"


if __name__ == "__main__":
    sys.exit(main(["spark", "report", *sys.argv[1:]]))
