"""A file system over another one: changes stay in memory, and the file system below is not written to.

So a log can be opened and read on a disk that has no room for the files that opening it would write. Unchanged files
are read from below; a truncated file is the one below, shown shorter; a file that is written to is copied into memory,
which suits indexes and small files. Syncs are passed on, so that what the log calls durable is on the disk.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from seglog_broker.storage.io import filesystem

COPY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger file is not copied into memory: opening a log writes to no file of that size."""


@dataclass(slots=True, eq=False)
class _Node:
    """A file: its ``content`` in memory, or else the first ``limit`` bytes (None: all) of ``path`` below."""

    path: str = ""
    limit: int | None = None
    content: bytearray | None = None
    mtime_ms: int | None = None


class Overlay(filesystem.FileSystem):
    """The file system of this module. Directories can be listed and synced, but not made or removed."""

    is_view: ClassVar[bool] = True

    def __init__(self, below: filesystem.FileSystem) -> None:
        self._below = below
        self._nodes: dict[str, _Node | None] = {}  # changed files by their path here; None: removed

    # --- Files --------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> filesystem.File:
        """Open a file; every file can be written to, because writes go to memory."""
        del writable
        node = self._find(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = self._nodes[path] = _Node(
                content=bytearray(), mtime_ms=self._below.stat(filesystem.parent(path)).mtime_ms
            )
        self._nodes[path] = node
        below = None if node.content is not None else self._below.open(node.path)
        return _OverlayFile(self, path, node, below)

    def map(self, path: str, size: int) -> filesystem.Map:
        """A copy of the bytes, because truncating a mapped file would kill the process."""
        node = self._found(path)
        if size > self.size_of(node):
            raise ValueError(f"{path} is shorter than {size} bytes")
        content = filesystem.read_file(self._below, node.path) if node.content is None else node.content
        return _CopiedMap(bytes(content[:size]))

    def stat(self, path: str) -> filesystem.FileStat:
        """Size and time as changed here, else those of the file below."""
        node = self._find(path)
        if node is None:
            if path in self._nodes:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return self._below.stat(path)  # a directory; or it raises FileNotFoundError
        mtime_ms = self._below.stat(node.path).mtime_ms if node.mtime_ms is None else node.mtime_ms
        return filesystem.FileStat(self.size_of(node), mtime_ms, is_directory=False)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set the time in memory only."""
        node = self._nodes[path] = self._found(path)
        node.mtime_ms = mtime_ms

    def exists(self, path: str) -> bool:
        """Whether the path exists, with the changes made here."""
        return self._nodes[path] is not None if path in self._nodes else self._below.exists(path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, in memory only; not for directories."""
        node = self._found(old)
        self._nodes[old] = None
        self._nodes[new] = node

    def link(self, path: str, new: str) -> None:  # noqa: ARG002 - nothing is linked here
        """Raises OSError (EROFS): files get no second name here."""
        raise _refusal(path)

    def unlink(self, path: str) -> None:
        """Remove a file, in memory only."""
        self._found(path)
        self._nodes[path] = None

    def sync_files(self, files: Sequence[filesystem.File]) -> list[OSError | None]:
        """Sync the files below, one after the other."""
        return [filesystem.outcome_of(file.fdatasync) for file in files]

    def begin_sync(self, files: Sequence[filesystem.File]) -> filesystem.PendingSync | None:  # noqa: ARG002 - nothing here reaches a disk
        """Not here."""
        return None

    # --- Directories --------------------------------------------------------------------------------------------------

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted, with the changes made here."""
        names = set(self._below.list_directory(path))
        for changed, node in self._nodes.items():
            if filesystem.parent(changed) == path:
                name = changed.rpartition("/")[2]
                (names.discard if node is None else names.add)(name)
        return sorted(names)

    def sync_directory(self, path: str) -> None:
        """Sync the directory below."""
        self._below.sync_directory(path)

    def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
        """Sync the directories below."""
        return self._below.sync_directories(paths)

    def make_directory(self, path: str) -> None:
        """Raises OSError (EROFS): directories cannot be made here."""
        raise _refusal(path)

    def remove_tree(self, path: str) -> None:
        """Raises OSError (EROFS): directories cannot be removed here."""
        raise _refusal(path)

    def lock(self, path: str) -> filesystem.Lock:
        """Raises OSError (EROFS): the broker that uses an overlay has locked the directory below."""
        raise _refusal(path)

    def hold(self, directory: str) -> filesystem.Hold:
        """Raises OSError (EROFS), as ``lock`` does."""
        raise _refusal(directory)

    def free_bytes(self, path: str) -> int:
        """Free bytes of the disk below."""
        return self._below.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        """Bytes of the disk below."""
        return self._below.total_bytes(path)

    def inodes(self, path: str) -> filesystem.Inodes | None:
        """Inodes of the disk below."""
        return self._below.inodes(path)

    # ------------------------------------------------------------------------------------------------------------------

    def size_of(self, node: _Node) -> int:
        """The file's size in bytes, with the changes made here."""
        if node.content is not None:
            return len(node.content)
        size = self._below.stat(node.path).size
        return size if node.limit is None else min(size, node.limit)

    def copied(self, node: _Node) -> bytearray:
        """The content of a file, copied into memory if it was not there. Raises OSError if it is too large."""
        if node.content is None:
            size = self.size_of(node)
            if size > COPY_BYTES_MAX:
                raise _refusal(node.path)
            node.content = bytearray(filesystem.read_file(self._below, node.path)[:size])
        return node.content

    def cut(self, node: _Node, size: int) -> None:
        """Truncate the file to ``size`` bytes, or extend it with zeros, in memory only."""
        if node.content is None and size <= self.size_of(node):
            node.limit = size
            return
        content = self.copied(node)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def _find(self, path: str) -> _Node | None:
        """The file at ``path``; None if it is a directory or does not exist."""
        if path in self._nodes:
            return self._nodes[path]
        is_file = self._below.exists(path) and not self._below.stat(path).is_directory
        return _Node(path) if is_file else None

    def _found(self, path: str) -> _Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node


class _OverlayFile(filesystem.File):
    def __init__(self, overlay: Overlay, path: str, node: _Node, below: filesystem.File | None) -> None:
        self._overlay = overlay
        self.path = path
        self._node = node
        self._below = below  # None for a file that was in memory when it was opened

    def fileno(self) -> int:
        if self._below is None:
            raise OSError(errno.EBADF, "a file in memory has no descriptor", self.path)
        return self._below.fileno()

    def size(self) -> int:
        return self._overlay.size_of(self._node)

    def pread(self, size: int, position: int) -> bytes:
        node = self._node
        if node.content is not None or self._below is None:
            return bytes(self._overlay.copied(node)[position : position + size])
        if node.limit is not None:
            size = max(0, min(size, node.limit - position))
        return self._below.pread(size, position) if size else b""

    def pwritev(self, buffers: Sequence[filesystem.Buffer], position: int) -> int:
        content = self._overlay.copied(self._node)
        data = b"".join(buffers)
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data
        return len(data)

    def truncate(self, size: int) -> None:
        self._overlay.cut(self._node, size)

    def fdatasync(self) -> None:
        if self._below is not None:
            self._below.fdatasync()

    def pread_cached(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position) if self.is_cached(position, size) else None

    def is_cached(self, position: int, size: int) -> bool:
        return self._below is None or self._below.is_cached(position, size)

    def no_readahead(self) -> None:
        if self._below is not None:
            self._below.no_readahead()

    def bring_in(self, position: int, size: int) -> None:
        if self._below is not None:
            self._below.bring_in(position, size)

    def close(self) -> None:
        if self._below is not None:
            self._below.close()


class _CopiedMap(filesystem.Map):
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def data(self) -> bytes:
        return self._data

    def close(self) -> None:
        self._data = b""


def _refusal(path: str) -> OSError:
    return OSError(errno.EROFS, "this can be shown, not changed", path)
