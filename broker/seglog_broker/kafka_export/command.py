"""``seglogd export-kafka DIR --to DEST``: arguments, output, exit codes, and the log directories that it writes.

Exit codes: 0 done, or with --check it can be done; 1 not done, nothing is left behind; 2 usage or configuration.

No log directory of the cluster can be started before all are whole: ``meta.properties``, without which Kafka refuses a
directory, is written last, when everything else is on the disk. What was written before an error is removed; what a
kill leaves is a destination that is not empty, and starts nothing.
"""

import argparse
import contextlib
import ipaddress
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from seglog_broker.config.command_options import add_config_options, load_config, number_of_option
from seglog_broker.kafka_export.cluster import BROKERS_MAX, Cluster, Node, make_nodes
from seglog_broker.kafka_export.source import ExportError, Source, SourceFile, read_source
from seglog_broker.standard_output import EXIT_FAILED, EXIT_OK, EXIT_USAGE, ProgressLine, print_and_end, refuse
from seglog_broker.storage.directory.identity import encode_identity, root_names
from seglog_broker.storage.directory.kafka_metadata import (
    BOOTSTRAP_FILE,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    encode_bootstrap,
)
from seglog_broker.storage.directory.kafka_signs import CLEAN_MARKER
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.directory.opening import may_be_log_directory, prepare_directory
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.copying import copy_file, read_chunks
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem, parent, write_all, write_files_atomically
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.storage.log.partition_files import empty_directory
from seglog_broker.texts import counted, size_text
from seglog_protocol.checkpoint_files import TopicPartition, encode_offsets
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError, SeglogError

_PROGRAM: Final = "seglogd export-kafka"
_PROGRESS_SECONDS: Final = 0.2
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
PROPERTIES_FILE: Final = "server.properties"

Progress = Callable[[SourceFile], None]
"""Called after each file that was copied or linked."""


def refuse_destination(fs: FileSystem, source: str, destination: str) -> None:
    """Raise ExportError where the export cannot go to ``destination``. Both are absolute, without symbolic links."""
    if destination == source or destination.startswith(f"{source}/"):
        raise ExportError(f"{destination} lies in the log directory itself: name another one by --to")
    if "," in destination or destination != destination.strip():
        raise ExportError(
            f"{destination!r} has a comma or ends in a space, which Kafka does not take as part of a path in log.dirs: "
            "name another one by --to"
        )
    if not fs.exists(destination):
        return
    if not fs.stat(destination).is_directory:
        raise ExportError(f"{destination} is a file: name a directory by --to")
    if fs.list_directory(destination):
        raise ExportError(
            f"{destination} is not empty: name a directory that is, or is not there yet, such as one in it, as Kafka "
            "does not start beside a lost+found; if an export was interrupted, remove what it left first"
        )


def write_cluster(
    fs: FileSystem,
    cluster: Cluster,
    destination: str,
    now_ms: int,
    *,
    link: bool = False,
    progress: Progress = lambda _file: None,
) -> None:
    """Write the directories of all nodes; they survive a power cut when this returns. Raises ExportError, OSError.

    With ``link`` closed segments are second names of the same files, where the file system can.
    """
    refuse_destination(fs, cluster.source.path, destination)
    was_there = prepare_directory(fs, destination)
    try:
        for node in cluster.nodes:
            _write_node(fs, cluster, node, now_ms, link=link, progress=progress)
        name, cluster_id = filenames.META_PROPERTIES_FILE, cluster.source.cluster_id
        contents = [encode_identity(node.node_id, node.directory_id, cluster_id) for node in cluster.nodes]
        paths = [f"{node.directory}/{name}" for node in cluster.nodes]
        write_files_atomically(fs, list(zip(paths, contents, strict=True)))
    except BaseException:
        with contextlib.suppress(OSError):
            empty_directory(fs, destination)
            if not was_there:
                fs.remove_tree(destination)
        raise


