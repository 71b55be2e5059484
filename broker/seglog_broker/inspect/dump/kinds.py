"""The kind of a path, and the reader for it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from seglog_broker.inspect import facts as f
from seglog_broker.inspect.dump import directories
from seglog_broker.inspect.dump.index_files import dump_index
from seglog_broker.inspect.dump.log_file import dump_log
from seglog_broker.inspect.dump.small_files import SMALL_FILES, dump_small_file, read_snapshot, txn_index_reader
from seglog_broker.storage.directory.identity import root_names
from seglog_broker.storage.io.filenames import LOCK_FILE
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol import segment_files

_LEFT_OVER: Final = {
    segment_files.DELETED_SUFFIX: "it is deleted: a start removes it",
    segment_files.CLEANED_SUFFIX: "output of an unfinished compaction: a start removes it",
    segment_files.SWAP_SUFFIX: "output of a compaction: a start puts it in the place of its sources",
}


class NothingToDumpError(Exception):
    """A path does not exist, or is not a file of seglog or Kafka; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """``records`` shows the records of logs, ``verify`` compares files, ``count`` reads logs to count."""

    records: bool = False
    verify: bool = False
    count: bool = True


def plain_path(path: str) -> str:
    """A path with single slashes, and none at its end, so that names can be appended."""
    return re.sub("/+", "/", path).rstrip("/") or "/."


def facts_of(fs: FileSystem, path: str, options: DumpOptions) -> Iterator[f.Fact]:
    """The facts of ``path``, which is read as they are taken.

    Raises NothingToDumpError at once. If a file cannot be read later, the last fact is a ``Damage``.
    """
    path = plain_path(path)
    try:
        is_directory = fs.stat(path).is_directory
        facts = _directory(fs, path, options) if is_directory else _file(fs, path, options)
    except (FileNotFoundError, NotADirectoryError):
        raise NothingToDumpError(f"{path} does not exist") from None
    except OSError as error:
        raise NothingToDumpError(f"{path} cannot be read: {error.strerror or error}") from error
    return directories.with_read_errors(facts, path)


def _directory(fs: FileSystem, path: str, options: DumpOptions) -> Iterator[f.Fact]:
    names = root_names(fs, path)
    if directories.is_log_directory(fs, path, names):
        facts = directories.dump_log_directory(fs, path, count=options.count)
    elif directories.is_partition_directory(names):
        facts = directories.dump_partition(fs, path, count=options.count)
    elif names:
        raise NothingToDumpError(
            f"{path} is neither a log directory nor a partition: it holds no file of seglog or Kafka"
        )
    else:
        raise NothingToDumpError(f"{path} is an empty directory")
    return _verified(fs, facts, options) if options.verify else facts


def _verified(fs: FileSystem, facts: Iterator[f.Fact], options: DumpOptions) -> Iterator[f.Fact]:
    """The facts of the overview, and after each partition the damage found by reading all of its files."""
    partition: f.PartitionFound | None = None
    shown: set[f.Fact] = set()
    for fact in facts:
        if isinstance(fact, f.PartitionFound):
            yield from _further_damage(fs, partition, shown, options)
            partition, shown = fact, set()
        elif isinstance(fact, f.Damage | f.Note):
            shown.add(fact)
        yield fact
    yield from _further_damage(fs, partition, shown, options)


def _further_damage(
    fs: FileSystem, partition: f.PartitionFound | None, shown: set[f.Fact], options: DumpOptions
) -> Iterator[f.Fact]:
    if partition is None:
        return
    try:
        names = fs.list_directory(partition.path)
    except FileNotFoundError:
        return
    for name in names:
        found = segment_files.parse_segment_file_name(name)
        if found is None or _left_over(found[1]):
            continue
        try:
            facts = facts_of(fs, f"{partition.path}/{name}", options)
        except NothingToDumpError:
            continue  # removed meanwhile, or not a file of seglog or Kafka
        yield from (fact for fact in facts if isinstance(fact, f.Damage) and fact not in shown)


def _file(fs: FileSystem, path: str, options: DumpOptions) -> Iterator[f.Fact]:
    """The facts of one file, by its name."""
    name = path.rpartition("/")[2]
    if name in SMALL_FILES:
        return dump_small_file(fs, path, *SMALL_FILES[name])
    if name == LOCK_FILE:
        raise NothingToDumpError(f"{path} is the lock of a log directory; it does not show whether it is held")
    if (replaced := name.removesuffix(segment_files.TEMPORARY_SUFFIX)) in SMALL_FILES:
        type_, _ = SMALL_FILES[replaced]
        raise NothingToDumpError(f"{path} is an unfinished replacement of the {type_}, and is not used")
    found = segment_files.parse_segment_file_name(name)
    if found is None:
        raise NothingToDumpError(f"{path} is not a file of seglog or Kafka, by its name")
    base, suffix = found
    left_over = _left_over(suffix)
    suffix = suffix.removesuffix(left_over)
    notes = [f.Note(path, _LEFT_OVER[left_over])] if left_over else []
    awaited = path.removesuffix(name) + segment_files.segment_file_name(base, segment_files.AWAITED_SUFFIX)
    if suffix in (segment_files.LOG_SUFFIX, segment_files.AWAITED_SUFFIX) and fs.exists(awaited):
        raise NothingToDumpError(f"{path} is not there yet: {directories.AWAITED}")
    if suffix == segment_files.LOG_SUFFIX:
        facts = dump_log(fs, path, base, records=options.records)
    elif suffix == segment_files.TXN_INDEX_SUFFIX:
        facts = dump_small_file(fs, path, "transaction index", txn_index_reader(base))
    elif suffix == segment_files.SNAPSHOT_SUFFIX:
        facts = dump_small_file(fs, path, "producer snapshot", read_snapshot)
    elif suffix in (segment_files.OFFSET_INDEX_SUFFIX, segment_files.TIME_INDEX_SUFFIX):
        log = path.removesuffix(name) + segment_files.segment_file_name(base, segment_files.LOG_SUFFIX)
        may_compare = options.verify and not fs.exists(awaited)
        beside = next(filter(fs.exists, (f"{log}{left_over}", log)), None) if may_compare else None
        facts = dump_index(fs, path, base, beside, suffix)
        if options.verify and beside is None:
            notes.append(f.Note(path, "its entries were not compared with the log: there is no .log beside it"))
    else:
        raise NothingToDumpError(f"{path} ends in {suffix}, which seglog does not know")
    return chain(facts, notes)


def _left_over(suffix: str) -> str:
    """The end of ``suffix`` that marks a file to be removed or installed, such as ``.deleted``; else empty."""
    return next((marker for marker in _LEFT_OVER if suffix.endswith(marker)), "")
