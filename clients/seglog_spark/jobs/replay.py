"""``seglog spark replay``: an archive, or a range of a topic, appended to a topic in the same order."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from seglog.cli import main
from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.client import Client
from seglog.core.errors import count_of
from seglog_spark.catalog import connect
from seglog_spark.jobs.common import open_client, store_of
from seglog_spark.jobs.inputs import Input, open_input
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.running import Runner
from seglog_spark.jobs.target import Pace, begin, print_written, sink_options
from seglog_spark.marks import Writing
from seglog_spark.marks_topic import MarksTopic
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import WriteOptions, parse_write_options
from seglog_spark.tasks import Written
from seglog_spark.writing import warn_of_expired, write_rows


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Writes one partition's range, in one task, so that its order is kept. ``rate``: records/s of all tasks."""

    source: Input
    options: WriteOptions
    columns: tuple[str, ...]
    rate: float | None
    total: int

    def __call__(self, r: OffsetRange) -> Written:
        """Write all its records; with a job id, each of them once."""
        writing = None if self.options.job_id is None else Writing(self.options.job_id, 0, r.partition)
        pace = None if self.rate is None else Pace(self.rate * r.size / self.total)
        with connect(self.options.server) as client:
            return write_rows(client, self.options, self.source.batches(r, self.columns), writing, pace)


def run(options: Options) -> int:
    """Run the job."""
    if options.topic == options.to_topic:
        raise UsageError(f"{options.topic} is read and written: name another topic to append to")
    write = parse_write_options(sink_options(options), "batch")
    progress = Progress("replay")
    with closing(open_client(options)) as client:
        opened = open_input(options, client)
        arguments = {
            "replay": opened.source.topic,
            "topic id": opened.topic_id,
            "in": None if options.archive is None else store_of(options.archive, "--in").place,
            "from": options.start,
            "until": options.until,
            "preserve": list(options.preserve),
        }
        pinned = begin(client, write, arguments, opened.ranges(options), options.preserve, progress)
        wanted = [] if pinned.is_finished else [r for r in pinned.ranges if r.size]
        written = _replay(options, client, opened.source, write, wanted, progress)
        if write.job_id is not None and wanted:
            MarksTopic(client, write).finish(write.job_id, 0)
    warn_of_expired(written)
    rows, skipped = sum(found.rows for found in written), sum(found.skipped for found in written)
    there = f" ({count_of(skipped, 'record')} already written)" if skipped else ""
    records = f"{count_of(rows - skipped, 'record')} of {opened.source.topic}"
    sentence = f"{records} to {options.to_topic}{there}, {progress.seconds:.1f} s"
    ranges = {str(r.partition): [r.start, r.end] for r in pinned.ranges}
    more = {"there_before": skipped, "ranges": ranges}
    return print_written(options, opened.source.topic, pinned, sentence, rows - skipped, progress, **more)


def _replay(
    options: Options,
    client: Client,
    source: Input,
    write: WriteOptions,
    ranges: Sequence[OffsetRange],
    progress: Progress,
) -> list[Written]:
    if not ranges:
        return []
    offsets = sum(r.size for r in ranges)
    # The columns to read and write; the sink fills in those that are left out.
    columns = ("value", "headers", *(name for name in ("key", "timestamp", "partition") if name in options.preserve))
    task = ReplayTask(source, write, columns, options.rate, offsets)
    partitions = count_of(len(ranges), "partition")
    progress.say(f"{count_of(offsets, 'offset')} of {source.topic} in {partitions} to {options.to_topic}")
    before = _end(client, options.to_topic)
    with Runner(options, progress) as runner:
        return runner.run(
            ranges, task, lambda: f"{count_of(_end(client, options.to_topic) - before, 'record')} written"
        )


def _end(client: Client, topic: str) -> int:
    return sum(found.latest for found in client.offsets(topic))


if __name__ == "__main__":
    sys.exit(main(["spark", "replay", *sys.argv[1:]]))
