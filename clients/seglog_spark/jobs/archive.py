"""``seglog spark archive``: a topic as Parquet files of known offsets; every run adds to them, once or repeatedly."""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from seglog.cli import INTERRUPTED, main
from seglog.cli.arguments import Options
from seglog.cli.exits import OK, InputError, UsageError
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
from seglog_spark.jobs.by_date import find_by_date, remove_notes, write_by_date
from seglog_spark.jobs.manifest import ArchivedFile, Layout, Manifest, load, locked, make_folder, save, sweep
from seglog_spark.jobs.parquet_files import SCHEMA, find_file, write_file
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.running import Runner, folder_of, open_client, print_result
from seglog_spark.offsets import OffsetRange, TopicPartition, to_spark
from seglog_spark.options import Subscribe, parse_read_options
from seglog_spark.planning import DataLossError
from seglog_spark.plans import plan_batch
from seglog_spark.reading import RangeReader
from seglog_spark.servers import Server, server_of

TRIGGER_SECONDS: Final = 60.0
"""Seconds between the beginnings of two rounds; the default of ``--trigger``."""

Execute = Callable[[Sequence[OffsetRange]], Sequence[Sequence[ArchivedFile]]]
"""Makes the files of every range."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plans the next part of a topic, in ranges of at most ``file_bytes``."""

    server: Server
    topic: str
    file_bytes: int
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
        read = replace(parse_read_options(options, "batch"), target_task_bytes=self.file_bytes)
        ranges = plan_batch(log, read, Wanted())
        first = {r.partition: r.start for r in reversed(ranges)}
        # Offsets that are gone are a gap in the first file, so that the files leave no gap between them.
        return [r._replace(start=begins[r.topic_partition]) if r.start == first[r.partition] else r for r in ranges]


def check_same(manifest: Manifest, topic: TopicDescription, log: Log, folder: Path, layout: Layout = None) -> None:
    """Raise InputError or DataLossError when the archive is of another topic, or has another layout."""
    if manifest.kind != "archive" or manifest.topic != topic.name:
        kind = "the archive" if manifest.kind == "archive" else "a compaction"
        raise InputError(
            f"{folder} holds {kind} of {manifest.topic}; an archive of {topic.name} needs a folder of its own"
        )
    if manifest.topic_id != topic.id:
        raise InputError(
            f"{folder} holds the archive of an earlier topic {topic.name}, which was deleted; the new one needs a "
            "folder of its own"
        )
    if manifest.layout != layout:
        what, how = ("is not", "leave out") if manifest.layout is None else ("is", "add")
        raise InputError(
            f"the archive in {folder} {what} laid out by date, and stays as it was begun; {how} --partition-by date, "
            "or name another folder"
        )
    for partition, ends in log.ends(log.partitions(Subscribe((topic.name,)))).items():
        _, end = manifest.partitions.get(partition.partition, (0, 0))
        if ends.latest < end:
            raise DataLossError(
                f"{folder} has {partition} up to offset {end}, and its log ends at {ends.latest}: it was truncated, "
                "and may hold other records under these offsets by now; archive it elsewhere"
            )


def archive(plan: Plan, log: Log, manifest: Manifest, folder: Path, execute: Execute) -> list[ArchivedFile]:
    """Finish the ranges of an interrupted run, then archive up to the topic's end. Returns the files written.

    When nothing is new, nothing is executed and no file changes.
    """
    begins = log.ends(log.partitions(Subscribe((plan.topic,))))
    known = manifest.with_partitions({p.partition: earliest for p, (earliest, _) in begins.items()})
    if known != manifest:
        save(folder, known)
    begun, manifest = _write(known, folder, execute)
    new, _ = _write(manifest.with_planned(plan.next_ranges(log, manifest)), folder, execute)
    return [*begun, *new]


def _write(manifest: Manifest, folder: Path, execute: Execute) -> tuple[list[ArchivedFile], Manifest]:
    if not manifest.planned:
        return [], manifest
    save(folder, manifest)
    files = list(chain.from_iterable(execute(manifest.planned)))
    manifest = manifest.with_written(files)
    save(folder, manifest)
    remove_notes(folder)
    return files, manifest


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """Writes the files of ranges, on a Spark worker."""

    server: Server
    folder: Path
    compression: str
    durable_only: bool
    accept_loss: bool
    layout: Layout = None

    def __call__(self, r: OffsetRange) -> list[ArchivedFile]:
        """The files of a range, written now unless a killed run has written them."""
        found = self._find(r)
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
        if self.layout == "date":
            return write_by_date(self.folder, r, reader.read(r), self.compression, met)
        return [write_file(self.folder, r, reader.read(r), self.compression, met)]

    def _find(self, r: OffsetRange) -> list[ArchivedFile]:
        if self.layout == "date":
            return find_by_date(self.folder, r)
        found = find_file(self.folder, r)
        return [] if found is None else [found]


