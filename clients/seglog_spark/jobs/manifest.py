"""The manifest of an archive, ``_manifest.json``: what the archive holds and what is being added to it.

    partitions    partition -> [first offset, offset of the next record]: all between them is in files
    files         the Parquet files, their offsets, records and times, and offsets in them that hold no record
    planned       ranges that a run has begun to write: the next run writes them first, to files of the same names

A range is planned here before its first byte is written, and its file gets its final name only when it is complete. So
whenever a run is killed, a range always has the same files, no two files overlap, and a final name always stands for a
complete file. This module needs neither Spark nor Arrow.
"""

import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from seglog.cli.exits import InputError
from seglog_spark.offsets import OffsetRange

MANIFEST: Final = "_manifest.json"
FORMAT: Final = "seglog-archive"
VERSION: Final = 1
GAPS_MAX: Final = 1000
"""Gaps of a file that are listed: a compacted topic may have as many as records."""

NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name that Hive, and every engine since, gives the folder of null."""

_LOCK: Final = "_lock"

Kind = Literal["archive", "compacted"]
Layout = Literal["date"] | None
"""How the files of an archive are laid out: one for each range, or one for each range and date."""


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

    @property
    def layout(self) -> Layout:
        """The layout of an archive."""
        found: Layout = self.settings.get("partition_by")
        return found

    def with_partitions(self, begins: Mapping[int, int]) -> "Manifest":
        """With these partitions too; nothing of a new one is archived, and it starts at its offset in ``begins``."""
        new = {number: (begin, begin) for number, begin in begins.items() if number not in self.partitions}
        return replace(self, partitions=dict(sorted((dict(self.partitions) | new).items())))

    def with_planned(self, planned: Sequence[OffsetRange]) -> "Manifest":
        """With these ranges as planned: they are about to be written."""
        return replace(self, planned=tuple(planned))

    def with_written(self, written: Sequence[ArchivedFile]) -> "Manifest":
        """With the planned ranges written, to these files."""
        partitions = dict(self.partitions)
        for r in self.planned:
            start, end = partitions.get(r.partition, (r.start, r.start))
            partitions[r.partition] = (min(start, r.start), max(end, r.end))
        files = sorted([*self.files, *written], key=lambda found: (found.partition, found.start, found.path))
        return replace(self, partitions=dict(sorted(partitions.items())), files=tuple(files), planned=())

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": FORMAT, "version": VERSION, **msgspec.to_builtins(self, str_keys=True)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Manifest":
        """The inverse of ``to_json``; KeyError, TypeError or ValueError for anything else."""
        if value["format"] != FORMAT or value["version"] != VERSION:
            raise ValueError(f"{value['format']} in version {value['version']}")
        if absent := set(cls.__slots__).difference(value):
            raise KeyError(*absent)
        return msgspec.convert(value, cls, str_keys=True)


def file_name(r: OffsetRange) -> str:
    """The name of a range's file. Sorted by name, files are in offset order."""
    return f"{r.topic}-{r.partition}/{_span(r)}"


def dated_name(r: OffsetRange, date: str) -> str:
    """The name of the file with a range's records of a date, such as ``2019-01-01``, or of NO_DATE."""
    return f"topic={r.topic}/date={date}/partition={r.partition}/{_span(r)}"


def _span(r: OffsetRange) -> str:
    return f"{r.start:020d}-{r.end:020d}.parquet"


def load(folder: Path) -> Manifest | None:
    """The manifest of the archive in ``folder``; None if the folder is empty or absent.

    Raises InputError for a folder with other content, or a manifest that cannot be read.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if folder.is_dir() and any(entry.name[0] not in "_." for entry in folder.iterdir()):
            raise InputError(
                f"{folder} is not an archive of seglog: it holds other files, and no {MANIFEST}; name a folder that is "
                "empty or not there yet"
            ) from None
        return None
    except NotADirectoryError:
        raise InputError(f"{folder} is a file; an archive is a folder") from None
    try:
        return Manifest.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a manifest that this version can read: {error}") from error


def load_whole(folder: Path) -> Manifest:
    """The manifest of an archive to be read. InputError when there is none, or its compaction is unfinished."""
    found = load(folder) if (folder / MANIFEST).exists() else None
    if found is None:
        raise InputError(f"{folder} holds no archive of seglog: there is no {MANIFEST} in it")
    if found.kind == "compacted" and found.planned:
        raise InputError(f"{folder} holds a compaction that was not finished; run that job again first")
    return found


def save(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically; when this returns it survives a power cut."""
    fields = [f"{json.dumps(name)}: {_lines(value)}" for name, value in manifest.to_json().items()]
    write_whole(folder / MANIFEST, ("{\n" + ",\n".join(fields) + "\n}\n").encode())


def _lines(value: object) -> str:
    """JSON, a tuple with each item on its own line, so that people can read and compare manifests."""
    if isinstance(value, tuple) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably."""
    with whole_file(path) as temporary, temporary.open("wb") as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; renamed to ``path``, durably, when the block ends, removed if the block fails."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make the folder if it is absent. Its name survives a power cut when this returns, whichever run made it."""
    folder.mkdir(parents=True, exist_ok=True)
    _sync(folder.parent)


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed runs."""
    for entry in folder.rglob(".*.tmp"):
        entry.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an archive; the system releases it when this process ends. InputError if another run has it."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise
            raise InputError(f"another run is writing to {folder}; wait until it has ended") from None
        yield
    finally:
        os.close(handle)
