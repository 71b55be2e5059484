"""``FileSystem``: the only module of the storage engine that touches files.

All other modules get a ``FileSystem`` as an argument, so that tests can replace it by ``forgetful``: a disk that loses
what was never synced, stops after operation N, and fails on demand. The operations are therefore few and small; each is
one system call, and none retries: ``write_all`` does that for its callers.

Paths are ``str`` with ``/``; positions and sizes are bytes. Every method may raise ``OSError`` with its ``errno``.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import stat as stat_module
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final, NamedTuple, Self, TypeVar, TypeVarTuple

from mypy_extensions import mypyc_attr

from seglog_broker.storage.io.fsync_queue import KernelSync, begin_in_kernel, sync_in_kernel

Buffer = bytes | bytearray | memoryview
ItemT = TypeVar("ItemT")
ArgumentTs = TypeVarTuple("ArgumentTs")

SyncInKernel = Callable[[Sequence[int]], list[int | None]]
"""Syncs files by their descriptors, as ``fsync_queue.sync_in_kernel``."""

BUFFERS_PER_WRITE: Final = 1024
"""IOV_MAX of Linux and macOS: with more buffers pwritev fails as a whole, so it gets only the first so many."""

PAGE_PROBE_INTERVAL: Final = 128 * 1024
"""Bytes between two probes of ``File.is_cached``: readahead reads pages in by windows of this size, so that one byte
stands for its window."""


SYNCS_BEGUN_MAX: Final = 64
"""Files whose sync is begun on the loop, at 2 µs each; more take a thread."""

SYNC_THREADS_MAX: Final = 8
"""Fsyncs side by side where the kernel has no queue for them."""

DIRECTORIES_OPEN_MAX: Final = 32
"""Directories that are held open at a time while they are synced."""

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""New files and directories are for the broker's own user only; existing ones keep their mode."""

PAGE_BYTES_MIN: Final = 4096
"""The smallest page size: the bytes of one such piece of a file are all in memory, or none is."""

ORPHANS_WAIT_SECONDS: Final = 10.0
"""How long a start waits for worker processes of a broker that was killed: they end within milliseconds, unless they
wait for the disk."""

_ORPHANS_LOOK_SECONDS: Final = 0.005

_FICLONE: Final = 0x40049409
"""Linux's ioctl that has a file share the blocks of another one; the number is the same on all its machines."""

CANNOT_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})
"""Why a file gets no second name: another file system, one without hard links, too many of them, another owner."""

_CANNOT_SHARE: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM, errno.EACCES}
)
"""Errors of FICLONE and copy_file_range where the bytes have to be copied by hand."""

_PROBE: Final = [bytearray(1)]
"""The buffer that probes read into; its content is not used."""


class FileStat(NamedTuple):
    """Size in bytes, time of the last change (ms since 1970), and kind of a file.

    ``inode`` tells files apart that have the same path one after the other; 0 where that is not known.
    """

    size: int
    mtime_ms: int
    is_directory: bool
    inode: int = 0


class Inodes(NamedTuple):
    """The numbers of free and of all inodes of a file system: one for each file and directory."""

    free: int
    total: int