def _write_node(fs: FileSystem, cluster: Cluster, node: Node, now_ms: int, *, link: bool, progress: Progress) -> None:
    if not fs.exists(node.directory):
        fs.make_directory(node.directory)
        fs.sync_directory(parent(node.directory))
    source = cluster.source
    placed = [key for key, at in cluster.placed.items() if at is node]
    for key in placed:
        _write_partition(fs, source, node.directory, key, link=link, progress=progress)
    fs.sync_directory(node.directory)
    here = set(placed)
    small = [
        (name, encode_offsets({key: offset for key, offset in known.items() if key in here}))
        for name, known in source.offsets.items()
    ]
    small += [
        (BOOTSTRAP_FILE, encode_bootstrap(cluster.records, now_ms, cluster.metadata_version)),
        (PROPERTIES_FILE, cluster.properties(node).encode()),
    ]
    if source.is_clean:
        small.append((filenames.CLEAN_SHUTDOWN_FILE, CLEAN_MARKER))
    write_files_atomically(fs, [(f"{node.directory}/{name}", content) for name, content in small])


def _write_partition(
    fs: FileSystem, source: Source, destination: str, key: TopicPartition, *, link: bool, progress: Progress
) -> None:
    name = filenames.partition_directory_name(*key)
    directory = f"{destination}/{name}"
    fs.make_directory(directory)
    for file in source.partitions[key].files:
        path, copy = f"{source.path}/{name}/{file.name}", f"{directory}/{file.name}"
        linked = link and file.is_final
        if file.without:
            _copy_parts(fs, path, copy, file)
        else:
            copy_file(fs, path, copy, size=file.size, link=linked)
        mtime_ms = fs.stat(path).mtime_ms  # the time of a segment without timestamps, and of producers' last
        if fs.stat(copy).mtime_ms != mtime_ms:  # a linked file has it, and stays as it is
            fs.set_mtime(copy, mtime_ms)
        progress(file)
    fs.sync_directory(directory)


def _copy_parts(fs: FileSystem, path: str, copy: str, file: SourceFile) -> None:
    """Copy a file without some ranges of its bytes."""
    with fs.open(copy, create=True) as target:
        written = start = 0
        for end, following in (*file.without, (file.size, file.size)):
            for data in read_chunks(fs, path, end, start=start):
                write_all(target, [data], written)
                written += len(data)
            start = following
        target.fdatasync()


def main(argv: Sequence[str]) -> int:
    """Export a directory, or say what would come of it; returns the exit code. Raises SystemExit(2) on wrong usage."""
    arguments = make_parser().parse_args(argv)
    if arguments.to is None and not arguments.check:
        return refuse(_PROGRAM, "name the directory for Kafka by --to, or have it only --check", EXIT_USAGE)
    try:
        return print_and_end(_PROGRAM, _run(arguments), EXIT_OK)
    except InvalidConfigError as error:
        return refuse(_PROGRAM, error.message, EXIT_USAGE)
    except (ExportError, SeglogError) as error:
        return refuse(_PROGRAM, str(error), EXIT_FAILED)
    except OSError as error:
        advice = f": make room for {arguments.to}, and run it again" if is_no_room(error) else ""
        return refuse(_PROGRAM, f"nothing was exported: {why(error)}{advice}", EXIT_FAILED)
    except KeyboardInterrupt:
        return refuse(_PROGRAM, "interrupted: nothing was exported", EXIT_FAILED)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/BACKUP.md shows."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Make of a log directory that no broker uses one or more that Apache Kafka starts with as they "
        "are: topics with their ids and settings, records, committed offsets, transactions, accounts, permissions, "
        "quotas. The log directory stays as it is.",
        epilog="Exit codes: 0 done, or can be done, 1 not done, 2 usage. See docs/BACKUP.md.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="the log directory, of a broker that is stopped")
    parser.add_argument("--to", metavar="DEST", help="the directory for Kafka: empty, or not there yet")
    parser.add_argument("--check", action="store_true", help="say what would be different in Kafka, and write nothing")
    parser.add_argument(
        "--brokers",
        metavar="N",
        type=partial(number_of_option, 1, BROKERS_MAX),
        default=1,
        help="spread the partitions over N nodes: DEST/broker-1 and so on, one for each; else DEST is that of one node",
    )
    parser.add_argument(
        "--host",
        metavar="HOST",
        type=_host,
        action="append",
        help="where the nodes will run, once for all or once for each in their order; else localhost",
    )
    parser.add_argument(
        "--link",
        action="store_true",
        help="closed segments become hard links where possible: at once and without space, but both directories then "
        "have the same files, and only one of them may be used again",
    )
    parser.add_argument(
        "--metadata-version",
        metavar="LEVEL",
        type=int,
        choices=range(METADATA_VERSION, METADATA_VERSION_MAX + 1),
        default=METADATA_VERSION,
        help=f"{METADATA_VERSION}: Kafka 4.3 and 4.4 start with the directory; up to {METADATA_VERSION_MAX}: 4.4 alone",
    )
    add_config_options(parser, purpose=", for Kafka's")
    return parser


