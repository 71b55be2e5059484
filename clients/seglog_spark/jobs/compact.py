"""``seglog spark compact``: the latest record of each key of a partition, as Parquet or in a topic."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seglog.cli import main
from seglog.cli.arguments import Options
from seglog.cli.common import answer
from seglog.cli.exits import InputError, UsageError
from seglog.cli.figures import bytes_text
from seglog.client import Client
from seglog.core.errors import count_of
from seglog.core.records import ConsumerGap
from seglog_spark.jobs import target
from seglog_spark.jobs.common import open_client, store_of
from seglog_spark.jobs.inputs import Opened, open_input, spans
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.running import Runner
from seglog_spark.offsets import OffsetRange
from seglog_spark.options import parse_write_options
from seglog_spark.tables.manifest import ArchivedFile, Manifest, load, measured, save
from seglog_spark.tables.parquet_files import SCHEMA, write_file
from seglog_spark.tables.stores import Folder

_REST: Final = ("offset", "timestamp", "timestampType", "value", "headers")
"""The columns kept beside partition and key."""


def latest(rows: Any, *, null_keys: str, delete_tombstones: bool) -> Any:
    """The latest record of each partition and key, as a DataFrame; with ``keep`` also records without a key."""
    from pyspark.sql import functions  # noqa: PLC0415 - the rest of this module can be tested without

    newest = functions.max_by(functions.struct(*_REST), "offset").alias("newest")
    found = rows.where("key is not null").groupBy("partition", "key").agg(newest).select("partition", "key", "newest.*")
    if delete_tombstones:
        found = found.where("value is not null")
    if null_keys == "keep":
        found = found.unionByName(rows.where("key is null").select("partition", "key", *_REST))
    return found


def in_order(rows: Any, topic: str, tasks: int) -> Any:
    """The rows of each partition in one task, in offset order: the same at every execution."""
    columns = [f"'{topic}' as topic" if name == "topic" else f"`{name}`" for name in SCHEMA.names]
    return rows.selectExpr(*columns).repartition(tasks, "partition").sortWithinPartitions("partition", "offset")


@dataclass(frozen=True, slots=True)
class FilesTask:
    """Writes a file for each partition among a task's rows, which come in order. ``ranges`` is by partition."""

    folder: Folder
    ranges: Mapping[int, OffsetRange]
    compression: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The files written: one column, ``file``, of JSON."""
        for partition, pieces in groupby(_by_partition(batches), key=itemgetter(0)):
            r = self.ranges[partition]
            met = [ConsumerGap(r.topic, partition, r.start, r.end, "compacted")]
            written = write_file(self.folder, r, (piece for _, piece in pieces), self.compression, met)
            yield pa.RecordBatch.from_pydict({"file": [json.dumps(msgspec.to_builtins(written))]})


def _by_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches in pieces of one partition each."""
    for batch in batches:
        column = batch.column("partition")
        for partition in pc.unique(column).to_pylist():
            yield partition, batch.filter(pc.equal(column, partition))


def begin(
    found: Manifest | None, wanted: Manifest, ranges: Sequence[OffsetRange], folder: Folder, *, overwrite: bool
) -> Manifest | None:
    """The manifest to write; None when ``found`` is it already. InputError when ``found`` must not be replaced."""
    if found is None:
        return replace(wanted, planned=tuple(ranges))
    if found.kind != "compacted" or found.topic != wanted.topic:
        kind = "the archive" if found.kind == "archive" else "a compaction"
        raise InputError(
            f"{folder.place} holds {kind} of {found.topic}; a compaction of {wanted.topic} needs another folder"
        )
    is_same = (found.settings, found.topic_id) == (wanted.settings, wanted.topic_id)
    if found.planned and is_same:
        return found  # of a killed run: finishing it gives files of the same names
    if is_same and {r.partition: (r.start, r.end) for r in ranges} == found.partitions:
        return None
    if not overwrite:
        raise InputError(
            f"{folder.place} holds another compaction of {found.topic}; add --overwrite to put this one in its place"
        )
    return replace(wanted, planned=tuple(ranges))


