"""Archiving: a topic as files of known offsets, in a table; every run adds to them, once or repeatedly.

Where files are made is given: in tasks of Spark (``archive``), or in this process (``here``).
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, Protocol

import pyarrow as pa

from seglog.arrow.values import Values
from seglog.cli import INTERRUPTED
from seglog.cli.arguments import Options
from seglog.cli.exits import OK, InputError, UsageError
from seglog.cli.figures import bytes_text
from seglog.cli.terminal import handled
from seglog.client import Client
from seglog.core.errors import count_of
from seglog.core.records import ConsumerGap
from seglog_protocol.errors import ClientTimeoutError, NotReachableError, SeglogError
from seglog_protocol.extras import missing
from seglog_protocol.messages import TopicDescription
from seglog_spark.catalog import CONNECT_SECONDS, PATIENCE_SECONDS, Catalog, Log
from seglog_spark.filters import Wanted
from seglog_spark.group_progress import GroupProgress
from seglog_spark.jobs import value_types
from seglog_spark.jobs.common import check_kept, open_client, print_result, store_of
from seglog_spark.jobs.estimate import segments_of, sentence
from seglog_spark.jobs.progress import Measure, Progress
from seglog_spark.offsets import OffsetRange, TopicPartition, to_spark
from seglog_spark.options import Subscribe, parse_read_options
from seglog_spark.planning import DataLossError
from seglog_spark.plans import plan_batch
from seglog_spark.reading import RangeReader
from seglog_spark.servers import Server, server_of
from seglog_spark.tables.manifest import ArchivedFile, Format, Layout, Manifest, is_rejected, load, rejected_name, save
from seglog_spark.tables.parquet_files import SCHEMA, find_file, write_file
from seglog_spark.tables.periods import find_by_period, range_bytes, remove_notes, write_by_period
from seglog_spark.tables.rejected import Sieve, schema_with
from seglog_spark.tables.stores import Check, Store
from seglog_spark.tables.targets import ParquetFiles, Target

TRIGGER_SECONDS: Final = 60.0
"""Seconds between the beginnings of two rounds; the default of ``--trigger``."""

Execute = Callable[[Sequence[OffsetRange]], Sequence[Sequence[ArchivedFile]]]
"""Makes the files of every range."""


class Executor(AbstractContextManager["Executor"], Protocol):
    """Where tasks run."""

    def start(self) -> None:
        """Start what tasks need, before anything is begun that would be left half done if it does not start."""

    def run(
        self, items: Sequence[OffsetRange], task: "ArchiveTask", *, measure: Measure[list[ArchivedFile]]
    ) -> Sequence[list[ArchivedFile]]:
        """The files of all ranges, in their order."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an archive is: its files, and the table that they are for. ``check`` tells if it is still this run's."""

    store: Store
    target: Target
    check: Check = lambda: None


@dataclass(frozen=True, slots=True)
class Plan:
    """Plans the next part of a topic, in ranges of at most ``range_bytes``."""

    server: Server
    topic: str
    range_bytes: int
    accept_loss: bool = False

    def next_ranges(self, log: Log, manifest: Manifest) -> list[OffsetRange]:
        """The offset ranges that the archive lacks. DataLossError when some of them are gone from the topic."""
        ends = log.ends(log.partitions(Subscribe((self.topic,))))
        begins = {p: manifest.partitions[p.partition][1] for p in ends if p.partition in manifest.partitions}
        wanted = {p: begin for p, begin in begins.items() if ends[p].latest > begin}
        if not wanted:
            return []
        starts = {p: max(start, ends[p].earliest) if self.accept_loss else start for p, start in wanted.items()}
        options = {
            "servers": str(self.server),
            "assign": json.dumps({self.topic: [p.partition for p in wanted]}),
            "startingOffsets": json.dumps(to_spark(starts)),
        }
        read = replace(parse_read_options(options, "batch"), target_task_bytes=self.range_bytes)
        ranges = plan_batch(log, read, Wanted())
        first = {r.partition: r.start for r in reversed(ranges)}
        # Offsets that are gone are a gap in the first file, so that the files leave no gap between them.
        return [r._replace(start=begins[r.topic_partition]) if r.start == first[r.partition] else r for r in ranges]


