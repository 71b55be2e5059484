"""The input of a job: an archive or a topic, from one position to another, as fixed ranges of offsets.

Both give the same records in the same order: in tasks as Arrow batches (``batches``), to Spark as a frame (``frame``).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from seglog.cli.arguments import Options
from seglog.cli.common import moment_of
from seglog.cli.exits import InputError, UsageError
from seglog.client import Client
from seglog.core.moments import AtOffset, AtTime, Edge, Moment
from seglog_spark.catalog import Catalog
from seglog_spark.jobs.common import store_of
from seglog_spark.offsets import OffsetRange, Offsets, TopicPartition, to_spark
from seglog_spark.options import Subscribe
from seglog_spark.planning import Ends, FindTimes
from seglog_spark.reading import RangeReader
from seglog_spark.schema import COLUMNS, ddl
from seglog_spark.servers import Server, options_of, server_of
from seglog_spark.tables.manifest import ArchivedFile, Manifest, load_whole
from seglog_spark.tables.parquet_files import first_at
from seglog_spark.tables.periods import read_merged
from seglog_spark.tables.stores import Folder, Store


@dataclass(frozen=True, slots=True)
class TopicInput:
    """A topic of a broker; travels to workers."""

    topic: str
    server: Server
    accept_loss: bool = False

    def batches(self, r: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All records of a range, in order; DataLossError for records that are gone."""
        return RangeReader(self.server, tuple(columns), fail_on_data_loss=not self.accept_loss).read(r)

    def frame(self, spark: Any, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Any:
        """The records of some ranges, one a partition, as a DataFrame."""
        if not ranges:
            return _nothing(spark, columns)
        return (
            spark.read.format("seglog")
            .schema(_schema(columns))
            .options(
                **options_of(self.server),
                assign=json.dumps({self.topic: [r.partition for r in ranges]}),
                startingOffsets=json.dumps(to_spark({r.topic_partition: r.start for r in ranges})),
                endingOffsets=json.dumps(to_spark({r.topic_partition: r.end for r in ranges})),
                includeHeaders=str("headers" in columns).lower(),
                failOnDataLoss=str(not self.accept_loss).lower(),
            )
            .load()
        )


@dataclass(frozen=True, slots=True)
class ArchiveInput:
    """An archive that workers see too; ``topic`` is the one that it was made from."""

    topic: str
    store: Store
    files: tuple[ArchivedFile, ...]

    def batches(self, r: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As of a topic."""
        for _, files in groupby(self._files(r), key=_span):
            yield from read_merged(self.store, list(files), columns, r.start, r.end)

    def frame(self, spark: Any, ranges: Sequence[OffsetRange], columns: Sequence[str]) -> Any:
        """As of a topic."""
        if not isinstance(self.store, Folder):
            raise InputError(f"this job reads an archive from a folder, and {self.store.place} is none: copy it to one")
        paths = [str(self.store.path / found.path) for r in ranges for found in self._files(r)]
        if not paths:
            return _nothing(spark, columns)
        wanted = " or ".join(
            f"(partition = {r.partition} and offset >= {r.start} and offset < {r.end})" for r in ranges
        )
        return spark.read.schema(ddl(include_headers=True)).parquet(*paths).where(wanted).select(*columns)

    def find_times(self, times: Offsets) -> Mapping[TopicPartition, int | None]:
        """For a time (epoch ms) by partition, the offset of the first record at or after it."""
        return {partition: self._first_at(partition.partition, time_ms) for partition, time_ms in times.items()}

    def _first_at(self, partition: int, time_ms: int) -> int | None:
        reaching = [
            found
            for found in self.files
            if found.partition == partition and found.max_timestamp is not None and found.max_timestamp >= time_ms
        ]
        for _, files in groupby(reaching, key=_span):
            offsets = [first_at(self.store, found.path, time_ms) for found in files]
            return min(offset for offset in offsets if offset is not None)
        return None

    def _files(self, r: OffsetRange) -> list[ArchivedFile]:
        return [
            found
            for found in self.files
            if found.partition == r.partition and found.start < r.end and found.end > r.start and found.records
        ]


Input = TopicInput | ArchiveInput
"""Records of one topic."""


def _span(found: ArchivedFile) -> tuple[int, int]:
    """The offsets that all files of one range, by date, have in common."""
    return found.start, found.end


def _nothing(spark: Any, columns: Sequence[str]) -> Any:
    return spark.createDataFrame([], _schema(columns))


def _schema(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


@dataclass(frozen=True, slots=True)
class Opened:
    """An input, its partitions with their ends, and its look-up by time."""

    source: Input
    topic_id: str
    ends: Mapping[TopicPartition, Ends]
    find_times: FindTimes

    def ranges(self, options: Options) -> list[OffsetRange]:
        """The range of each partition between ``--from`` and ``--until``; some may be empty.

        UsageError when ``--from`` is after ``--until`` whatever the log holds.
        """
        start, until = (None if text is None else moment_of(text, options) for text in (options.start, options.until))
        if start is not None and until is not None and _is_behind(start, until):
            raise UsageError(f"--from {options.start} is after --until {options.until}: there is nothing between them")
        return spans(self.ends, start, until, self.find_times)


def open_input(options: Options, client: Client | None) -> Opened:
    """The input that ``--in`` or ``--topic`` names; ``client`` is for a topic. Raises InputError, UnknownTopicError."""
    if options.archive is not None:
        store = store_of(options.archive, "--in")
        manifest = load_whole(store)
        if "values" in manifest.settings:
            raise InputError(
                f"{store.place} has values as {manifest.settings['values']['kind']}; records are in an archive of bytes"
            )
        archive = ArchiveInput(manifest.topic, store, manifest.files)
        return Opened(archive, manifest.topic_id, archive_ends(manifest), archive.find_times)
    assert client is not None
    log = Catalog(client)
    topic = client.describe_topic(options.topic)
    ends = log.ends(log.partitions(Subscribe((topic.name,))))
    return Opened(TopicInput(topic.name, server_of(options), options.accept_loss), topic.id, ends, log.find_times)


def archive_ends(manifest: Manifest) -> dict[TopicPartition, Ends]:
    """The offsets that an archive has of each partition."""
    return {TopicPartition(manifest.topic, number): Ends(*ends) for number, ends in manifest.partitions.items()}


def spans(
    ends: Mapping[TopicPartition, Ends], start: Moment | None, until: Moment | None, find_times: FindTimes
) -> list[OffsetRange]:
    """A range for every partition, in order; None stands for its beginning or its end."""
    begins, stops = (_offsets(ends, moment, find_times) for moment in (start, until))
    ranges = []
    for partition, (earliest, latest) in sorted(ends.items()):
        begin = earliest if start is None else begins[partition]
        stop = latest if until is None else stops[partition]
        ranges.append(OffsetRange(*partition, begin, max(begin, stop)))
    return ranges


def _is_behind(start: Moment, until: Moment) -> bool:
    if isinstance(start, AtOffset) and isinstance(until, AtOffset):
        return start.offset > until.offset
    if isinstance(start, AtTime) and isinstance(until, AtTime):
        return start.timestamp > until.timestamp
    return (start, until) == (Edge.LATEST, Edge.EARLIEST)


def _offsets(ends: Mapping[TopicPartition, Ends], moment: Moment | None, find_times: FindTimes) -> Offsets:
    """The offset of ``moment`` in every partition, within its ends; a time later than every record is the end."""
    if isinstance(moment, AtTime):
        found = find_times(dict.fromkeys(ends, moment.timestamp))
        return {p: latest if (at := found[p]) is None else min(at, latest) for p, (_, latest) in ends.items()}
    if isinstance(moment, AtOffset):
        return {p: min(max(moment.offset, earliest), latest) for p, (earliest, latest) in ends.items()}
    return {p: earliest if moment is Edge.EARLIEST else latest for p, (earliest, latest) in ends.items()}
