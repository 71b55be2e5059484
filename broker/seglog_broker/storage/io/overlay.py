"""A file system over another one: what is changed stays in memory, and nothing below is written to.

So a log can be opened and read on a disk that has no room for what opening it would write. Files without a change
are read where they are; one that is cut is the same file, shown shorter; one that is written to is copied into memory,
which suits indexes and small files. Syncs go through: what is shown as on the disk is to be there.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from seglog_broker.storage.io.filesystem import (
    Buffer,
    File,
    FileStat,
    FileSystem,
    Hold,
    Inodes,
    Lock,
    Map,
    PendingSync,
    outcome_of,
    parent,
    read_file,
)

COPY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A file that is larger is not copied into memory: opening a log writes to none of that size."""


@dataclass(slots=True, eq=False)
class _Node:
    """A file: ``content`` in memory, or the first ``limit`` bytes (None for all) of the one below at ``path``."""

    path: str = ""
    limit: int | None = None
    content: bytearray | None = None
    mtime_ms: int | None = None


class Overlay:
    """See the module's description. Directories can be listed and synced, not made or removed."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        self._nodes: dict[str, _Node | None] = {}  # by the path it is seen under; None: removed

    # --- Files --------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        """What is written goes to memory, so every file can be written to."""
        del writable
        node = self._find(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = self._nodes[path] = _Node(content=bytearray(), mtime_ms=self._below.stat(parent(path)).mtime_ms)
        self._nodes[path] = node
        below = None if node.content is not None else self._below.open(node.path)
        return _OverlayFile(self, path, node, below)

    def map(self, path: str, size: int) -> Map:
        """A copy: truncating a file while it is mapped would end the process."""
        node = self._found(path)
        if size > self.size_of(node):
            raise ValueError(f"{path} is shorter than {size} bytes")
        content = read_file(self._below, node.path) if node.content is None else node.content
        return _CopiedMap(bytes(content[:size]))

    def stat(self, path: str) -> FileStat:
        """As it is shown."""
        node = self._find(path)
        if node is None:
            if path in self._nodes:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            return self._below.stat(path)  # a directory, or it says that there is nothing
        mtime_ms = self._below.stat(node.path).mtime_ms if node.mtime_ms is None else node.mtime_ms
        return FileStat(self.size_of(node), mtime_ms, is_directory=False)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Shown from now on."""
        node = self._nodes[path] = self._found(path)
        node.mtime_ms = mtime_ms

    def exists(self, path: str) -> bool:
        """Whether anything is shown there."""
        return self._nodes[path] is not None if path in self._nodes else self._below.exists(path)

    def rename(self, old: str, new: str) -> None:
        """Of files."""
        node = self._found(old)
        self._nodes[old] = None
        self._nodes[new] = node

    def unlink(self, path: str) -> None:
        """It is not shown any more."""
        self._found(path)
        self._nodes[path] = None

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        """One after the other."""
        return [outcome_of(file.fdatasync) for file in files]

    def begin_sync(self, files: Sequence[File]) -> PendingSync | None:  # noqa: ARG002 - nothing here reaches a disk
        """Not here."""
        return None

    # --- Directories --------------------------------------------------------------------------------------------------

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted."""
        names = set(self._below.list_directory(path))
        for changed, node in self._nodes.items():
            if parent(changed) == path:
                name = changed.rpartition("/")[2]
                (names.discard if node is None else names.add)(name)
        return sorted(names)

    def sync_directory(self, path: str) -> None:
        """Of the one below."""
        self._below.sync_directory(path)

    def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
        """Of those below."""
        return self._below.sync_directories(paths)

    def make_directory(self, path: str) -> None:
        """Not here."""
        raise _refusal(path)

    def remove_tree(self, path: str) -> None:
        """Not here."""
        raise _refusal(path)

    def lock(self, path: str) -> Lock:
        """Whoever shows a directory in this way holds its lock already."""
        raise _refusal(path)

    def hold(self, directory: str) -> Hold:
        """As for ``lock``."""
        raise _refusal(directory)

    def free_bytes(self, path: str) -> int:
        """Of the disk below."""
        return self._below.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        """Of the disk below."""
        return self._below.total_bytes(path)

    def inodes(self, path: str) -> Inodes | None:
        """Of the disk below."""
        return self._below.inodes(path)

    # ------------------------------------------------------------------------------------------------------------------

    def size_of(self, node: _Node) -> int:
        """Bytes that are shown."""
        if node.content is not None:
            return len(node.content)
        size = self._below.stat(node.path).size
        return size if node.limit is None else min(size, node.limit)

    def copied(self, node: _Node) -> bytearray:
        """The content of a file in memory, from now on at least. OSError: it is too large for that."""
        if node.content is None:
            size = self.size_of(node)
            if size > COPY_BYTES_MAX:
                raise _refusal(node.path)
            node.content = bytearray(read_file(self._below, node.path)[:size])
        return node.content

    def cut(self, node: _Node, size: int) -> None:
        """Show only so many bytes, or zeros behind what is there."""
        if node.content is None and size <= self.size_of(node):
            node.limit = size
            return
        content = self.copied(node)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def _find(self, path: str) -> _Node | None:
        """The file shown at ``path``; None for a directory, or nothing."""
        if path in self._nodes:
            return self._nodes[path]
        is_file = self._below.exists(path) and not self._below.stat(path).is_directory
        return _Node(path) if is_file else None

    def _found(self, path: str) -> _Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node


class _OverlayFile:
    def __init__(self, overlay: Overlay, path: str, node: _Node, below: File | None) -> None:
        self._overlay = overlay
        self._path = path
        self._node = node
        self._below = below  # None for a file that was in memory when it was opened

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        if self._below is None:
            raise OSError(errno.EBADF, "a file in memory has no descriptor", self._path)
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

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
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


class _CopiedMap:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def close(self) -> None:
        self.data = b""


def _refusal(path: str) -> OSError:
    return OSError(errno.EROFS, "this can be shown, not changed", path)