@mypyc_attr(allow_interpreted_subclasses=True)
class File:
    """An open file, closed by ``close`` or at the end of a ``with`` block; the garbage collector does not close it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        """The path it was opened under; a later rename does not change it."""
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor, for ``sendfile``; valid until ``close``."""
        return self._descriptor

    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self._descriptor).st_size

    def pread(self, size: int, position: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # Linux reads at most 2 GiB a call and may be interrupted between pages
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other at ``position``; the count may be short."""
        return os.pwritev(self._descriptor, buffers[:BUFFERS_PER_WRITE], position)

    def clone_from(self, source: "File") -> bool:
        """Replace the content by that of ``source``, sharing its blocks (reflink). False: not possible here."""
        if sys.platform != "linux":
            return False
        try:
            fcntl.ioctl(self._descriptor, _FICLONE, source.fileno())
        except OSError as error:
            if error.errno in _CANNOT_SHARE:
                return False
            raise
        return True

    def copy_from(self, source: "File", position: int, size: int) -> int:
        """Copy up to ``size`` bytes at ``position`` of ``source`` to the same place; 0 only at its end."""
        if sys.platform == "linux":
            try:
                return os.copy_file_range(source.fileno(), self._descriptor, size, position, position)
            except OSError as error:
                if error.errno not in _CANNOT_SHARE:
                    raise
        data = source.pread(size, position)
        return write_all(self, [data], position) if data else 0

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)

    def fdatasync(self) -> None:
        """Return when the bytes, and the size needed to read them back, survive a power cut."""
        if sys.platform == "darwin":
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)  # fsync there stops at the drive's own cache
        else:
            os.fdatasync(self._descriptor)

    def is_cached(self, position: int, size: int) -> bool:
        """Whether [position, position + size) can probably be read without waiting for the disk."""
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        last = position + size - 1
        places = (
            (last,)
            if position // PAGE_BYTES_MIN == last // PAGE_BYTES_MIN
            else (*range(position, last, PAGE_PROBE_INTERVAL), last)
        )
        for at in places:
            try:
                os.preadv(self._descriptor, _PROBE, at, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True  # not supported by this file system (overlay, tmpfs on old kernels): assume it is fast
        return True

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """As ``pread``, of bytes that are in memory; None where it would have to wait for the disk."""
        if not hasattr(os, "RWF_NOWAIT"):
            return None
        data = bytearray(size)
        try:
            got = os.preadv(self._descriptor, (data,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError:  # not supported by this file system, see ``is_cached``
            return self.pread(size, position)
        if got == size:
            return data
        # Either the file ends there, or the rest is not in memory.
        return self.pread(size, position) if position + got >= self.size() else None

    def no_readahead(self) -> None:
        """Turn readahead off for this file: it may block while the device's queue is full."""
        self._advise(0, 0, "POSIX_FADV_RANDOM")

    def bring_in(self, position: int, size: int) -> None:
        """Have the system read [position, position + size) into memory; does not wait for the bytes."""
        self._advise(position, size, "POSIX_FADV_WILLNEED")

    def _advise(self, position: int, size: int, advice: str) -> None:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # a file system that takes no advice
                os.posix_fadvise(self._descriptor, position, size, getattr(os, advice))

    def close(self) -> None:
        """Give the descriptor back. A second close does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@mypyc_attr(allow_interpreted_subclasses=True)
class Map:
    """A read-only view of a file's first bytes; ``data`` must not outlive a call: a map with views cannot close."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped

    @property
    def data(self) -> Buffer | mmap.mmap:
        """The mapped bytes, addressable by ``struct.unpack_from``."""
        return self._mapped

    def close(self) -> None:
        """Unmap. A second close does nothing."""
        self._mapped.close()


_locked_directories: set[tuple[int, int]] = set()
"""(device, inode) of every lock file this process holds. POSIX record locks do not exclude their own process."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lock:
    """A held lock; the process that holds it is the only broker on the directory."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self._path = path
        self._descriptor = descriptor
        self._identity = identity

    def is_in_place(self) -> bool:
        """Whether the file is still found under its path; if not, its directory was removed or replaced."""
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # unknown, so nothing is wrong yet
        return (found.st_dev, found.st_ino) == self._identity

    def release(self) -> None:
        """Release the lock. The lock file stays: deleting it would let two processes lock two inodes."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _locked_directories.discard(self._identity)
            os.close(descriptor)


@mypyc_attr(allow_interpreted_subclasses=True)
class Hold:
    """A lock on a directory, held by this process and by every worker process that inherits ``descriptors``."""

    def __init__(self, *descriptors: int) -> None:
        self.descriptors = descriptors
        """Descriptors for worker processes to inherit; empty where the file system has no such locks."""

    def release(self) -> None:
        """Release the lock in this process. A second release does nothing."""
        descriptors, self.descriptors = self.descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingSync:
    """Files whose ``fdatasync`` is under way without a thread of ours; see ``FileSystem.begin_sync``."""

    def __init__(self, files: Sequence[File], syncing: KernelSync) -> None:
        self.descriptor: int | None = syncing.descriptor
        """Becomes readable when ``collect`` may know all, or most; None if it is to be called again soon."""
        self._files = files
        self._syncing = syncing

    def collect(self) -> list[OSError | None] | None:
        """What each file failed with, once all are done; None until then. Returns at once."""
        codes = self._syncing.collect()
        self.descriptor = self._syncing.descriptor
        if codes is None:
            return None
        # What the kernel had no room for, which is rare, is done here: another thread would have to be waited for.
        return [
            outcome_of(file.fdatasync) if code is None else _outcome(code, file.path)
            for code, file in zip(codes, self._files, strict=True)
        ]


@mypyc_attr(allow_interpreted_subclasses=True)
class FileSystem:
    """The machine's own file system, as the storage engine sees it. A double replaces every operation."""

    is_view: ClassVar[bool] = False
    """Whether changes stay in memory, so that nothing that is cut off or replaced here is lost."""

    def __init__(self) -> None:
        self.orphans_wait_seconds = ORPHANS_WAIT_SECONDS
        self.sync_files_in_kernel: SyncInKernel = sync_in_kernel
        self.sync_directories_in_kernel: SyncInKernel = partial(sync_in_kernel, data_only=False)
        self.begin_in_kernel: Callable[[Sequence[int]], KernelSync | None] = begin_in_kernel

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        """Open an existing file, or with ``create`` one that may be new; created files are writable.

        Child processes do not inherit the descriptor.
        """
        flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if create else os.O_RDWR if writable else os.O_RDONLY)
        return File(path, os.open(path, flags, FILE_MODE))

    def map(self, path: str, size: int) -> Map:
        """Map the first ``size`` > 0 bytes of a file; ValueError when the file is shorter."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Map(mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def stat(self, path: str) -> FileStat:
        """Size, time of last change, kind; FileNotFoundError when there is nothing."""
        found = os.stat(path)
        mtime_ms = found.st_mtime_ns // 1_000_000
        return FileStat(found.st_size, mtime_ms, stat_module.S_ISDIR(found.st_mode), found.st_ino)

    def set_mtime(self, path: str, mtime_ms: int) -> None:
        """Set the time of last change, and nothing else, to ``mtime_ms`` (ms since 1970).

        Python cannot leave the time of access unchanged, so it is read first and written again.
        """
        os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ms * 1_000_000))

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted, so that a log opens in the same order everywhere."""
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """Create one directory; FileExistsError when it is there."""
        os.mkdir(path, DIRECTORY_MODE)

    def rename(self, old: str, new: str) -> None:
        """Move within one file system, replacing a file of that name in one step."""
        os.replace(old, new)

    def link(self, path: str, new: str) -> None:
        """Give the file a second name (hard link); FileExistsError when that is there, see CANNOT_LINK for more.

        A symbolic link gets the second name itself, not the file that it leads to.
        """
        os.link(path, new, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """Remove a file; FileNotFoundError when there is none. Open descriptors of the file stay usable."""
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything below it. Not atomic: the next call removes what a crash leaves."""
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        """Return when the names in this directory survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        """``fdatasync`` of all files. Returns the error of each, or None.

        Through the kernel's queue (``fsync_queue``) where there is one, else in a few threads.
        """
        if len(files) < 2:
            return [outcome_of(file.fdatasync) for file in files]
        codes = self.sync_files_in_kernel([file.fileno() for file in files])
        return _ordinary_rest(codes, files, lambda file: file.fdatasync())

    def begin_sync(self, files: Sequence[File]) -> PendingSync | None:
        """Begin ``fdatasync`` of files and return at once. None, and nothing begun, where ``sync_files`` has to do it.

        They stay open, and no other sync is begun, until all are collected. Through the kernel's queue, if it has one,
        and if they are few.
        """
        if not 0 < len(files) <= SYNCS_BEGUN_MAX:
            return None
        syncing = self.begin_in_kernel([file.fileno() for file in files])
        return None if syncing is None else PendingSync(files, syncing)

    def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
        """``sync_directory`` of all, as ``sync_files``; at most DIRECTORIES_OPEN_MAX are open at a time."""
        if len(paths) < 2:
            return [outcome_of(self.sync_directory, path) for path in paths]
        codes: list[int | None] = []
        for first in range(0, len(paths), DIRECTORIES_OPEN_MAX):
            codes += _sync_directories(paths[first : first + DIRECTORIES_OPEN_MAX], self.sync_directories_in_kernel)
        return _ordinary_rest(codes, paths, self.sync_directory)

    def lock(self, path: str) -> Lock:
        """Lock the file ``path`` exclusively, by a whole-file POSIX record lock, as Java does: so Kafka is excluded.

        Closing *any* descriptor of the file would drop it, so this process never opens the file a second time: the set
        is asked first, by inode. Raises BlockingIOError when any process, also this one, holds it; the error as text is
        who that is.
        """
        with contextlib.suppress(FileNotFoundError):
            known = os.stat(path)
            if (known.st_dev, known.st_ino) in _locked_directories:
                raise BlockingIOError("another broker of this process")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:  # POSIX lets a held lock answer either
                raise BlockingIOError(_lock_holder(descriptor)) from error
            held, found = os.fstat(descriptor), os.stat(path)
            if (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino):
                raise BlockingIOError(f"who replaced {path} while it was being locked")
        except OSError:
            os.close(descriptor)
            raise
        identity = (held.st_dev, held.st_ino)
        _locked_directories.add(identity)
        return Lock(path, descriptor, identity)

    def hold(self, directory: str) -> Hold:
        """Hold a directory that this process has locked, once no worker process of an earlier broker holds it.

        By flock(2), whose locks children inherit. If that broker was killed, its workers are about to end: waits for
        them. Raises BlockingIOError if they do not.
        """
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        deadline = time.monotonic() + self.orphans_wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    raise
                time.sleep(_ORPHANS_LOOK_SECONDS)
            except OSError:  # a file system without such locks
                os.close(descriptor)
                return Hold()
            else:
                return Hold(descriptor)

    def free_bytes(self, path: str) -> int:
        """Bytes an unprivileged writer may still use on the file system that holds ``path``."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        """Bytes of the file system that holds ``path``, used or not."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def inodes(self, path: str) -> Inodes | None:
        """How many more files the file system that holds ``path`` can have; None where it has no such number.

        Btrfs and others say 0 of 0, for they make them as they go.
        """
        found = os.statvfs(path)
        return Inodes(found.f_favail, found.f_files) if found.f_files else None


PosixFileSystem = FileSystem
"""The name where the machine's own files are meant, and no double."""


def write_all(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write all of ``buffers`` at ``position``, with as many calls as it takes; returns the number of bytes.

    After an OSError a part may be written: only the caller knows where the file ended before.
    """
    done = file.pwritev(buffers, position)
    if done == sum(map(len, buffers)):
        return done  # nearly always
    rest: list[Buffer] = [*buffers]
    count = done
    while True:
        first = 0
        while first < len(rest) and count >= len(rest[first]):
            count -= len(rest[first])
            first += 1
        del rest[:first]
        if not rest:
            return done
        rest[0] = memoryview(rest[0])[count:]
        count = file.pwritev(rest, position + done)
        if count <= 0:
            raise OSError(errno.EIO, "a write took no byte and gave no reason", file.path)
        done += count


def read_file(fs: FileSystem, path: str) -> bytes:
    """The content of a small file. Raises OSError."""
    with fs.open(path) as file:
        return file.pread(file.size(), 0)


def write_file_atomically(fs: FileSystem, path: str, content: bytes, *, sync: bool = True) -> None:
    """Replace one file: see ``write_files_atomically``."""
    write_files_atomically(fs, [(path, content)], sync=sync)


def write_files_atomically(fs: FileSystem, contents: Sequence[tuple[str, bytes]], *, sync: bool = True) -> None:
    """Replace each path so that after a crash at any point it has its whole old content or its whole new one.

    Writes each ``<path>.tmp``, syncs all of them together, renames them, syncs their directories together; so the
    number of paths is bounded by that of open files. A ``.tmp`` that an earlier crash left is overwritten; after an
    OSError those still there are removed, because on a full disk their space is needed, and each path may have either
    content.
    Without ``sync`` this is true of a crash of the process only: after a power cut a path may have any content or be
    missing. That is for content that has a checksum and can be rebuilt.
    """
    written: list[tuple[str, File]] = []
    renamed = 0
    try:
        try:
            for path, content in contents:
                file = fs.open(f"{path}.tmp", create=True)
                written.append((path, file))
                file.truncate(0)
                write_all(file, [content], 0)
            if sync:
                _raise_first(fs.sync_files([file for _, file in written]))
        finally:
            for _, file in written:
                file.close()
        for path, _ in written:
            fs.rename(f"{path}.tmp", path)
            renamed += 1
    except OSError:
        for path, _ in written[renamed:]:
            with contextlib.suppress(OSError):
                fs.unlink(f"{path}.tmp")
        raise
    if sync:
        _raise_first(fs.sync_directories(list(dict.fromkeys(parent(path) for path, _ in contents))))


def _raise_first(outcomes: Sequence[OSError | None]) -> None:
    for error in outcomes:
        if error is not None:
            raise error


def parent(path: str) -> str:
    """The directory a path lies in."""
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


_FLOCK: Final = "hhqqi0q"
"""Linux's ``struct flock``: type, whence, start, length, process."""


def _lock_holder(descriptor: int) -> str:
    """Who holds the record lock of a file, for a sentence: the process, its command, and since when it runs."""
    holder = "another broker"
    try:
        if sys.platform != "linux":
            return holder
        asked = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
        process = struct.unpack(_FLOCK, asked)[4]
        if process <= 0:
            return "a process of another container or machine"
        holder = f"process {process}"
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = [os.path.basename(word) for word in os.fsdecode(file.read()).split("\0")]
        ours = next((number for number, word in enumerate(words) if word in ("seglogd", "seglog_broker")), None)
        verb = "" if ours is None else words[ours + 1]
        command = words[0] if ours is None else f"seglogd {verb}" if verb[:1].isalpha() else "seglogd"
        with open(f"/proc/{process}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])  # field 22, from the start of the machine on
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
        return f"{holder}, {command}, since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(began))}"
    except (OSError, ValueError, IndexError):
        return holder


def _sync_directories(paths: Sequence[str], sync_in_kernel: SyncInKernel) -> list[int | None]:
    """As ``sync_in_kernel``; None also for one that cannot be opened: ``sync_directory`` then raises the reason."""
    opened: list[int | None] = []
    try:
        for path in paths:
            try:
                opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            except OSError:
                opened.append(None)
        descriptors = [descriptor for descriptor in opened if descriptor is not None]
        codes = iter(sync_in_kernel(descriptors))
        return [None if descriptor is None else next(codes) for descriptor in opened]
    finally:
        for descriptor in opened:
            if descriptor is not None:
                os.close(descriptor)


def _ordinary_rest(
    codes: Sequence[int | None], items: Sequence[ItemT], sync: Callable[[ItemT], None]
) -> list[OSError | None]:
    """The error of each item, or None, after calling ``sync`` for those that the kernel's queue did not try."""
    outcomes = [_outcome(code, str(getattr(item, "path", item))) for code, item in zip(codes, items, strict=True)]
    rest = [number for number, code in enumerate(codes) if code is None]
    if rest:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - seldom needed

        with ThreadPoolExecutor(SYNC_THREADS_MAX) as threads:
            found = threads.map(lambda number: outcome_of(sync, items[number]), rest)
            for number, outcome in zip(rest, found, strict=True):
                outcomes[number] = outcome
    return outcomes


def _outcome(code: int | None, path: str) -> OSError | None:
    """The error of a sync that ended with ``code``; None for 0, and for what is not synced yet."""
    return OSError(code, os.strerror(code), path) if code else None


def is_directory(fs: FileSystem, path: str) -> bool:
    """Whether there is a directory; a symbolic link to nothing is none. Raises OSError."""
    return fs.exists(path) and fs.stat(path).is_directory


def outcome_of(call: Callable[[*ArgumentTs], None], *arguments: *ArgumentTs) -> OSError | None:
    """The OSError of ``call(*arguments)``, or None if it succeeded."""
    try:
        call(*arguments)
    except OSError as error:
        return error
    return None
