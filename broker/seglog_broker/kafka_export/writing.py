"""Writes the log directories of a cluster. None of them can be started before all are whole.

``meta.properties``, without which Kafka refuses a directory, is written last, when everything else is on the disk. What
was written before an error is removed; what a kill leaves is a destination that is not empty, and starts nothing.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from seglog_broker.kafka_export.cluster import Cluster, Node
from seglog_broker.kafka_export.source import ExportError, Source, SourceFile
from seglog_broker.storage.directory.identity import encode_identity
from seglog_broker.storage.directory.kafka_metadata import BOOTSTRAP_FILE, encode_bootstrap
from seglog_broker.storage.directory.kafka_signs import CLEAN_MARKER
from seglog_broker.storage.directory.opening import prepare_directory
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.copying import copy_file, read_chunks
from seglog_broker.storage.io.filesystem import FileSystem, parent, write_all, write_files_atomically
from seglog_broker.storage.log.partition_files import empty_directory
from seglog_protocol.checkpoint_files import TopicPartition, encode_offsets

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
