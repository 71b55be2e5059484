"""``seglogd export-kafka DIR --to DEST``: arguments, output and exit codes.

Exit codes: 0 done, or with --check it can be done; 1 not done, nothing is left behind; 2 usage or configuration.
"""

import argparse
import ipaddress
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from seglog_broker.config.command_options import add_config_options, load_config
from seglog_broker.kafka_export.cluster import BROKERS_MAX, Cluster, make_nodes
from seglog_broker.kafka_export.source import ExportError, Source, SourceFile, read_source
from seglog_broker.kafka_export.writing import PROPERTIES_FILE, refuse_destination, write_cluster
from seglog_broker.standard_output import ProgressLine, print_and_end, refuse
from seglog_broker.storage.directory.identity import root_names
from seglog_broker.storage.directory.kafka_metadata import METADATA_VERSION, METADATA_VERSION_MAX
from seglog_broker.storage.directory.log_directory import DirectoryLock
from seglog_broker.storage.directory.opening import may_be_log_directory
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem, parent
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.texts import counted, size_text
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError, SeglogError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_PROGRAM: Final = "seglogd export-kafka"
_PROGRESS_SECONDS: Final = 0.2
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


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
        "are: topics with their ids and settings, records, committed offsets, accounts, transactions. The log "
        "directory stays as it is.",
        epilog="Exit codes: 0 done, or can be done, 1 not done, 2 usage. See docs/BACKUP.md.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="the log directory, of a broker that is stopped")
    parser.add_argument("--to", metavar="DEST", help="the directory for Kafka: empty, or not there yet")
    parser.add_argument("--check", action="store_true", help="say what would be different in Kafka, and write nothing")
    parser.add_argument(
        "--brokers",
        metavar="N",
        type=_brokers,
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


def _brokers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= BROKERS_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {BROKERS_MAX}")
    return int(text)


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
    accounts = f", {counted(len(source.accounts), 'account')}" if len(source.accounts) else ""
    return (
        f"{source.path}: {topics}, {partitions}, {counted(source.segments, 'segment')}, {size_text(source.size)}"
        f"{accounts}; {ends}"
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
