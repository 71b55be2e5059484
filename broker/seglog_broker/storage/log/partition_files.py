"""Creates partitions' directories with the files of empty logs, and detects an unfinished creation."""

import errno
from collections.abc import Iterable, Sequence
from typing import Final

from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_files_atomically
from seglog_broker.storage.log.leader_epochs import EpochEntry
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, encode_checkpoint

PARTITIONS_AT_A_TIME: Final = 64
"""Partitions whose files are made and synced together; each has one file open."""

INODES: Final = 6
"""Of a new partition: its directory, three files of the segment, its epochs, its metadata."""


def inodes_of(partitions: int) -> int:
    """How many inodes it takes to make so many partitions, temporary files and the registry's included."""
    return partitions * INODES + min(partitions, PARTITIONS_AT_A_TIME) + 4


def make_partition(fs: FileSystem, directory: str, topic_id: str) -> None:
    """Make the directory of one new partition, see ``make_partitions``."""
    make_partitions(fs, [(directory, topic_id)])


def make_partitions(fs: FileSystem, wanted: Sequence[tuple[str, str]]) -> None:
    """Make the directories of new partitions with the files of empty logs; returns when they are on the disk.

    ``wanted`` are directories, each with its topic's id. The caller syncs the parent directory. Unfinished attempts are
    completed. ``partition.metadata`` is written last: without it a directory is not yet a partition, see
    ``make_is_incomplete``. Raises OSError; then any number of them may have been made.
    """
    for first in range(0, len(wanted), PARTITIONS_AT_A_TIME):
        _make_together(fs, wanted[first : first + PARTITIONS_AT_A_TIME])


def _make_together(fs: FileSystem, wanted: Sequence[tuple[str, str]]) -> None:
    for directory, topic_id in wanted:
        if not fs.exists(directory):
            fs.make_directory(directory)
        elif filenames.PARTITION_METADATA_FILE in fs.list_directory(directory):
            found = topic_id_in(fs, directory)
            if found != topic_id:
                raise FileExistsError(errno.EEXIST, f"it is of another topic, {found or 'of unknown id'}", directory)
        for suffix in (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
            fs.open(f"{directory}/{names.segment_file_name(0, suffix)}", create=True).close()
    epochs = encode_checkpoint([EpochEntry(0, 0)])
    write_files_atomically(fs, [(f"{directory}/{LEADER_EPOCH_CHECKPOINT}", epochs) for directory, _ in wanted])
    write_files_atomically(
        fs,
        [
            (f"{directory}/{filenames.PARTITION_METADATA_FILE}", filenames.encode_partition_metadata(topic_id))
            for directory, topic_id in wanted
        ],
    )


def topic_id_in(fs: FileSystem, directory: str) -> str | None:
    """The topic id in ``partition.metadata`` of a partition directory; None if there is none, or it is malformed."""
    try:
        return filenames.decode_partition_metadata(read_file(fs, f"{directory}/{filenames.PARTITION_METADATA_FILE}"))
    except (FileNotFoundError, ValueError):
        return None


def empty_directory(fs: FileSystem, directory: str) -> None:
    """Remove the content of a directory, if it exists; the directory itself stays."""
    if not fs.exists(directory):
        return
    for name in fs.list_directory(directory):
        path = f"{directory}/{name}"
        if fs.stat(path).is_directory:
            fs.remove_tree(path)
        else:
            fs.unlink(path)


def make_is_incomplete(fs: FileSystem, directory: str) -> bool:
    """Whether a crash interrupted ``make_partition``: no metadata, and no record."""
    if fs.exists(f"{directory}/{filenames.PARTITION_METADATA_FILE}"):
        return False  # without listing the directory, which may have very many names
    found = fs.list_directory(directory)
    return not any(
        base > 0 or fs.stat(f"{directory}/{name}").size for name in found if (base := log_base(name)) is not None
    )


def has_partition_files(found: Iterable[str]) -> bool:
    """Whether the names found in a directory are those of a partition."""
    return any(name == filenames.PARTITION_METADATA_FILE or name.endswith(names.LOG_SUFFIX) for name in found)


def log_base(name: str) -> int | None:
    """The base offset of the segment whose ``.log`` has this name; None for every other file."""
    parsed = names.parse_segment_file_name(name)
    return parsed[0] if parsed is not None and parsed[1] == names.LOG_SUFFIX else None
