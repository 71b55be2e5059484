"""A file system in memory that loses unsynced data in a crash: a test double for tests and simulations.

``ForgetfulFileSystem`` keeps files in memory and records what was synced, so it knows what a crash leaves:

- ``PROCESS_KILL``: everything written; what was unsynced stays unsynced, because the page cache outlives a process.
- ``POWER_LOSS``: only what was synced. A file whose name was never synced is gone, a file whose bytes
  were never synced is empty.
- ``RANDOM(seed)``: anything POSIX allows. Any subset of the unsynced writes, each complete or torn at a byte, with
  or without the new size; any consistent subset of the unsynced names, where a rename is one step.

Each operation that changes something has a number, so a run can stop before operation N (``crash_after``), or ask at
each operation what a crash would leave (``on_operation`` with ``found_after``). ``inject`` makes operations fail; a
failed fdatasync drops the dirty pages as Linux does: readable, clean, and not on the disk.

The idea is LevelDB's fault injection environment, with torn and reordered writes added. Simplifications: there are no
permissions and no symbolic links, no two files share blocks, ``/`` and the current directory are one, times of change
survive everything, a rename between two directories is synced with either of them, and the changes of a failed sync of
a directory are synced by the next one.
"""

import errno
from collections.abc import Mapping, Sequence
from typing import Final

from seglog_broker.storage.io import filesystem
from seglog_broker.testing.forgetful_disk import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    Directory,
    Disk,
    Inode,
    NameChange,
    Node,
    walk,
)
from seglog_broker.testing.forgetful_script import Fault, Operation, Read, Script, SimulatedCrash, os_error

__all__ = [
    "POWER_LOSS",
    "PROCESS_KILL",
    "RANDOM",
    "CrashPolicy",
    "Fault",
    "ForgetfulFileSystem",
    "Operation",
    "Read",
    "SimulatedCrash",
]

UNLIMITED_FREE_BYTES: Final = 1 << 40
"""The result of ``free_bytes`` without a limit."""


