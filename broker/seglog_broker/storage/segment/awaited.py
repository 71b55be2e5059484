"""Awaited segments: a closed segment whose ``.log`` is still to be fetched from a backup.

Its ``.log`` is a file with a hole of the right size, which nobody reads, and beside it lies ``<stem>.awaited``, sealed
JSON that says where the bytes are:

    version   1
    size      of the ``.log``, in bytes
    mtime_ms  the modification time that it gets
    parts     whose bytes in their order are those of the ``.log``: file in the backup, position in that, size, CRC-32C

The index files are there from the beginning. The bytes are written to ``<stem>.log.tmp`` and synced; then that takes
the place of the ``.log``, and only when this is on the disk the ``.awaited`` goes. So a segment is awaited or whole,
whenever the broker is killed, and a retention that deletes one takes its ``.log`` away first, as of every segment.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import msgspec

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_all
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_protocol import segment_files as names

_VERSION: Final = 1


class Part(NamedTuple):
    """Bytes of a file: ``size`` bytes at ``position`` of the file ``name`` of a backup, with their CRC-32C."""

    name: str
    position: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class AwaitedLog:
    """The content of an ``.awaited`` file."""

    size: int
    mtime_ms: int
    parts: tuple[Part, ...]


def write_awaited(fs: FileSystem, log_path: str, awaited: AwaitedLog) -> None:
    """Make the hole in place of a ``.log`` at this path, and its marker beside it; the caller syncs both."""
    with fs.open(marker_of(log_path), create=True) as file:
        write_all(file, [seal({"version": _VERSION, **asdict(awaited)})], 0)
    with fs.open(log_path, create=True) as file:
        file.truncate(awaited.size)


def marker_of(log_path: str) -> str:
    """The path of the ``.awaited`` beside a ``.log``."""
    return log_path.removesuffix(names.LOG_SUFFIX) + names.AWAITED_SUFFIX


def read_awaited(fs: FileSystem, directory: str, base_offset: int) -> AwaitedLog:
    """The content of the ``.awaited`` of a segment. Raises OSError; ValueError, whose message ends a sentence."""
    content = read_file(fs, f"{directory}/{names.segment_file_name(base_offset, names.AWAITED_SUFFIX)}")
    found: dict[str, Any] = unseal(content, ())
    if found.pop("version", None) != _VERSION:
        raise MalformedJsonError("its version is not known: use a newer seglogd")
    return msgspec.convert(found, AwaitedLog)


def install_arrived(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Put the ``.log.tmp`` of a segment, which is whole and synced, in the place of its hole; may run in a thread."""
    path = f"{directory}/{names.segment_file_name(base_offset, names.LOG_SUFFIX)}"
    fs.rename(f"{path}{names.TEMPORARY_SUFFIX}", path)
    fs.sync_directory(directory)  # before the marker goes: without it the hole would be read as records
    fs.unlink(f"{directory}/{names.segment_file_name(base_offset, names.AWAITED_SUFFIX)}")
    fs.sync_directory(directory)


def discard_arrived(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the ``.log.tmp`` of a segment that has left the log meanwhile, or its topic with it."""
    path = f"{directory}/{names.segment_file_name(base_offset, names.LOG_SUFFIX)}{names.TEMPORARY_SUFFIX}"
    if fs.exists(path):
        fs.unlink(path)
