"""Segments that have left their log: set aside under the suffix ``.deleted``, removed some time later.

The two steps are apart so that whoever is reading finishes, and so that a mistake can be undone by hand for a while.
After a crash a start removes what carries the suffix. Source: storage-format §1.4 and §7.
"""

from collections.abc import Sequence

from seglog_broker.storage.filesystem import FileSystem
from seglog_protocol import segment_files as names


class DoomedSegments:
    """Files of some segments of one directory; both methods may be called in a thread, and again after an error."""

    def __init__(self, fs: FileSystem, directory: str, base_offsets: Sequence[int]) -> None:
        """``base_offsets`` in the order in which the names are to change; nobody opens the files by name any more."""
        self.directory = directory
        self.base_offsets = tuple(base_offsets)
        self._fs = fs

    def set_aside(self) -> None:
        """Give every file the suffix ``.deleted``, the ``.log`` of a segment first."""
        for path in self._paths():
            if self._fs.exists(path):
                self._fs.rename(path, f"{path}{names.DELETED_SUFFIX}")

    def remove(self) -> int:
        """Remove what was set aside; return the bytes that were in it."""
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
            for suffix in names.SEGMENT_SUFFIXES
        ]