def check_same(
    manifest: Manifest,
    topic: TopicDescription,
    log: Log,
    place: str,
    layout: Layout = None,
    table_format: Format = "parquet",
) -> None:
    """Raise InputError or DataLossError when the archive is of another topic, or has another layout or format."""
    if manifest.kind != "archive" or manifest.topic != topic.name:
        kind = "the archive" if manifest.kind == "archive" else "a compaction"
        raise InputError(
            f"{place} holds {kind} of {manifest.topic}; an archive of {topic.name} needs a folder of its own"
        )
    if manifest.topic_id != topic.id:
        raise InputError(
            f"{place} holds the archive of an earlier topic {topic.name}, which was deleted; the new one needs a "
            "folder of its own"
        )
    check_kept(place, "--format", manifest.format, table_format)
    check_kept(place, "--partition-by", manifest.layout, layout)
    for partition, ends in log.ends(log.partitions(Subscribe((topic.name,)))).items():
        _, end = manifest.partitions.get(partition.partition, (0, 0))
        if ends.latest < end:
            raise DataLossError(
                f"{place} has {partition} up to offset {end}, and its log ends at {ends.latest}: it was truncated, "
                "and may hold other records under these offsets by now; archive it elsewhere"
            )


def archive(plan: Plan, log: Log, manifest: Manifest, place: Place, execute: Execute) -> list[ArchivedFile]:
    """Finish the ranges of an interrupted run, then archive up to the topic's end. Returns the files written.

    What the table has by its own log is not made again. When nothing is new, nothing is executed and no file changes.
    """
    begins = log.ends(log.partitions(Subscribe((plan.topic,))))
    known = manifest.with_partitions({p.partition: earliest for p, (earliest, _) in begins.items()})
    if (ends := place.target.ends()) is not None:
        if not ends and any(end > start for start, end in known.partitions.values()):
            raise InputError(
                f"{place.store.place} has been archived to, and the table is gone, or is in another catalog: give the "
                "--catalog that it was begun with, or archive to another place"
            )
        done = [r for r in known.planned if r.end <= ends.get(r.partition, r.start)]
        known = known.with_table(ends)
        if done:  # by a run that was killed before it could say so in the manifest
            known = known.with_written([f for r in done for f in _find(place.store, r, known.layout, is_typed=True)])
            save(place.store, known)
            remove_notes(place.store)
    if known != manifest:
        save(place.store, known)
    begun, manifest = _write(known, place, execute)
    new, _ = _write(manifest.with_planned(plan.next_ranges(log, manifest)), place, execute)
    return [*begun, *new]


