"""One log's directory and file access, its topic configuration, its offsets, and the segments that have left it."""

from collections.abc import Sequence
from dataclasses import dataclass

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.errors import StorageError


@dataclass(slots=True)
class LogFiles:
    """The directory of a log, and the file system and handle pool that open its files."""

    fs: FileSystem
    handles: HandlePool
    directory: str


@dataclass(slots=True)
class LogSettings:
    """The topic configuration in force."""

    config: TopicConfig


@dataclass(slots=True)
class LogOffsets:
    """Records in [start, end) can be read; those below ``durable_end`` survive a power cut."""

    start: int = 0
    end: int = 0
    durable_end: int = 0

    def stable_end(self, first_unstable: int | None) -> int:
        """The last stable offset, where the first open transaction begins at ``first_unstable``, None without one."""
        return self.end if first_unstable is None else min(max(first_unstable, self.start), self.end)


class DeletedSegments:
    """Files of segments that have left their log, and the producer snapshots at their bases.

    They are renamed with the suffix ``.deleted`` first, and removed some time later. The delay lets current readers
    finish, and lets an operator undo a mistake by hand. After a crash, a start removes files with the suffix. See
    "Retention" in docs/STORAGE.md. Both methods may be called in a thread, and again after an error.
    """

    def __init__(
        self, fs: FileSystem, directory: str, base_offsets: Sequence[int], *, sync_survivors: bool = False
    ) -> None:
        """``base_offsets`` in the order in which to rename them; nothing opens these files by name any more.

        With ``sync_survivors`` the directory is synced before the first rename, so that no power cut leaves it without
        a segment.
        """
        self.directory = directory
        self.base_offsets = tuple(base_offsets)
        self.is_set_aside = False  # the renames are on the disk: a start no longer finds the segments
        self._fs = fs
        self._sync_survivors = sync_survivors

    def set_aside(self) -> None:
        """Give every file the suffix ``.deleted``, a segment's ``.log`` first; returns when that is on the disk."""
        if self.is_set_aside:
            return
        if self._sync_survivors:
            self._fs.sync_directory(self.directory)
        for path in self._paths():
            if self._fs.exists(path):
                self._fs.rename(path, f"{path}{names.DELETED_SUFFIX}")
        self._fs.sync_directory(self.directory)
        self.is_set_aside = True

    def remove(self) -> int:
        """Remove the files that were set aside; return their size in bytes."""
        freed = 0
        for path in (f"{path}{names.DELETED_SUFFIX}" for path in self._paths()):
            if self._fs.exists(path):
                freed += self._fs.stat(path).size
                self._fs.unlink(path)
        return freed

    def _paths(self) -> list[str]:
        return [
            f"{self.directory}/{names.segment_file_name(base, suffix)}"
            for base in self.base_offsets
            for suffix in (*names.SEGMENT_SUFFIXES, names.SNAPSHOT_SUFFIX)
        ]


def unreadable(segment: Segment, error: OSError) -> StorageError:
    """The error for a segment whose ``.log`` could not be opened or read."""
    return storage_error(f"{segment.log_path} could not be read: {why(error)}", error)
