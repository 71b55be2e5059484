"""Where a backup is taken from: the snapshot that a running broker makes, or a log directory that no broker uses."""

import errno
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.store import BackupError
from seglog_broker.config import BrokerConfig
from seglog_broker.runtime import unix_sockets
from seglog_broker.storage.directory.identity import check_format, decode_properties
from seglog_broker.storage.directory.kafka_metadata import METADATA_DIRECTORY
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.directory.snapshot import (
    ANSWER_BYTES_MAX,
    MalformedSnapshotDirectoryError,
    NoSnapshotError,
    SnapshotWriter,
    decode_answer,
    read_snapshot,
)
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_broker.texts import counted
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT
from seglog_protocol.errors import LogDirectoryError

_NOT_SERVED: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENXIO})
"""Errors of ``connect`` where no broker listens."""

_SMALL_FILES: Final = frozenset({filenames.PARTITION_METADATA_FILE, PARTITION_STATE_FILE, LEADER_EPOCH_CHECKPOINT})
_SEGMENT_SUFFIXES: Final = frozenset({*names.SEGMENT_SUFFIXES, names.SNAPSHOT_SUFFIX})


class SourceFile(NamedTuple):
    """The first ``size`` bytes of a file, by its path in the source."""

    path: str
    size: int
    mtime_ms: int
    inode: int


@dataclass(frozen=True, slots=True)
class Source:
    """Files that do not change, but for more at the end of some, below ``path``."""

    path: str
    cluster_id: str
    directory_id: str
    topics: tuple[Topic, ...]
    files: tuple[SourceFile, ...]
    problems: tuple[str, ...]


@contextmanager
def open_source(fs: FileSystem, clock: Clock, path: str, config: BrokerConfig) -> Iterator[Source]:
    """The source for a backup of the log directory ``path``, until the block ends.

    A running broker is asked. Where none runs the directory is locked while second names of its files are made; if its
    broker was killed, it is recovered first, as a start of the broker would do it, by ``config``. Raises BackupError,
    LogDirectoryError, OSError.
    """
    if not fs.exists(f"{path}/{filenames.REGISTRY_FILE}"):
        raise BackupError(f"{path} is no log directory of seglog: it has no {filenames.REGISTRY_FILE}")
    check_format(fs, path)
    try:
        connection = unix_sockets.connect(f"{path}/{filenames.BACKUP_SOCKET}")
    except PermissionError as error:
        raise BackupError(
            f"the broker on {path} gives a snapshot to its own user alone: be that user, or root"
        ) from error
    except OSError as error:
        if error.errno not in _NOT_SERVED:
            raise
        yield from _stopped(fs, clock, path, config)
        return
    with closing(connection), connection.makefile("rb") as answers:
        line = answers.readline(ANSWER_BYTES_MAX)
        if not line:
            raise BackupError(f"the broker on {path} ended the connection: it stops, or serves another user")
        try:
            snapshot = f"{path}/{decode_answer(line)}"
            lengths, problems = read_snapshot(fs, snapshot)
            source = _source(fs, snapshot, lengths, problems)
        except (NoSnapshotError, MalformedSnapshotDirectoryError) as error:
            raise BackupError(f"the broker on {path} made no snapshot: {error}") from error
        try:
            yield source
        except (OSError, BackupError, DestinationError) as error:  # the last where the destination opens the files
            if not fs.exists(snapshot):
                raise BackupError(_why_ended(path, answers.readline(ANSWER_BYTES_MAX))) from error
            raise


def _why_ended(path: str, line: bytes) -> str:
    try:
        decode_answer(line)
    except NoSnapshotError as error:
        if line:
            return f"the broker on {path} has given up the snapshot: {error}"
    return f"the broker on {path} ended while the backup was taken: run it again"


def _stopped(fs: FileSystem, clock: Clock, path: str, config: BrokerConfig) -> Iterator[Source]:
    if not {filenames.CLEAN_SHUTDOWN_FILE, filenames.CLEAN_PARTITIONS_FILE}.intersection(fs.list_directory(path)):
        open_log_directory(fs, clock, config, path).close()
    try:
        lock = DirectoryLock(fs, path)
    except LogDirectoryError as error:
        raise BackupError(
            f"{path} is in use by {error.holder}, without a socket for backups in it: a broker is of an older version, "
            "or could not make one (its log says backup_socket_unavailable); stop it, or start it anew"
        ) from error
    with ExitStack() as held:
        held.callback(lock.release)
        source = _source(fs, path, {}, [])
        writer = SnapshotWriter(fs, path)
        with suppress(OSError):  # without second names, or room for them, the directory stays locked
            held.callback(writer.hold().release)
            held.callback(_remove, writer)
            writer.add_files(file.path for file in source.files)
            source = replace(source, path=writer.path)
            lock.release()
        yield source


def _remove(writer: SnapshotWriter) -> None:
    with suppress(OSError):  # the next start removes it
        writer.remove()


def _source(fs: FileSystem, path: str, lengths: dict[str, int], problems: list[str]) -> Source:
    registry = TopicRegistry(fs, f"{path}/{filenames.REGISTRY_FILE}")
    registry.load()
    topics = tuple(registry.topics.values())
    identity = decode_properties(read_file(fs, f"{path}/{filenames.META_PROPERTIES_FILE}"))
    wanted = [name for name in fs.list_directory(path) if name in filenames.REPLACED_FILES]
    numbered = ((topic.name, number) for topic in topics for number in range(topic.partitions))
    for directory in (filenames.partition_directory_name(name, number) for name, number in numbered):
        if fs.exists(f"{path}/{directory}"):
            found = fs.list_directory(f"{path}/{directory}")
            awaited = sum(name.endswith(names.AWAITED_SUFFIX) for name in found)
            if awaited:
                raise BackupError(
                    f"{counted(awaited, 'segment')} of {directory} are still to come from the backup that it was begun "
                    "from, and cannot be copied yet: run this again when `seglog ping` says that all is there"
                )
            wanted += [f"{directory}/{name}" for name in found if _is_wanted(name)]
        else:
            problems.append(f"{directory} is not there")
    if fs.exists(f"{path}/{METADATA_DIRECTORY}"):
        wanted += [f"{METADATA_DIRECTORY}/{name}" for name in fs.list_directory(f"{path}/{METADATA_DIRECTORY}")]
    files = []
    for name in wanted:
        facts = fs.stat(f"{path}/{name}")
        if not facts.is_directory:
            files.append(SourceFile(name, lengths.get(name, facts.size), facts.mtime_ms, facts.inode))
    return Source(
        path, identity.get("cluster.id", ""), identity.get("directory.id", ""), topics, tuple(files), tuple(problems)
    )


def _is_wanted(name: str) -> bool:
    parsed = names.parse_segment_file_name(name)
    return name in _SMALL_FILES if parsed is None else parsed[1].removesuffix(names.SWAP_SUFFIX) in _SEGMENT_SUFFIXES