def _to_files(
    options: Options, opened: Opened, ranges: Sequence[OffsetRange], runner: Runner, progress: Progress
) -> int:
    """Write the latest records to Parquet files; returns the exit code."""
    if "://" in options.out:
        raise UsageError("--out: write a folder, on a cluster one that all machines see, not a URL")
    folder = Folder(Path(options.out).absolute())
    settings = {
        "null_keys": options.null_keys,
        "delete_tombstones": options.delete_tombstones,
        "before_offset": options.before_offset,
    }
    wanted = Manifest(opened.source.topic, opened.topic_id, "compacted", settings)
    beginning = begin(load(folder), wanted, ranges, folder, overwrite=options.overwrite)
    if beginning is not None and any(r.size for r in beginning.planned):
        runner.start()  # before the folder is claimed, and before an earlier compaction is removed
    with folder.claimed():
        manifest = begin(load(folder), wanted, ranges, folder, overwrite=options.overwrite)
        files: list[ArchivedFile] = []
        if manifest is not None:
            save(folder, manifest)
            for name in [name for name in folder.names() if name.endswith(".parquet")]:
                folder.remove(name)  # of an earlier compaction, whose manifest is gone
            files = _make_files(options, opened, manifest.planned, folder, runner)
            save(folder, manifest.with_written(files))
    records, size = measured(files)
    summary = {"topic": wanted.topic, "out": folder.place, "files": [found.path for found in files]}
    sentence = f"nothing new in {wanted.topic}; {folder.place} is unchanged"
    if manifest is not None:
        what = f"{count_of(records, 'record')} of {wanted.topic}, the latest of each key"
        sentence = f"{what}: {bytes_text(size)} in {folder.place}, {progress.seconds:.1f} s"
    counts = {"records": records, "bytes": size, "seconds": progress.seconds}
    return answer(options, {"job": "compact", **summary, **counts}, sentence)


def _make_files(
    options: Options, opened: Opened, ranges: Sequence[OffsetRange], folder: Folder, runner: Runner
) -> list[ArchivedFile]:
    if not any(r.size for r in ranges):
        return []
    task = FilesTask(folder, {r.partition: r for r in ranges}, options.compression)
    made = runner.do(lambda: _rows(options, opened, ranges, runner).mapInArrow(task.__call__, "file string").collect())
    return [msgspec.json.decode(row.file, type=ArchivedFile) for row in made]


def _rows(options: Options, opened: Opened, ranges: Sequence[OffsetRange], runner: Runner) -> Any:
    wanted = [r for r in ranges if r.size]
    rows = opened.source.frame(runner.spark, wanted, ("partition", "key", *_REST))
    found = latest(rows, null_keys=options.null_keys, delete_tombstones=options.delete_tombstones)
    return in_order(found, opened.source.topic, max(1, len(wanted)))


def _to_topic(
    options: Options, client: Client, opened: Opened, ranges: Sequence[OffsetRange], runner: Runner, progress: Progress
) -> int:
    """Write the latest records to a topic; returns the exit code."""
    from pyspark.sql import Observation, functions  # noqa: PLC0415

    write = parse_write_options(target.sink_options(options), "batch")
    arguments = {
        "compact": opened.source.topic,
        "topic id": opened.topic_id,
        "in": None if options.archive is None else store_of(options.archive, "--in").place,
        "null keys": options.null_keys,
        "delete tombstones": options.delete_tombstones,
        "before offset": options.before_offset,
    }
    pinned = target.begin(client, write, arguments, ranges, ("partition", "timestamp"), progress)
    records = 0
    if not pinned.is_finished and any(r.size for r in pinned.ranges):

        def write_latest() -> int:
            seen = Observation()
            rows = _rows(options, opened, pinned.ranges, runner).observe(seen, functions.count("*").alias("records"))
            rows.write.format("seglog").options(**target.sink_options(options)).mode("append").save()
            return int(seen.get["records"])

        records = runner.do(write_latest)
    what = f"{count_of(records, 'record')} of {opened.source.topic}, the latest of each key"
    sentence = f"{what}, to {options.to_topic}, {progress.seconds:.1f} s"
    return target.print_written(options, opened.source.topic, pinned, sentence, records, progress)


def run(options: Options) -> int:
    """Run the job."""
    if options.topic is not None and options.topic == options.to_topic:
        raise UsageError(f"{options.topic} is read and written; a topic compacts itself with cleanup.policy=compact")
    if options.to_topic is None and options.job_id is not None:
        raise UsageError("--job-id is for writing to a topic; files are written once anyway")
    if options.out is None and options.overwrite:
        raise UsageError("--overwrite is for files; a topic is only ever appended to")
    progress = Progress("compact")
    with ExitStack() as stack:
        client: Client | None = None
        if options.archive is None or options.to_topic is not None:
            client = stack.enter_context(open_client(options))
        opened = open_input(options, client)
        ranges = spans(opened.ends, None, None, opened.find_times)
        if options.before_offset is not None:
            ranges = [r._replace(end=max(r.start, min(r.end, options.before_offset))) for r in ranges]
        progress.say(f"{count_of(sum(r.size for r in ranges), 'offset')} of {opened.source.topic}")
        runner = stack.enter_context(Runner(options, progress))
        if client is not None and options.to_topic is not None:
            return _to_topic(options, client, opened, ranges, runner, progress)
        return _to_files(options, opened, ranges, runner, progress)


if __name__ == "__main__":
    sys.exit(main(["spark", "compact", *sys.argv[1:]]))
