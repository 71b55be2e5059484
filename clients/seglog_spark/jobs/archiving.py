"""Archiving: a topic as files of known offsets, in a table; every run adds to them, once or repeatedly.

Where files are made is given: in tasks of Spark (``archive``), or in this process (``here``).
"""

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final, Protocol

import msgspec

from seglog.arrow.values import Values
from seglog.cli import INTERRUPTED
from seglog.cli.arguments import Options
from seglog.cli.common import answer
from seglog.cli.exits import FAILED, OK, InputError, UsageError
from seglog.cli.figures import bytes_text
from seglog.cli.terminal import handled
from seglog.client import Client
from seglog.core.errors import count_of
from seglog.core.records import ConsumerGap
from seglog_protocol.errors import ClientTimeoutError, NotReachableError, SeglogError
from seglog_protocol.messages import TopicDescription
from seglog_spark.catalog import CONNECT_SECONDS, PATIENCE_SECONDS, Catalog, Log
from seglog_spark.filters import Wanted
from seglog_spark.group_progress import GroupProgress
from seglog_spark.jobs import value_types
from seglog_spark.jobs.common import check_kept, open_client, open_target, store_of
from seglog_spark.jobs.estimate import segments_of, sentence
from seglog_spark.jobs.failures import LibraryError, as_command_errors
from seglog_spark.jobs.progress import Measure, Progress
from seglog_spark.jobs.value_types import BYTES
from seglog_spark.offsets import OffsetRange, TopicPartition, to_spark
from seglog_spark.options import Subscribe, parse_read_options
from seglog_spark.planning import DataLossError
from seglog_spark.plans import plan_batch
from seglog_spark.reading import RangeReader
from seglog_spark.servers import Server, server_of
from seglog_spark.tables.manifest import (
    ArchivedFile,
    Format,
    Layout,
    Manifest,
    is_rejected,
    load,
    measured,
    rejected_name,
    save,
)
from seglog_spark.tables.parquet_files import SCHEMA, find_file, write_file
from seglog_spark.tables.periods import find_by_period, range_bytes, remove_notes, write_by_period
from seglog_spark.tables.rejected import Seen, Sieve, described, schema_with
from seglog_spark.tables.stores import Check, Store
from seglog_spark.tables.targets import Target

TRIGGER_SECONDS: Final = 60.0
"""Seconds between the beginnings of two rounds; the default of ``--trigger``."""

Plan = Callable[[Log, Manifest], Sequence[OffsetRange]]
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


def next_ranges(
    log: Log, manifest: Manifest, server: Server, range_bytes: int, *, accept_loss: bool = False
) -> list[OffsetRange]:
    """The offset ranges that the archive lacks, of ``range_bytes`` at most. DataLossError when some are gone."""
    ends = log.ends(log.partitions(Subscribe((manifest.topic,))))
    begins = {p: manifest.partitions[p.partition][1] for p in ends if p.partition in manifest.partitions}
    wanted = {p: begin for p, begin in begins.items() if ends[p].latest > begin}
    if not wanted:
        return []
    starts = {p: max(start, ends[p].earliest) if accept_loss else start for p, start in wanted.items()}
    options = {
        "servers": str(server),
        "assign": json.dumps({manifest.topic: [p.partition for p in wanted]}),
        "startingOffsets": json.dumps(to_spark(starts)),
    }
    read = replace(parse_read_options(options, "batch"), target_task_bytes=range_bytes)
    ranges = plan_batch(log, read, Wanted())
    first = {r.partition: r.start for r in reversed(ranges)}
    # Offsets that are gone are a gap in the first file, so that the files leave no gap between them.
    return [r._replace(start=begins[r.topic_partition]) if r.start == first[r.partition] else r for r in ranges]