def run(options: Options) -> int:
    """Run the job; with ``--follow`` until it is interrupted."""
    if options.trigger is not None and not options.follow:
        raise UsageError("--trigger is how often --follow looks for new records: add --follow")
    folder = folder_of(options.out, "--out")
    load(folder)  # an error about the folder comes before the broker is asked
    progress = Progress("archive")
    # With --follow a lost broker is reported; a single run waits for it silently.
    patience = CONNECT_SECONDS if options.follow else PATIENCE_SECONDS
    with ExitStack() as stack:
        if options.follow:
            stack.enter_context(handled(signal.default_int_handler, signal.SIGTERM))  # which ends services
        client = stack.enter_context(closing(open_client(options, patience)))
        topic = client.describe_topic(options.topic)
        runner = stack.enter_context(Runner(options, progress))
        is_new = load(folder) is None and any(place.latest > place.earliest for place in client.offsets(topic.name))
        if options.follow or is_new:
            runner.start()  # first: if it fails, the folder is not claimed for an archive
        make_folder(folder)
        stack.enter_context(locked(folder))
        sweep(folder)
        before = load(folder) or _empty(options, topic)

        group = None if options.group is None else GroupProgress(client, options.group)
        one_round = partial(_round, options, client, folder, runner, progress, group)
        if options.follow:
            seconds = TRIGGER_SECONDS if options.trigger is None else options.trigger
            progress.say(f"following {topic.name}, every {seconds:g} s, until interrupted")
            follow(one_round, seconds, progress.say)
        else:
            one_round()
        _print_result(options, folder, before, progress)
    return INTERRUPTED if options.follow else OK


def _empty(options: Options, topic: TopicDescription) -> Manifest:
    settings = {} if options.partition_by is None else {"partition_by": options.partition_by}
    return Manifest(topic.name, topic.id, settings=settings)


def _round(
    options: Options, client: Client, folder: Path, runner: Runner, progress: Progress, group: GroupProgress | None
) -> None:
    """Archive up to the end of the topic."""
    topic = client.describe_topic(options.topic)
    manifest = load(folder) or _empty(options, topic)
    check_same(manifest, topic, Catalog(client), folder, options.partition_by)
    file_bytes = options.target_file_mb * 1024 * 1024
    plan = Plan(server_of(options), topic.name, file_bytes, options.accept_loss)
    task = ArchiveTask(
        server_of(options), folder, options.compression, options.durable_only, options.accept_loss, options.partition_by
    )
    if manifest.planned:
        progress.say(f"first {count_of(len(manifest.planned), 'range')} that an earlier run did not finish")

    def execute(ranges: Sequence[OffsetRange]) -> list[list[ArchivedFile]]:
        offsets = count_of(sum(r.size for r in ranges), "offset")
        progress.say(f"{offsets} of {topic.name} in {count_of(len(ranges), 'range')}")
        return runner.run(ranges, task, measure=_measured)

    archive(plan, Catalog(client, durable_only=options.durable_only), manifest, folder, execute)
    if group is not None:
        now = load(folder) or manifest
        ends = {TopicPartition(now.topic, number): end for number, (_, end) in now.partitions.items()}
        if (sentence := group.commit(ends)) is not None:  # a failure is only reported
            progress.say(sentence)


def _measured(files: Sequence[ArchivedFile]) -> tuple[int, int]:
    return sum(found.records for found in files), sum(found.size for found in files)


def _print_result(options: Options, folder: Path, before: Manifest, progress: Progress) -> None:
    """Print what was added since ``before``, by the manifest, which also knows what an interrupted run has done."""
    there = {found.path for found in before.files}
    now = load(folder) or before
    written = [found for found in now.files if found.path not in there]
    records, size = sum(found.records for found in written), sum(found.size for found in written)
    missing = sum(found.missing for found in written)
    summary = {
        "topic": now.topic,
        "out": str(folder),
        "files": [found.path for found in written],
        "records": records,
        "missing": missing,
        "bytes": size,
        "partitions": {str(number): list(ends) for number, ends in now.partitions.items()},
        "seconds": progress.seconds,
    }
    sentence = f"nothing new in {now.topic}; {folder} is unchanged"
    if written:
        without = f", {count_of(missing, 'offset')} without a record" if missing else ""
        sentence = (
            f"{count_of(records, 'record')} of {now.topic}{without}: {count_of(len(written), 'file')} with "
            f"{bytes_text(size)} in {folder}, {progress.seconds:.1f} s"
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


if __name__ == "__main__":
    sys.exit(main(["spark", "archive", *sys.argv[1:]]))