def _host(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if not _HOST_NAME.fullmatch(text):
            raise argparse.ArgumentTypeError(f"{text!r} must be a name or an address alone, without a port") from None
    return text


def _run(arguments: argparse.Namespace) -> Iterator[str]:
    """Do it; yields what is printed. Raises ExportError, SeglogError, OSError."""
    config = load_config(arguments.config, arguments.set)
    fs = PosixFileSystem()
    path = os.path.realpath(arguments.directory)
    destination = os.path.realpath(arguments.to or f"{path}-kafka")
    if not may_be_log_directory(fs, path) or not root_names(fs, path):
        raise ExportError(
            f"{arguments.directory} is no log directory: name the log.dir of a broker, or what seglogd restore made "
            "of a backup"
        )
    if arguments.to is not None:
        refuse_destination(fs, path, destination)  # before all of the directory is read
    try:
        lock = DirectoryLock(fs, path)
    except LogDirectoryError as error:
        raise ExportError(
            f"{path} is in use by {error.holder}: stop it first, Kafka takes over where it ended"
        ) from error
    try:
        source = read_source(fs, path)
        nodes = make_nodes(source, destination, arguments.brokers, arguments.host or ["localhost"], uuid.uuid4)
        cluster = Cluster(source, nodes, config, arguments.metadata_version)
        yield _summary(source)
        yield from (f"note: {note}" for note in source.notes)
        yield from (f"changed: {change}" for change in cluster.changes)
        if arguments.check:
            if arguments.to is not None:
                yield describe_room(fs, source, destination)
            yield "it can be exported; nothing was written"
            return
        copied = _progress(line := ProgressLine(_PROGRESS_SECONDS), source)
        write_cluster(fs, cluster, destination, time.time_ns() // 1_000_000, link=arguments.link, progress=copied)
        line.clear()
    finally:
        lock.release()
    yield f"exported to {destination}: give it to the user that runs Kafka, then"
    for node in nodes:
        yield f"  kafka-server-start.sh {node.directory}/{PROPERTIES_FILE}"


def _summary(source: Source) -> str:
    topics, partitions = counted(len(source.topics), "topic"), counted(len(source.partitions), "partition")
    ends = "stopped cleanly" if source.is_clean else "not stopped cleanly"
    quotas = sum(map(len, source.dynamic.clients.values()))
    kept = {"account": len(source.accounts), "permission": len(source.rules), "quota": quotas}
    told = "".join(f", {counted(count, what)}" for what, count in kept.items() if count)
    return (
        f"{source.path}: {topics}, {partitions}, {counted(source.segments, 'segment')}, {size_text(source.size)}"
        f"{told}; {ends}"
    )


def describe_room(fs: FileSystem, source: Source, destination: str) -> str:
    """How much is to be written, how much room there is, and whether that may be too little."""
    there = destination
    while not fs.exists(there):
        there = parent(there)
    free = fs.free_bytes(there)
    enough = ": it needs --link, or a file system that shares blocks" if free < source.size else ""
    return (
        f"{size_text(source.size)} are to be written, less where blocks can be shared or with --link; "
        f"{size_text(free)} are free at {there}{enough}"
    )


def _progress(line: ProgressLine, source: Source) -> Callable[[SourceFile], None]:
    """Shows how much of a source is at its new place: to be called with each file that is."""
    size, done = source.size, 0

    def copied(file: SourceFile) -> None:
        nonlocal done
        done += file.size
        line.show(lambda: f"{size_text(done)} of {size_text(size)}")

    return copied