class ForgetfulFileSystem(Script, filesystem.FileSystem):
    """A file system in memory. ``/`` exists; ``load`` adds files. See the module's description.

    ``now_ms`` is the modification time that files get, ``cached`` the result of ``is_cached`` for files not evicted.
    With ``begins_syncs`` it is one that syncs without a thread, as Linux does, else one that needs a thread for it, as
    macOS does. One thread at a time, except that fdatasync may run beside other calls.
    """

    def __init__(
        self, *, now_ms: int = 0, cached: bool = True, begins_syncs: bool = False, is_recorded: bool = True
    ) -> None:
        super().__init__(is_recorded=is_recorded)
        self.now_ms = now_ms
        self.cached = cached
        self.begins_syncs = begins_syncs
        self.disk = Disk(Directory(now_ms), [])
        self.handles: dict[object, str] = {}
        self._locked: set[Inode] = set()

    # For tests; more in Script.

    @property
    def open_files(self) -> list[str]:
        """Paths of all open files, maps and locks, in the order in which they were opened."""
        return list(self.handles.values())

    @property
    def used(self) -> int:
        """The bytes of all files that have a name or are open."""
        nodes = {node for _, node in walk(self.disk.root)}
        nodes |= {handle.inode for handle in self.handles if isinstance(handle, _ForgetfulFile) and handle.inode}
        return sum(len(node.content) for node in nodes if isinstance(node, Inode))

    def load(self, content: Mapping[str, bytes]) -> None:
        """Add synced files, and the directories they need; ``directory/`` adds an empty one."""
        for path, data in content.items():
            directory, parts = self.disk.root, _parts(path)
            for part in parts if path.endswith("/") else parts[:-1]:
                child = directory.entries.setdefault(part, Directory(self.now_ms))
                assert isinstance(child, Directory), f"{path}: {part} is a file"
                directory.durable[part] = child
                directory = child
            if not path.endswith("/"):
                assert parts[-1] not in directory.entries, f"{path} is already there"
                directory.entries[parts[-1]] = directory.durable[parts[-1]] = Inode(self.now_ms, data)

    def snapshot(self) -> dict[str, bytes]:
        """Every file as a reader sees it, and every empty directory as ``directory/``, by absolute path."""
        found: dict[str, bytes] = {}
        for path, node in walk(self.disk.root):
            if isinstance(node, Inode):
                found[path] = bytes(node.content)
            elif not node.entries:
                found[f"{path}/"] = b""
        return found

    def limit_free_bytes(self, free: int | None) -> None:
        """Leave so many bytes free; writes use all of them before they raise ENOSPC. None removes the limit."""
        self.disk.capacity = None if free is None else self.used + free

    def limit_free_inodes(self, free: int | None) -> None:
        """Allow so many more files and directories before ENOSPC. None removes the limit."""
        self.disk.inodes_max = None if free is None else self.disk.inodes_used + free

    def evict(self, path: str) -> None:
        """Drop a file from the page cache until its next read."""
        self._inode(path).evicted = True

    def crash(self, policy: CrashPolicy) -> "ForgetfulFileSystem":
        """Stop the machine now; return the file system after the restart. Handles of this one no longer work."""
        self.stop()
        return self.found_after(policy)

    def found_after(self, policy: CrashPolicy) -> "ForgetfulFileSystem":
        """The file system after a crash now, without faults and locks; this one keeps running."""
        found = ForgetfulFileSystem(now_ms=self.now_ms, cached=self.cached, begins_syncs=self.begins_syncs)
        found.disk = self.disk.after(policy)
        found.disk.inodes_max = self.disk.inodes_max
        return found

    # The FileSystem interface.

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> filesystem.File:
        """Open; an operation if it creates the file, a read if the file exists."""
        inode = self._found_or_created("open", path) if create else self._found("open", path)
        file = _ForgetfulFile(self, path, inode, writable=create or writable)
        self.handles[file] = path
        return file

    def map(self, path: str, size: int) -> filesystem.Map:
        """Map; what is read through the map is not recorded."""
        self.look("map", path, 0, size)
        inode = self._inode(path)
        if not 0 < size <= len(inode.content):
            raise ValueError(f"{path} has {len(inode.content)} bytes; {size} cannot be mapped.")
        mapped = _ForgetfulMap(self, path, inode, size)
        self.handles[mapped] = path
        return mapped

    def stat(self, path: str) -> filesystem.FileStat:
        """File or directory; the size of a directory is 0."""
        self.look("stat", path)
        node = self._find(path)
        if isinstance(node, Directory):
            return filesystem.FileStat(0, node.mtime_ms, is_directory=True)
        return filesystem.FileStat(len(node.content), node.mtime_ms, is_directory=False, inode=id(node))

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """An operation; like all modification times, it survives every crash."""
        node = self._find(path)
        self.begin("set_mtime", path, mtime_ms)
        node.mtime_ms = mtime_ms

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        self.look("exists", path)
        try:
            self._find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted."""
        self.look("list_directory", path)
        return sorted(self._directory(path).entries)

    def make_directory(self, path: str) -> None:
        """Make one level; the name is unsynced until its parent is synced."""
        directory, name = self._place(path)
        if name in directory.entries:
            raise os_error(errno.EEXIST, path)
        self.begin("make_directory", path)
        self._take_inode(path)
        self.disk.change((NameChange(directory, name, None, Directory(self.now_ms)),), self.now_ms)

    def rename(self, old: str, new: str) -> None:
        """Replaces a file by a file, or an empty directory by a directory."""
        moved = self._find(old)
        source, target = self._place(old), self._place(new)
        replaced = target[0].entries.get(target[1])
        if isinstance(moved, Directory) and _parts(new)[: len(_parts(old))] == _parts(old) != _parts(new):
            raise os_error(errno.EINVAL, new)
        if isinstance(moved, Inode) and isinstance(replaced, Directory):
            raise os_error(errno.EISDIR, new)
        if isinstance(moved, Directory) and isinstance(replaced, Inode):
            raise os_error(errno.ENOTDIR, new)
        if isinstance(replaced, Directory) and replaced.entries and replaced is not moved:
            raise os_error(errno.ENOTEMPTY, new)
        self.begin("rename", old, new)
        if replaced is not moved:
            step = (NameChange(*target, replaced, moved), NameChange(*source, moved, None))
            self.disk.change(step, self.now_ms)

    def link(self, path: str, new: str) -> None:
        """A second name; unsynced, as that of a new file, until its directory is synced."""
        inode = self._inode(path)
        directory, name = self._place(new)
        if name in directory.entries:
            raise os_error(errno.EEXIST, new)
        self.begin("link", path, new)
        self.disk.change((NameChange(directory, name, None, inode),), self.now_ms)

    def unlink(self, path: str) -> None:
        """Remove a file; open handles stay valid."""
        self._inode(path)
        self._remove("unlink", path)

    def remove_tree(self, path: str) -> None:
        """Each entry is an operation of its own, so that a crash can fall between them."""
        for name in sorted(self._directory(path).entries):
            child = f"{path}/{name}"
            if isinstance(self._find(child), Directory):
                self.remove_tree(child)
            else:
                self._remove("remove_tree", child)
        self._remove("remove_tree", path)

    def sync_directory(self, path: str) -> None:
        """Sync the names in this directory, neither the content of files nor names in subdirectories."""
        directory = self._directory(path)
        self.begin("sync_directory", path)
        self.disk.sync(directory)

    def sync_files(self, files: Sequence[filesystem.File]) -> list[OSError | None]:
        """One after the other; each is an operation."""
        return [filesystem.outcome_of(file.fdatasync) for file in files]

    def begin_sync(self, files: Sequence[filesystem.File]) -> filesystem.PendingSync | None:
        """As ``sync_files``, whose outcome is collected later, with ``begins_syncs``; else None."""
        return _ForgetfulSync(self.sync_files(files)) if self.begins_syncs and files else None

    def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
        """One after the other; each is an operation."""
        return [filesystem.outcome_of(self.sync_directory, path) for path in paths]

    def lock(self, path: str) -> filesystem.Lock:
        """Lock; an operation if it creates the file, a read if the file exists."""
        inode = self._found_or_created("lock", path)
        if inode in self._locked:
            raise BlockingIOError("another broker of this process")
        self._locked.add(inode)
        lock = _ForgetfulLock(self, path, inode, self._locked)
        self.handles[lock] = path
        return lock

    def hold(self, directory: str) -> filesystem.Hold:
        """A read; there are no child processes."""
        self._directory(directory)
        return filesystem.Hold()

    def free_bytes(self, path: str) -> int:
        """What ``limit_free_bytes`` left, less what was written since."""
        self._find(path)
        return UNLIMITED_FREE_BYTES if self.disk.capacity is None else max(0, self.disk.capacity - self.used)

    def total_bytes(self, path: str) -> int:
        """The capacity; without a limit as ``free_bytes``."""
        self._find(path)
        return UNLIMITED_FREE_BYTES if self.disk.capacity is None else self.disk.capacity

    def inodes(self, path: str) -> filesystem.Inodes | None:
        """What ``limit_free_inodes`` left; None without a limit."""
        self._find(path)
        limit = self.disk.inodes_max
        return None if limit is None else filesystem.Inodes(max(0, limit - self.disk.inodes_used), limit)

    def _take_inode(self, path: str) -> None:
        limit = self.disk.inodes_max
        if limit is not None and self.disk.inodes_used >= limit:
            raise os_error(errno.ENOSPC, path)

    def _find(self, path: str) -> Node:
        self.check_running()
        node: Node = self.disk.root
        for part in _parts(path):
            if isinstance(node, Inode):
                raise os_error(errno.ENOTDIR, path)
            if part not in node.entries:
                raise os_error(errno.ENOENT, path)
            node = node.entries[part]
        return node

    def _inode(self, path: str) -> Inode:
        node = self._find(path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if isinstance(node, Inode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        """The directory of a path, and the name in it."""
        parts = _parts(path)
        if not parts:
            raise os_error(errno.EBUSY, path)  # the root
        return self._directory("/".join(parts[:-1])), parts[-1]

    def _found(self, operation: str, path: str) -> Inode:
        self.look(operation, path)
        return self._inode(path)

    def _found_or_created(self, operation: str, path: str) -> Inode:
        directory, name = self._place(path)
        if name in directory.entries:
            return self._found(operation, path)
        self.begin(operation, path)
        self._take_inode(path)
        inode = Inode(self.now_ms)
        self.disk.change((NameChange(directory, name, None, inode),), self.now_ms)
        return inode

    def _remove(self, operation: str, path: str) -> None:
        directory, name = self._place(path)
        self.begin(operation, path)
        self.disk.change((NameChange(directory, name, directory.entries[name], None),), self.now_ms)


class _ForgetfulFile(filesystem.File):
    def __init__(self, fs: ForgetfulFileSystem, path: str, inode: Inode, *, writable: bool) -> None:
        self._fs = fs
        self.path = path
        self.inode: Inode | None = inode
        self._writable = writable

    def fileno(self) -> int:
        raise os_error(errno.EBADF, self.path)  # there is no descriptor: callers fall back to pread

    def size(self) -> int:
        return len(self._open_inode().content)

    def pread(self, size: int, position: int) -> bytes:
        inode = self._open_inode()
        if position < 0:
            raise os_error(errno.EINVAL, self.path)
        data = bytes(inode.content[position : position + size])
        self._fs.look("pread", self.path, position, len(data))
        inode.evicted = False
        return data

    def pwritev(self, buffers: Sequence[filesystem.Buffer], position: int) -> int:
        fs, inode = self._fs, self._open_inode(to_write=True)
        if position < 0:
            raise os_error(errno.EINVAL, self.path)
        data = b"".join(buffers[: filesystem.BUFFERS_PER_WRITE])
        fs.disk.write(inode, data[: fs.torn_bytes()], position, fs.now_ms)
        limit = fs.begin("pwritev", self.path, position, len(data))
        if limit is not None:
            data = data[:limit]
        room = len(data)
        if fs.disk.capacity is not None and position + room > len(inode.content):  # overwriting needs no space
            room = max(0, min(room, len(inode.content) + max(0, fs.disk.capacity - fs.used) - position))
        if data and not room:
            raise os_error(errno.ENOSPC, self.path)
        fs.disk.write(inode, data[:room], position, fs.now_ms)
        return room

    def clone_from(self, source: filesystem.File) -> bool:
        del source
        return False  # as most file systems

    def copy_from(self, source: filesystem.File, position: int, size: int) -> int:
        data = source.pread(size, position)
        return filesystem.write_all(self, [data], position) if data else 0

    def truncate(self, size: int) -> None:
        inode = self._open_inode(to_write=True)
        if size < 0:
            raise os_error(errno.EINVAL, self.path)
        self._fs.begin("truncate", self.path, size)
        self._fs.disk.truncate(inode, size, self._fs.now_ms)

    def fdatasync(self) -> None:
        inode = self._open_inode()
        try:
            self._fs.begin("fdatasync", self.path)
        except OSError:
            inode.fail_sync()
            raise
        inode.sync()

    def is_cached(self, position: int, size: int) -> bool:
        del position, size  # a file is in the cache as a whole or not at all
        return self._fs.cached and not self._open_inode().evicted

    def pread_cached(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position) if self.is_cached(position, size) else None

    def no_readahead(self) -> None:
        self._open_inode()

    def bring_in(self, position: int, size: int) -> None:
        del position, size
        self._open_inode()

    def close(self) -> None:
        if self.inode is not None:
            self.inode = None
            del self._fs.handles[self]

    def _open_inode(self, *, to_write: bool = False) -> Inode:
        self._fs.check_running()
        if self.inode is None or (to_write and not self._writable):
            raise os_error(errno.EBADF, self.path)
        return self.inode


class _ForgetfulMap(filesystem.Map):
    def __init__(self, fs: ForgetfulFileSystem, path: str, inode: Inode, size: int) -> None:
        self._fs = fs
        self._path = path
        self._inode: Inode | None = inode
        self._size = size
        self._version = -1
        self._data = b""

    @property
    def data(self) -> bytes:
        """A copy, updated when the file has changed: like a shared map it shows later writes."""
        self._fs.check_running()
        if self._inode is None:
            raise ValueError(f"The map of {self._path} is closed.")
        if self._version != self._inode.version:
            if len(self._inode.content) < self._size:
                raise SimulatedCrash(f"SIGBUS: {self._path} was cut while it was mapped")
            self._data, self._version = bytes(self._inode.content[: self._size]), self._inode.version
        return self._data

    def close(self) -> None:
        if self._inode is not None:
            self._inode = None
            del self._fs.handles[self]


class _ForgetfulLock(filesystem.Lock):
    def __init__(self, fs: ForgetfulFileSystem, path: str, inode: Inode, locked: set[Inode]) -> None:
        self._fs = fs
        self._path = path
        self._inode = inode
        self._locked = locked

    def is_in_place(self) -> bool:
        try:
            return self._fs._find(self._path) is self._inode  # noqa: SLF001 - its own
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        if self in self._fs.handles:
            del self._fs.handles[self]
            self._locked.discard(self._inode)


class _ForgetfulSync(filesystem.PendingSync):
    def __init__(self, outcomes: list[OSError | None]) -> None:
        self.descriptor = None  # of the object: compiled code does not see what stands in an heir's class
        self._outcomes = outcomes

    def collect(self) -> list[OSError | None]:
        return self._outcomes


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
