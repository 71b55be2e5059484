"""The kind of a path, and the reader for it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from seglog_broker.inspect.dump.directories import (
    dump_log_directory,
    dump_partition,
    is_log_directory,
    is_partition_directory,
    with_read_errors,
)
from seglog_broker.inspect.dump.index_files import dump_index
from seglog_broker.inspect.dump.log_file import dump_log
from seglog_broker.inspect.dump.small_files import SMALL_FILES, dump_small_file, read_snapshot, txn_index_reader
from seglog_broker.inspect.facts import Damage, Fact, Note, PartitionFound
from seglog_broker.storage.io.filenames import LOCK_FILE
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)

_LEFT_OVER: Final = {
    DELETED_SUFFIX: "it is deleted: a start removes it",
    CLEANED_SUFFIX: "output of an unfinished compaction: a start removes it",
    SWAP_SUFFIX: "output of a compaction: a start puts it in the place of its sources",
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


def facts_of(fs: FileSystem, path: str, options: DumpOptions) -> Iterator[Fact]:
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
    return with_read_errors(facts, path)


def _directory(fs: FileSystem, path: str, options: DumpOptions) -> Iterator[Fact]:
    names = fs.list_directory(path)
    if is_partition_directory(names):
        facts = dump_partition(fs, path, count=options.count)
    elif is_log_directory(fs, path, names):
        facts = dump_log_directory(fs, path, count=options.count)
    elif names:
        raise NothingToDumpError(
            f"{path} is neither a log directory nor a partition: it holds no file of seglog or Kafka"
        )
    else:
        raise NothingToDumpError(f"{path} is an empty directory")
    return _verified(fs, facts, options) if options.verify else facts


def _verified(fs: FileSystem, facts: Iterator[Fact], options: DumpOptions) -> Iterator[Fact]:
    """The facts of the overview, and after each partition the damage found by reading all of its files."""
    partition: PartitionFound | None = None
    shown: set[Fact] = set()
    for fact in facts:
        if isinstance(fact, PartitionFound):
            yield from _further_damage(fs, partition, shown, options)
            partition, shown = fact, set()
        elif isinstance(fact, Damage | Note):
            shown.add(fact)
        yield fact
    yield from _further_damage(fs, partition, shown, options)


def _further_damage(
    fs: FileSystem, partition: PartitionFound | None, shown: set[Fact], options: DumpOptions
) -> Iterator[Fact]:
    if partition is None:
        return
    try:
        names = fs.list_directory(partition.path)
    except FileNotFoundError:
        return
    for name in names:
        found = parse_segment_file_name(name)
        if found is None or _without_left_over(found[1])[1] is not None:
            continue
        try:
            facts = facts_of(fs, f"{partition.path}/{name}", options)
        except NothingToDumpError:
            continue  # removed meanwhile, or not a file of seglog or Kafka
        yield from (fact for fact in facts if isinstance(fact, Damage) and fact not in shown)


def _file(fs: FileSystem, path: str, options: DumpOptions) -> Iterator[Fact]:
    directory, _, name = path.rpartition("/")
    if name in SMALL_FILES:
        return dump_small_file(fs, path, *SMALL_FILES[name])
    if name == LOCK_FILE:
        raise NothingToDumpError(f"{path} is the lock of a log directory; it does not show whether it is held")
    if name.endswith(TEMPORARY_SUFFIX) and name.removesuffix(TEMPORARY_SUFFIX) in SMALL_FILES:
        type_, _ = SMALL_FILES[name.removesuffix(TEMPORARY_SUFFIX)]
        raise NothingToDumpError(f"{path} is an unfinished replacement of the {type_}, and is not used")
    found = parse_segment_file_name(name)
    if found is None:
        raise NothingToDumpError(f"{path} is not a file of seglog or Kafka, by its name")
    base, suffix = found
    suffix, left_over = _without_left_over(suffix)
    facts = _segment_file(fs, path, base, suffix, options)
    if facts is None:
        raise NothingToDumpError(f"{path} ends in {suffix}, which seglog does not know")
    return _with_notes(facts, path, left_over, _log_beside(fs, directory, base, path), suffix, options)


def _segment_file(fs: FileSystem, path: str, base: int, suffix: str, options: DumpOptions) -> Iterator[Fact] | None:
    if suffix == LOG_SUFFIX:
        return dump_log(fs, path, base, records=options.records)
    if suffix == TXN_INDEX_SUFFIX:
        return dump_small_file(fs, path, "transaction index", txn_index_reader(base))
    if suffix == SNAPSHOT_SUFFIX:
        return dump_small_file(fs, path, "producer snapshot", read_snapshot)
    if suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        beside = _log_beside(fs, path.rpartition("/")[0], base, path) if options.verify else None
        return dump_index(fs, path, base, beside, suffix)
    return None


def _with_notes(
    facts: Iterator[Fact], path: str, left_over: str | None, beside: str | None, suffix: str, options: DumpOptions
) -> Iterator[Fact]:
    yield from facts
    if left_over is not None:
        yield Note(path, left_over)
    if options.verify and beside is None and suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        yield Note(path, "its entries were not compared with the log: there is no .log beside it")


def _log_beside(fs: FileSystem, directory: str, base: int, path: str) -> str | None:
    """The log of an index: the one with the same left-over suffix, such as ``.deleted``, else the plain one."""
    left_over = next((suffix for suffix in _LEFT_OVER if path.endswith(suffix)), "")
    log = segment_file_name(base, LOG_SUFFIX)
    if directory or path.startswith("/"):
        log = f"{directory}/{log}"
    return next((name for name in (f"{log}{left_over}", log) if fs.exists(name)), None)


def _without_left_over(suffix: str) -> tuple[str, str | None]:
    """(the suffix itself, the meaning of a left-over suffix such as ``.deleted`` after it)."""
    for marker, meaning in _LEFT_OVER.items():
        if suffix.endswith(marker):
            return suffix.removesuffix(marker), meaning
    return suffix, None
