"""``seglog spark report``: records and bytes of a topic or an archive, per partition and period."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from seglog.cli import main
from seglog.cli.arguments import Options
from seglog.cli.common import print_json, zone_of
from seglog.cli.exits import OK, UsageError
from seglog.cli.tables import aligned, print_lines
from seglog.cli.terminal import print_line
from seglog.client import Client
from seglog.core.errors import count_of
from seglog.core.moments import format_time
from seglog_spark.jobs.inputs import Opened, open_input
from seglog_spark.jobs.manifest import write_whole
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.report_rows import ReportRow, by_partition, merged, period_of, table, write_parquet
from seglog_spark.jobs.running import Runner, open_client, size_of
from seglog_spark.offsets import OffsetRange


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
    with runner.watched():
        rows = opened.source.frame(runner.spark, wanted, ("partition", "offset", "timestamp", "key", "value"))
        return [ReportRow(**row.asDict()) for row in grouped(rows, by).collect()]


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
    total = merged(rows) if rows else None
    summary = {
        "job": "report",
        "topic": topic,
        "by": list(options.by),
        "records": 0 if total is None else total.records,
        "bytes": 0 if total is None else total.bytes,
        "min_timestamp": None if total is None else total.min_timestamp,
        "max_timestamp": None if total is None else total.max_timestamp,
        "null_keys": 0 if total is None else total.null_keys,
        "partitions": [row.to_json(("partition",)) for row in by_partition(rows).values()],
        "out": None if options.out is None else str(Path(options.out).absolute()),
        "seconds": progress.seconds,
    }
    written = [row.to_json(options.by) for row in rows]
    lines = [*aligned(*table(rows, options.by, zone_of(options)))]
    if options.out is not None:
        path = Path(options.out).absolute()
        if kind == "parquet":
            write_parquet(path, rows, options.by)
        elif kind == "json":
            write_whole(path, json.dumps(summary | {"rows": written}).encode() + b"\n")
        else:
            write_whole(path, ("\n".join(lines) + "\n").encode())
    if options.json or (kind == "json" and options.out is None):
        print_json(summary if options.out is not None else summary | {"rows": written})
        return
    if options.out is None:
        print_lines([*lines, ""])
    print_line(_sentence(topic, total, options))


def _sentence(topic: str, total: ReportRow | None, options: Options) -> str:
    if total is None:
        return f"{topic} has no records there"
    zone = zone_of(options)
    first, last = (
        format_time(-1 if time is None else time, zone) for time in (total.min_timestamp, total.max_timestamp)
    )
    return (
        f"{topic}: {count_of(total.records, 'record')}, {size_of(total.bytes)} of keys and values, {first} to {last}, "
        f"{total.null_key_share:.1%} without a key"
    )


if __name__ == "__main__":
    sys.exit(main(["spark", "report", *sys.argv[1:]]))