def _write(manifest: Manifest, place: Place, execute: Execute) -> tuple[list[ArchivedFile], Manifest]:
    if not manifest.planned:
        return [], manifest
    save(place.store, manifest)
    files = list(chain.from_iterable(execute(manifest.planned)))
    manifest = manifest.with_written(files)
    place.check()
    ends = {number: end for number, (_, end) in manifest.partitions.items()}
    place.target.commit([found for found in files if not is_rejected(found)], ends)
    save(place.store, manifest)
    remove_notes(place.store)
    return files, manifest


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Writes the files of ranges; travels to workers."""

    server: Server
    store: Store
    compression: str
    durable_only: bool
    accept_loss: bool
    layout: Layout = None
    table_format: Format = "parquet"
    rows_max: int = sys.maxsize
    """Of a file by period, so that it has no more than its size of the log."""
    values: Values | None = None

    def __call__(self, r: OffsetRange, seen: Callable[[pa.RecordBatch], object] = id) -> list[ArchivedFile]:
        """The files of a range, written now unless a killed run has written them.

        ``seen`` is called with each batch of records that was read; what it raises gives the range up.
        """
        found = _find(self.store, r, self.layout, is_typed=self.values is not None)
        if found:
            return found
        met: list[ConsumerGap] = []
        reader = RangeReader(
            self.server,
            tuple(SCHEMA.names),
            fail_on_data_loss=not self.accept_loss,
            durable_only=self.durable_only,
            on_gap=met.append,
        )
        batches, schema = _shown(reader.read(r), seen), schema_with(self.values)
        sieve = None if self.values is None else Sieve(self.store, r, self.values, self.compression)
        if sieve is not None:
            batches = sieve.passed(batches, met)
        if self.layout is not None:
            files = write_by_period(
                self.store, self.layout, r, batches, self.compression, met, self.table_format, self.rows_max, schema
            )
        else:
            files = [write_file(self.store, r, batches, self.compression, met, schema=schema)]
        return [*files, *(sieve.files if sieve is not None else ())]


def _find(store: Store, r: OffsetRange, layout: Layout, *, is_typed: bool) -> list[ArchivedFile]:
    """The files of a range, with that of rejected records; none if they are not all there."""
    files = find_by_period(store, r) if layout is not None else [find_file(store, r)]
    if files and files[0] is not None and is_typed:
        files = [*files, find_file(store, r, rejected_name(r))]
    return [found for found in files if found is not None]


def _shown(batches: Iterator[pa.RecordBatch], seen: Callable[[pa.RecordBatch], object]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        seen(batch)
        yield batch


def run(options: Options, executor: Callable[[Options, Progress], Executor]) -> int:
    """Run the job with tasks on an ``executor``; with ``--follow`` until it is interrupted."""
    if options.trigger is not None and not options.follow:
        raise UsageError("--trigger is how often --follow looks for new records: add --follow")
    store = store_of(options.out, "--out")
    load(store)  # an error about the folder comes before the broker is asked
    progress = Progress("archive")
    # With --follow a lost broker is reported; a single run waits for it silently.
    patience = CONNECT_SECONDS if options.follow else PATIENCE_SECONDS
    with ExitStack() as stack:
        if options.follow:
            stack.enter_context(handled(signal.default_int_handler, signal.SIGTERM))  # which ends services
        client = stack.enter_context(closing(open_client(options, patience)))
        topic = client.describe_topic(options.topic)
        runner = stack.enter_context(executor(options, progress))
        is_new = load(store) is None and any(place.latest > place.earliest for place in client.offsets(topic.name))
        if options.follow or is_new:
            runner.start()  # first: if it fails, the folder is not claimed for an archive
        check = stack.enter_context(store.claimed())
        before = load(store) or _empty(options, client, topic, progress.say)
        values = value_types.kept(options, before.settings, store.place)
        place = Place(store, _target(options, store, topic, schema_with(values)), check)
        if is_new and (segments := segments_of(client, topic.name)):
            progress.say(sentence(_layout(options), segments, *_sizes(options)))

        group = None if options.group is None else GroupProgress(client, options.group)
        one_round = partial(_round, options, client, place, before, values, runner, progress, group, set[str]())
        if options.follow:
            seconds = TRIGGER_SECONDS if options.trigger is None else options.trigger
            progress.say(f"following {topic.name}, every {seconds:g} s, until interrupted")
            follow(one_round, seconds, progress.say)
        else:
            one_round()
        _print_result(options, store, before, progress)
    return INTERRUPTED if options.follow else OK


def _empty(options: Options, client: Client, topic: TopicDescription, say: Callable[[str], None]) -> Manifest:
    layout = _layout(options)
    settings = value_types.begun(options, client, say) | ({} if layout is None else {"partition_by": layout})
    if options.format != "parquet":
        settings["format"] = options.format
    return Manifest(topic.name, topic.id, settings=settings)


def _target(options: Options, store: Store, topic: TopicDescription, schema: pa.Schema) -> Target:
    """The table, whose library comes with an extra. UsageError for a catalog of a table that has none."""
    if options.catalog is not None and options.format != "iceberg":
        raise UsageError("--catalog names a catalog of Iceberg tables: add --format iceberg")
    if options.format == "parquet":
        return ParquetFiles(store)
    if error := missing(f"--format {options.format}", options.format):
        raise InputError(str(error))
    if "://" not in store.place and not {*"#%?"}.isdisjoint(store.place):
        raise InputError(
            f"tables have addresses, in which #, % and ? mean something: archive elsewhere than {store.place}"
        )
    file_bytes = options.target_file_mb * 1024 * 1024
    if options.format == "delta":
        from seglog_spark.tables.delta import Delta  # noqa: PLC0415 - comes with an extra

        return Delta(store, topic.name, topic.id, _layout(options), file_bytes, schema)
    from seglog_spark.tables.iceberg import Iceberg  # noqa: PLC0415 - comes with an extra

    return Iceberg(store, topic.name, topic.id, _layout(options), options.catalog, file_bytes, schema)


def _sizes(options: Options) -> tuple[int, int]:
    """Bytes of log that make a file, and a range."""
    file_bytes = options.target_file_mb * 1024 * 1024
    return file_bytes, file_bytes if options.partition_by is None else range_bytes(file_bytes)


def _layout(options: Options) -> Layout:
    found: Layout = "date" if options.partition_by == "day" else options.partition_by
    return found


def _round(
    options: Options,
    client: Client,
    place: Place,
    before: Manifest,
    values: Values | None,
    runner: Executor,
    progress: Progress,
    group: GroupProgress | None,
    said: set[str],
) -> None:
    """Archive up to the end of the topic."""
    topic, layout = client.describe_topic(options.topic), _layout(options)
    manifest = load(place.store) or before
    check_same(manifest, topic, Catalog(client), place.store.place, layout, options.format)
    file_bytes, most = _sizes(options)
    plan = Plan(server_of(options), topic.name, most, options.accept_loss)
    task = ArchiveTask(
        server_of(options),
        place.store,
        options.compression,
        options.durable_only,
        options.accept_loss,
        layout,
        options.format,
        max(1, file_bytes * sum(p.latest - p.earliest for p in client.offsets(topic.name)) // max(1, topic.size)),
        values,
    )
    if manifest.planned:
        progress.say(f"first {count_of(len(manifest.planned), 'range')} that an earlier run did not finish")

    def execute(ranges: Sequence[OffsetRange]) -> Sequence[list[ArchivedFile]]:
        offsets = count_of(sum(r.size for r in ranges), "offset")
        progress.say(f"{offsets} of {topic.name} in {count_of(len(ranges), 'range')}")
        return runner.run(ranges, task, measure=_measured)

    files = archive(plan, Catalog(client, durable_only=options.durable_only), manifest, place, execute)
    if files and (hint := place.target.tidy()) is not None and not said:
        said.add(hint)
        progress.say(hint)
    if rejected := sum(found.records for found in files if is_rejected(found)):
        progress.say(
            f"values of {count_of(rejected, 'record')} do not fit: the reasons are in {place.store.place}/_rejected"
        )
    if group is not None:
        now = load(place.store) or manifest
        ends = {TopicPartition(now.topic, number): end for number, (_, end) in now.partitions.items()}
        if (sentence := group.commit(ends)) is not None:  # a failure is only reported
            progress.say(sentence)


def _measured(files: Sequence[ArchivedFile]) -> tuple[int, int]:
    return sum(found.records for found in files), sum(found.size for found in files)


def _print_result(options: Options, store: Store, before: Manifest, progress: Progress) -> None:
    """Print what was added since ``before``, by the manifest, which also knows what an interrupted run has done."""
    there = {found.path for found in before.files}
    now = load(store) or before
    written = [found for found in now.files if found.path not in there]
    records, size = sum(found.records for found in written), sum(found.size for found in written)
    rejected = sum(found.records for found in now.rejected) - sum(found.records for found in before.rejected)
    missing = sum(found.missing for found in written) - rejected
    summary = {
        "topic": now.topic,
        "out": store.place,
        "files": [found.path for found in written],
        "records": records,
        "missing": missing,
        "rejected": rejected,
        "bytes": size,
        "partitions": {str(number): list(ends) for number, ends in now.partitions.items()},
        "seconds": progress.seconds,
    }
    sentence = f"nothing new in {now.topic}; {store.place} is unchanged"
    if written:
        without = f", {count_of(missing, 'offset')} without a record" if missing else ""
        without += f", {rejected:,} rejected" if rejected else ""
        sentence = (
            f"{count_of(records, 'record')} of {now.topic}{without}: {count_of(len(written), 'file')} with "
            f"{bytes_text(size)} in {store.place}, {progress.seconds:.1f} s"
        )
    print_result(options, sentence, summary)


AGAIN_SECONDS: Final = 5.0
"""Seconds until a failed round is tried again, whatever the interval of rounds."""


def follow(
    one_round: Callable[[], object],
    seconds: float,
    say: Callable[[str], None],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Begin ``one_round`` every ``seconds``, or when the last one is done if that is later; return when interrupted.

    A temporary error is reported once, and the round tried again; every other error is raised. An interrupt abandons
    the round in progress.
    """
    reported: str | None = None
    try:
        while True:
            began = now()
            pause = seconds
            try:
                one_round()
            except SeglogError as error:
                if not passes(error):
                    raise
                if reported != error.message:
                    say(f"{error.message.rstrip('.')}; trying again until it succeeds")
                reported, pause = error.message, AGAIN_SECONDS
            else:
                if reported is not None:
                    say("it works again")
                reported = None
            sleep(max(0.0, began + pause - now()))
    except KeyboardInterrupt:
        return


def passes(error: SeglogError) -> bool:
    """Whether the same may succeed later: the broker restarts, recovers a partition, or has a full disk."""
    return error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)