def check_same(
    manifest: Manifest, topic: TopicDescription, log: Log, place: str, layout: Layout = None, form: Format = "parquet"
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
    check_kept(place, "--format", manifest.format, form)
    check_kept(place, "--partition-by", manifest.layout, layout)
    for partition, ends in log.ends(log.partitions(Subscribe((topic.name,)))).items():
        _, end = manifest.partitions.get(partition.partition, (0, 0))
        if ends.latest < end:
            raise DataLossError(
                f"{place} has {partition} up to offset {end}, and its log ends at {ends.latest}: it was truncated, "
                "and may hold other records under these offsets by now; archive it elsewhere"
            )


def archive(
    plan: Callable[..., Sequence[OffsetRange]],
    log: Log,
    manifest: Manifest,
    target: Target,
    execute: Execute,
    check: Check = lambda: None,
) -> tuple[list[ArchivedFile], Manifest]:
    """Finish the ranges of an interrupted run, then archive up to the topic's end.

    Returns the files written, and the manifest as it is then. What the table has by its own log is not made again. When
    nothing is new, nothing is executed and no file changes. ``check`` is called before each commit.
    """
    begins = log.ends(log.partitions(Subscribe((manifest.topic,))))
    known = manifest.with_partitions({p.partition: earliest for p, (earliest, _) in begins.items()})
    if (ends := target.ends()) is not None:
        if not ends and any(end > start for start, end in known.partitions.values()):
            raise InputError(
                f"{target.store.place} has been archived to, and the table is gone, or is in another catalog: give the "
                "--catalog that it was begun with, or archive to another place"
            )
        done = [r for r in known.planned if r.end <= ends.get(r.partition, r.start)]
        known = known.with_table(ends)
        if done:  # by a run that was killed before it could say so in the manifest
            known = known.with_written([f for r in done for f in _find(target.store, r, known.layout)])
            save(target.store, known)
            remove_notes(target.store)
    if known != manifest:
        save(target.store, known)
    begun, manifest = _write(known, target, execute, check)
    new, manifest = _write(replace(manifest, planned=tuple(plan(log, manifest))), target, execute, check)
    return [*begun, *new], manifest


def _write(manifest: Manifest, target: Target, execute: Execute, check: Check) -> tuple[list[ArchivedFile], Manifest]:
    if not manifest.planned:
        return [], manifest
    save(target.store, manifest)
    files = list(chain.from_iterable(execute(manifest.planned)))
    manifest = manifest.with_written(files)
    check()
    ends = {number: end for number, (_, end) in manifest.partitions.items()}
    target.commit([found for found in files if not is_rejected(found)], ends)
    save(target.store, manifest)
    remove_notes(target.store)
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
    values: Values = BYTES

    def __call__(self, r: OffsetRange, seen: Seen = max) -> list[ArchivedFile]:
        """The files of a range, written now unless a killed run has written them."""
        found = _find(self.store, r, self.layout)
        if found:
            return found
        met: list[ConsumerGap] = []
        sieve = Sieve(self.store, r, self.values, self.compression, seen)
        reader = RangeReader(
            self.server,
            tuple(SCHEMA.names),
            fail_on_data_loss=not self.accept_loss,
            durable_only=self.durable_only,
            on_gap=met.append,
            on_misfit=sieve.refuse,
        )
        batches, schema = sieve.passed(reader.read(r), met), schema_with(self.values)
        if self.layout is None:
            files = [write_file(self.store, r, batches, self.compression, met, schema=schema)]
        else:
            kept = self.table_format, self.rows_max, schema, lambda: seen(0, 1)
            files = write_by_period(self.store, self.layout, r, batches, self.compression, met, *kept)
        return [*files, *sieve.files]


def _find(store: Store, r: OffsetRange, layout: Layout) -> list[ArchivedFile]:
    """The files of a range, with that of rejected records; none if they are not all there."""
    files = find_by_period(store, r) if layout is not None else [find_file(store, r)]
    if files and files[0] is not None:
        files = [*files, find_file(store, r, rejected_name(r))]
    return [found for found in files if found is not None]


class Job(ExitStack):
    """A run of the job. A round first opens what none before it could, so any that fails can be tried again.

    Raises UsageError for options that mean nothing together, and OSError.
    """

    def __init__(self, options: Options, executor: Callable[[Options, Progress], Executor]) -> None:
        super().__init__()
        self._options = options
        self._progress = Progress("archive")
        self._store = store_of(options.out, "--out")
        self._values = value_types.asked(options)
        self._layout: Layout = "date" if options.partition_by == "day" else options.partition_by
        file_bytes = options.target_file_mb * 1024 * 1024
        self._sizes = file_bytes, file_bytes if self._layout is None else range_bytes(file_bytes)
        self._runner = self.enter_context(executor(options, self._progress))
        self._opened: Callable[[], None] | None = None
        """A round, when broker and table are there."""
        self._before: Manifest | None = None
        self._manifest: Manifest | None = None
        """As the store has it, unless a round ended with an error."""
        self._has_hinted = False

    def run(self) -> int:
        """Run it; with ``--follow`` until it is interrupted. Returns the exit code."""
        options = self._options
        if options.follow:
            self.enter_context(handled(signal.default_int_handler, signal.SIGTERM))  # which ends services
            seconds = TRIGGER_SECONDS if options.trigger is None else options.trigger
            self._progress.say(f"following {options.topic}, every {seconds:g} s, until interrupted")
            follow(self._round, seconds, self._progress.say)
        else:
            self._round()
        fits = self._before is None or self._print_result(self._before)
        return INTERRUPTED if options.follow else OK if fits else FAILED

    def _open(self) -> Callable[[], None]:
        options, store = self._options, self._store
        found = load(store)  # an error about the folder comes before the broker is asked
        with ExitStack() as stack:
            # With --follow a lost broker is reported; a single run waits for it silently.
            patience = CONNECT_SECONDS if options.follow else PATIENCE_SECONDS
            client = stack.enter_context(closing(open_client(options, patience)))
            topic = client.describe_topic(options.topic)
            is_new = found is None and any(place.latest > place.earliest for place in client.offsets(topic.name))
            if options.follow or is_new:
                self._runner.start()  # first: if it fails, the folder is not claimed for an archive
            check = stack.enter_context(store.claimed())
            if (before := load(store)) is not None:
                check_same(before, topic, Catalog(client), store.place, self._layout, options.format)
                values = value_types.kept(self._values, before.settings, topic.name, store.place)
            else:
                values = value_types.begun(self._values, options.schema, client, topic.name, self._progress.say)
                settings = {} if values == BYTES else {"values": msgspec.to_builtins(values)}
                settings |= {"partition_by": self._layout, "format": options.format}
                before = Manifest(topic.name, topic.id, settings=settings)
            table = {"topic": topic.name, "topic_id": topic.id, "layout": self._layout, "file_bytes": self._sizes[0]}
            target = open_target(options.format, options.catalog, store, **table, schema=schema_with(values))
            if is_new and (segments := segments_of(client, topic.name)):
                self._progress.say(sentence(self._layout, segments, *self._sizes))
            given = options.compression, options.durable_only, options.accept_loss, self._layout, options.format
            task = ArchiveTask(server_of(options), store, *given, values=values)
            group = None if options.group is None else GroupProgress(client, options.group)
            self._before = self._manifest = before
            self.push(stack.pop_all())
        return partial(self._archive, client, target, check, task, group)

    @as_command_errors()
    def _round(self) -> None:
        if self._opened is None:
            self._opened = self._open()
        self._opened()

    def _archive(
        self, client: Client, target: Target, check: Check, task: ArchiveTask, group: GroupProgress | None
    ) -> None:
        """Archive up to the end of the topic."""
        options = self._options
        manifest, self._manifest = self._manifest or load(self._store) or self._before, None
        assert manifest is not None
        topic = client.describe_topic(options.topic)
        check_same(manifest, topic, Catalog(client), self._store.place, self._layout, options.format)
        records = sum(p.latest - p.earliest for p in client.offsets(topic.name))
        task = replace(task, rows_max=max(1, self._sizes[0] * records // max(1, topic.size)))
        if manifest.planned:
            self._progress.say(f"first {count_of(len(manifest.planned), 'range')} that an earlier run did not finish")

        def execute(ranges: Sequence[OffsetRange]) -> Sequence[list[ArchivedFile]]:
            offsets = count_of(sum(r.size for r in ranges), "offset")
            self._progress.say(f"{offsets} of {topic.name} in {count_of(len(ranges), 'range')}")
            return self._runner.run(ranges, task, measure=measured)

        plan = partial(next_ranges, server=task.server, range_bytes=self._sizes[1], accept_loss=options.accept_loss)
        log = Catalog(client, durable_only=options.durable_only)
        files, self._manifest = archive(plan, log, manifest, target, execute, check)
        if files and (hint := target.tidy()) is not None and not self._has_hinted:
            self._has_hinted = True
            self._progress.say(hint)
        if rejected := described(self._store, files):
            self._progress.say(f"{rejected}; all are in {self._store.place}/_rejected")
        if group is not None:
            ends = {TopicPartition(topic.name, p): end for p, (_, end) in self._manifest.partitions.items()}
            if (failure := group.commit(ends)) is not None:
                self._progress.say(failure)

    def _print_result(self, before: Manifest) -> bool:
        """Print what was added, by the manifest, which also knows what an interrupted run has done.

        Returns if some of it fits, or there was nothing.
        """
        now, place = self._manifest or load(self._store) or before, self._store.place
        there = {found.path for found in before.files}
        written = [found for found in now.files if found.path not in there]
        records, size = measured(written)
        rejected = sum(found.records for found in now.rejected) - sum(found.records for found in before.rejected)
        missing = sum(found.missing for found in written) - rejected
        added = {"topic": now.topic, "out": place, "files": [found.path for found in written]}
        counts = {"records": records, "missing": missing, "rejected": rejected, "bytes": size}
        partitions = {str(number): list(ends) for number, ends in now.partitions.items()}
        summary = {**added, **counts, "partitions": partitions, "seconds": self._progress.seconds}
        text = f"nothing new in {now.topic}; {place} is unchanged"
        if written:
            without = f", {count_of(missing, 'offset')} without a record" if missing else ""
            without += f", {rejected:,} rejected" if rejected else ""
            text = (
                f"{count_of(records, 'record')} of {now.topic}{without}: {count_of(len(written), 'file')} with "
                f"{bytes_text(size)} in {place}, {self._progress.seconds:.1f} s"
            )
        answer(self._options, {"job": "archive", **summary}, text)
        return bool(records or not rejected)


def run(options: Options, executor: Callable[[Options, Progress], Executor]) -> int:
    """Run the job with tasks on an ``executor``; with ``--follow`` until it is interrupted."""
    if options.trigger is not None and not options.follow:
        raise UsageError("--trigger is how often --follow looks for new records: add --follow")
    if options.catalog is not None and options.format != "iceberg":
        raise UsageError("--catalog names a catalog of Iceberg tables: add --format iceberg")
    with Job(options, executor) as job:
        return job.run()


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

    An error that passes is reported once, with the time since when, and the round tried again; every other error is
    raised. An interrupt abandons the round in progress.
    """
    reported, since = "", ""
    try:
        while True:
            began = now()
            pause = seconds
            try:
                one_round()
            except (SeglogError, OSError, LibraryError) as error:
                if not passes(error):
                    raise
                since = since or datetime.now().astimezone().isoformat(" ", "seconds")
                what = " ".join(re.sub(r"\x1b\S*", "", str(error)).split())  # delta-rs paints trees
                what = what.rstrip(".").replace(", and run the same command again", "")
                if reported != (again := re.sub(r"\d+", "", what)):  # which may say how long it took
                    say(f"{what}; since {since}, trying again until it succeeds")
                reported, pause = again, AGAIN_SECONDS
            else:
                if reported:
                    say("it works again")
                reported = since = ""
            sleep(max(0.0, began + pause - now()))
    except KeyboardInterrupt:
        return


def passes(error: Exception) -> bool:
    """Whether the same may succeed later: broker, registry or store are away, a disk is full; not for a wrong path."""
    if isinstance(error, SeglogError):
        return error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)
    return not isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError)
