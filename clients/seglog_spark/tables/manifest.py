"""The manifest of an archive, ``_manifest.json``: what the archive holds and what is being added to it.

    partitions    partition -> [first offset, offset of the next record]: all between them is in files
    files         the Parquet files, their offsets, records and times, and offsets in them that hold no record
    rejected      likewise, of records whose values do not fit; the files beside them have gaps there
    planned       ranges that a run has begun to write: the next run writes them first, to files of the same names

A range is planned here before its first byte is written, and its file gets its final name only when it is complete. So
whenever a run is killed, a range always has the same files, no two files overlap, and a final name always stands for a
complete file. This module needs neither Spark nor Arrow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from seglog.cli.exits import InputError
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.stores import Store

MANIFEST: Final = "_manifest.json"
FORMAT: Final = "seglog-archive"
VERSION: Final = 1
GAPS_MAX: Final = 1000
"""Gaps of a file that are listed: a compacted topic may have as many as records."""

REJECTED: Final = "_rejected/"
"""The folder of records whose values do not fit."""

NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive, and every engine since, gives the folder of null."""

Kind = Literal["archive", "compacted"]
Layout = Literal["year", "month", "date", "hour"] | None
"""How the files of an archive are laid out: one for each range, or some for each range and period of UTC."""

Format = Literal["parquet", "delta", "iceberg"]
"""What an archive is for its readers. The log of a table counts, not what the manifest says of files."""


class FileGap(NamedTuple):
    """Offsets from ``start`` to ``end`` (exclusive) without a record, and why: ``reason``, such as "compacted"."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file of the records from ``start`` to ``end`` (exclusive) of a partition; by date, of one date.

    ``path`` is relative to the archive, ``size`` in bytes, timestamps in epoch ms, None where no record has one.
    ``missing`` counts the offsets without a record, and ``gaps`` lists them, None for more than GAPS_MAX. Of several
    files with the same offsets, by date, the first has both for all.
    """

    path: str
    partition: int
    start: int
    end: int
    records: int
    size: int
    min_timestamp: int | None
    max_timestamp: int | None
    missing: int
    gaps: tuple[FileGap, ...] | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """An archive of one topic. ``partitions``: the offsets that are complete; ``settings``: the options of its job."""

    topic: str
    topic_id: str
    kind: Kind = "archive"
    settings: Mapping[str, Any] = field(default_factory=dict)
    partitions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    files: tuple[ArchivedFile, ...] = ()
    planned: tuple[OffsetRange, ...] = ()
    rejected: tuple[ArchivedFile, ...] = ()

    @property
    def layout(self) -> Layout:
        """The layout of an archive."""
        return cast("Layout", self.settings.get("partition_by"))

    @property
    def format(self) -> Format:
        """What the archive is for its readers."""
        return cast("Format", self.settings.get("format", "parquet"))

    def with_partitions(self, begins: Mapping[int, int]) -> "Manifest":
        """With these partitions too; nothing of a new one is archived, and it starts at its offset in ``begins``."""
        new = {number: (begin, begin) for number, begin in begins.items() if number not in self.partitions}
        return replace(self, partitions=dict(sorted((dict(self.partitions) | new).items())))

    def with_table(self, ends: Mapping[int, int]) -> "Manifest":
        """With what a table has by its own log, up to ``ends``: which may be a commit more, or less after a rollback.

        Ranges that were planned behind other ends are dropped: the table has them, or lacks what comes before.
        """
        there = {p: (start, max(start, ends.get(p, start))) for p, (start, _) in self.partitions.items()}
        if there == self.partitions:
            return self
        files, rejected = (
            tuple(found for found in all_ if found.end <= there[found.partition][1])
            for all_ in (self.files, self.rejected)
        )
        return replace(self, partitions=there, files=files, planned=(), rejected=rejected)

    def with_written(self, written: Sequence[ArchivedFile]) -> "Manifest":
        """With the planned ranges written, to these files."""
        partitions = dict(self.partitions)
        for r in self.planned:
            start, end = partitions.get(r.partition, (r.start, r.start))
            partitions[r.partition] = (min(start, r.start), max(end, r.end))
        written = sorted([*self.files, *self.rejected, *written], key=lambda f: (f.partition, f.start, f.path))
        files = tuple(found for found in written if not is_rejected(found))
        rejected = tuple(filter(is_rejected, written))
        return replace(self, partitions=dict(sorted(partitions.items())), files=files, planned=(), rejected=rejected)

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": FORMAT, "version": VERSION, **msgspec.to_builtins(self, str_keys=True)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Manifest":
        """The inverse of ``to_json``; KeyError, TypeError or ValueError for anything else."""
        if value["format"] != FORMAT or value["version"] != VERSION:
            raise ValueError(f"{value['format']} in version {value['version']}")
        if absent := set(cls.__slots__).difference(value, ["rejected"]):
            raise KeyError(*absent)
        return msgspec.convert(value, cls, str_keys=True)


