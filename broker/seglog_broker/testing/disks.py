"""The disk of a broker in tests: a directory of the machine, or one in memory; both can be full.

``MachineDisk`` is the machine's file system, ``MemoryDisk`` a ``ForgetfulFileSystem``, which can lose its power, too.
"""

import errno
from collections.abc import Sequence

from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import Buffer, File, PendingSync, PosixFileSystem
from seglog_broker.testing.forgetful import CrashPolicy, ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import os_error


class MachineDisk(PosixFileSystem):
    """The machine's file system, which has no room as long as ``is_full``.

    With ``is_temporary`` nothing is synced: its files are not there any more when a power cut could matter to them.
    """

    def __init__(self, *, is_temporary: bool) -> None:
        super().__init__()
        self.is_full = False
        self.is_temporary = is_temporary

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        """See FileSystem. A file that does not exist yet cannot be made while the disk is full."""
        if not (create or writable):
            return super().open(path)
        if create and self.is_full and not self.exists(path):
            raise os_error(errno.ENOSPC, path)
        file = super().open(path, create=create, writable=writable)
        return _LimitedFile(self, path, file.fileno())

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        """See FileSystem."""
        return [None for _ in files] if self.is_temporary else super().sync_files(files)

    def begin_sync(self, files: Sequence[File]) -> PendingSync | None:
        """See FileSystem."""
        return None if self.is_temporary else super().begin_sync(files)

    def sync_directory(self, path: str) -> None:
        """See FileSystem."""
        if not self.is_temporary:
            super().sync_directory(path)

    def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
        """See FileSystem."""
        return [None for _ in paths] if self.is_temporary else super().sync_directories(paths)

    def free_bytes(self, path: str) -> int:
        """See FileSystem."""
        return 0 if self.is_full else super().free_bytes(path)


class _LimitedFile(File):
    def __init__(self, disk: MachineDisk, path: str, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._disk = disk

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """See File."""
        if self._disk.is_full and position + sum(map(len, buffers)) > self.size():
            raise os_error(errno.ENOSPC, self.path)
        return super().pwritev(buffers, position)

    def fdatasync(self) -> None:
        """See File."""
        if not self._disk.is_temporary:
            super().fdatasync()


class MemoryDisk(ForgetfulFileSystem):
    """A disk in memory whose files change at the time of ``clock``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(is_recorded=False)

    @property
    def now_ms(self) -> int:
        """The modification time that files get."""
        return self._clock.now_ms()

    @now_ms.setter
    def now_ms(self, _now_ms: int) -> None:
        """It is the clock's."""

    @property
    def is_full(self) -> bool:
        """Whether there is no room."""
        return self.disk.capacity is not None

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        self.limit_free_bytes(0 if is_full else None)

    def found_after(self, policy: CrashPolicy) -> "MemoryDisk":
        """See ForgetfulFileSystem."""
        found = MemoryDisk(self._clock)
        found.disk = self.disk.after(policy)
        return found


TestDisk = MachineDisk | MemoryDisk
