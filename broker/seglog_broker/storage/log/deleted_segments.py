"""Segments that have left their log: renamed with the suffix ``.deleted`` first, removed some time later.

The delay lets current readers finish, and lets an operator undo a mistake by hand. After a crash, a start removes files
with the suffix. See "Retention" in docs/STORAGE.md.
"""

from collections.abc import Sequence

from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol import segment_files as names


class DeletedSegments:
    """Files of some segments of one directory, and the producer snapshots at their bases.

    Both methods may be called in a thread, and again after an error.
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