def file_name(r: OffsetRange) -> str:
    """The name of a range's file. Sorted by name, files are in offset order.

    Readers pass over folders whose names begin with ``_`` or ``.``, as those of some topics do.
    """
    return f"{'topic' if r.topic[0] in '_.' else ''}{r.topic}-{r.partition}/{_span(r)}"


def rejected_name(r: OffsetRange) -> str:
    """The name of the file with a range's records whose values do not fit."""
    return f"{REJECTED}{file_name(r).removesuffix('.parquet')}.rejected"


def is_rejected(found: ArchivedFile) -> bool:
    """Whether a file has such records."""
    return found.path.startswith(REJECTED)


def measured(files: Sequence[ArchivedFile]) -> tuple[int, int]:
    """The records and bytes of files."""
    return sum(found.records for found in files), sum(found.size for found in files)


def period_name(
    r: OffsetRange, layout: str, period: str, number: int | None = None, table_format: Format = "parquet"
) -> str:
    """The name of a file with a range's records of a period, such as ``2019-01`` of "month", or of NO_DATE.

    ``number`` is its place among several. Readers of tables take no columns from folders but those that the table is
    partitioned by, and some stop at others.
    """
    if table_format != "parquet":
        return f"{layout}={period}/{r.topic}-{r.partition}-{_span(r, number)}"
    return f"topic={r.topic}/{layout}={period}/partition={r.partition}/{_span(r, number)}"


def _span(r: OffsetRange, number: int | None = None) -> str:
    return f"{r.start:020d}-{r.end:020d}{'' if number is None else f'-{number:05d}'}.parquet"


def load(store: Store) -> Manifest | None:
    """The manifest of the archive in ``store``; None if that is empty or absent.

    Raises InputError for other content, or a manifest that cannot be read.
    """
    try:
        text = store.read(MANIFEST)
    except FileNotFoundError:
        if any(name[0] not in "_." for name in store.names()):
            raise InputError(
                f"{store.place} is not an archive of seglog: it holds other files, and no {MANIFEST}; a new archive "
                "needs a folder that is empty or not there yet"
            ) from None
        return None
    except NotADirectoryError:
        raise InputError(f"{store.place} is a file; an archive is a folder") from None
    try:
        return Manifest.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{store.place}/{MANIFEST} is not a manifest that this version can read: {error}") from error


def load_whole(store: Store) -> Manifest:
    """The manifest of an archive to be read. InputError when there is none, or its compaction is unfinished."""
    if (found := load(store)) is None:
        raise InputError(f"{store.place} holds no archive of seglog: there is no {MANIFEST} in it")
    if found.format != "parquet":
        raise InputError(
            f"{store.place} is a table of {found.format.title()}, which knows its files itself; this job reads "
            "archives of Parquet files, and the topic"
        )
    if found.kind == "compacted" and found.planned:
        raise InputError(f"{store.place} holds a compaction that was not finished; run that job again first")
    return found


def save(store: Store, manifest: Manifest) -> None:
    """Replace the manifest atomically; when this returns it survives a power cut."""
    fields = [f"{json.dumps(name)}: {_lines(value)}" for name, value in manifest.to_json().items()]
    store.write(MANIFEST, ("{\n" + ",\n".join(fields) + "\n}\n").encode())


def _lines(value: object) -> str:
    """JSON, a tuple with each item on its own line, so that people can read and compare manifests."""
    if isinstance(value, tuple) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
