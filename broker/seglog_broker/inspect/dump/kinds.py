"""What a path is, and who tells of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from seglog_broker.inspect.dump.directories import (
    dump_log_directory,
    dump_partition,
    is_log_directory,
    is_partition_directory,
    to_the_end,
)
from seglog_broker.inspect.dump.facts import Damage, Fact, Note, PartitionFound
from seglog_broker.inspect.dump.index_files import dump_offset_index, dump_time_index
from seglog_broker.inspect.dump.log_file import dump_log
from seglog_broker.inspect.dump.small_files import SMALL_FILES, dump_small_file, read_snapshot, txn_index_reader
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
    CLEANED_SUFFIX: "output of a compaction that did not finish: a start removes it",
    SWAP_SUFFIX: "output of a compaction: a start puts it in the place of its sources",
}


class NothingToTellError(Exception):
    """There is nothing at a path, or nothing that this tool knows; the message is the sentence to say."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How much is wanted: ``records`` of logs, ``verify`` everything against everything, ``count`` by reading logs."""

    records: bool = False
    verify: bool = False
    count: bool = True


def plain_path(path: str) -> str:
    """A path as it is printed and names are put behind it: with single slashes, and none at its end."""
    return re.sub("/+", "/", path).rstrip("/") or "/."


def facts_of(fs: FileSystem, path: str, wish: Wish) -> Iterator[Fact]:
    """Everything to be told of ``path``, read while it is asked for.

    Raises NothingToTellError before the first fact. A file that cannot be read ends in ``Damage`` naming why.
    """
    path = plain_path(path)
    try:
        is_directory = fs.stat(path).is_directory
        facts = _directory(fs, path, wish) if is_directory else _file(fs, path, wish)
    except (FileNotFoundError, NotADirectoryError):
        raise NothingToTellError(f"there is nothing at {path}") from None
    except OSError as error:
        raise NothingToTellError(f"{path} cannot be looked at: {error.strerror or error}") from error
    return to_the_end(facts, path)


def _directory(fs: FileSystem, path: str, wish: Wish) -> Iterator[Fact]:
    names = fs.list_directory(path)
    if is_partition_directory(names):
        facts = dump_partition(fs, path, count=wish.count)
    elif is_log_directory(fs, path, names):
        facts = dump_log_directory(fs, path, count=wish.count)
    elif names:
        raise NothingToTellError(
            f"{path} is neither a log directory nor a partition: nothing in it has a name that seglog or Kafka gives"
        )
    else:
        raise NothingToTellError(f"{path} is an empty directory")
    return _verified(fs, facts, wish) if wish.verify else facts


def _verified(fs: FileSystem, facts: Iterator[Fact], wish: Wish) -> Iterator[Fact]:
    """The overview, and after each partition what a look into its files finds wrong beyond that."""
    partition: PartitionFound | None = None
    told: set[Fact] = set()
    for fact in facts:
        if isinstance(fact, PartitionFound):
            yield from _look_into(fs, partition, told, wish)
            partition, told = fact, set()
        elif isinstance(fact, Damage | Note):
            told.add(fact)
        yield fact
    yield from _look_into(fs, partition, told, wish)


def _look_into(fs: FileSystem, partition: PartitionFound | None, told: set[Fact], wish: Wish) -> Iterator[Fact]:
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
            facts = facts_of(fs, f"{partition.path}/{name}", wish)
        except NothingToTellError:
            continue  # gone, or nobody's
        yield from (fact for fact in facts if isinstance(fact, Damage) and fact not in told)


def _file(fs: FileSystem, path: str, wish: Wish) -> Iterator[Fact]:
    directory, _, name = path.rpartition("/")
    if name in SMALL_FILES:
        return dump_small_file(fs, path, *SMALL_FILES[name])
    if name == LOCK_FILE:
        raise NothingToTellError(f"{path} is the lock of a log directory; whether it is held cannot be seen in it")
    if name.endswith(TEMPORARY_SUFFIX) and name.removesuffix(TEMPORARY_SUFFIX) in SMALL_FILES:
        type_, _ = SMALL_FILES[name.removesuffix(TEMPORARY_SUFFIX)]
        raise NothingToTellError(f"{path} is a half-written {type_}: its replacement was interrupted, nobody reads it")
    found = parse_segment_file_name(name)
    if found is None:
        raise NothingToTellError(f"{path} has no name that seglog or Kafka gives to a file: nothing can be told of it")
    base, suffix = found
    suffix, left_over = _without_left_over(suffix)
    facts = _segment_file(fs, path, base, suffix, wish)
    if facts is None:
        raise NothingToTellError(f"{path} ends in {suffix}, which seglog does not know")
    return _with_notes(facts, path, left_over, _log_beside(fs, directory, base, path), suffix, wish)


def _segment_file(fs: FileSystem, path: str, base: int, suffix: str, wish: Wish) -> Iterator[Fact] | None:
    if suffix == LOG_SUFFIX:
        return dump_log(fs, path, base, records=wish.records)
    if suffix == TXN_INDEX_SUFFIX:
        return dump_small_file(fs, path, "transaction index", txn_index_reader(base))
    if suffix == SNAPSHOT_SUFFIX:
        return dump_small_file(fs, path, "producer snapshot", read_snapshot)
    if suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        dump = dump_offset_index if suffix == OFFSET_INDEX_SUFFIX else dump_time_index
        beside = _log_beside(fs, path.rpartition("/")[0], base, path) if wish.verify else None
        return dump(fs, path, base, beside)
    return None


def _with_notes(
    facts: Iterator[Fact], path: str, left_over: str | None, beside: str | None, suffix: str, wish: Wish
) -> Iterator[Fact]:
    yield from facts
    if left_over is not None:
        yield Note(path, left_over)
    if wish.verify and beside is None and suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        yield Note(path, "its entries were not compared with the log: there is no .log beside it")


def _log_beside(fs: FileSystem, directory: str, base: int, path: str) -> str | None:
    """The log that an index belongs to: with the same suffix of what is left over, else the plain one."""
    left_over = next((suffix for suffix in _LEFT_OVER if path.endswith(suffix)), "")
    log = segment_file_name(base, LOG_SUFFIX)
    if directory or path.startswith("/"):
        log = f"{directory}/{log}"
    return next((name for name in (f"{log}{left_over}", log) if fs.exists(name)), None)


def _without_left_over(suffix: str) -> tuple[str, str | None]:
    """(the suffix proper, what a suffix such as ``.deleted`` behind it means)."""
    for marker, meaning in _LEFT_OVER.items():
        if suffix.endswith(marker):
            return suffix.removesuffix(marker), meaning
    return suffix, None
