"""A pool of open files and maps, which are leased: none is closed or evicted while a lease on it is held.

The operating system reuses a descriptor number as soon as it is closed. Without leases, an eviction between two steps
of a ``sendfile`` would send another file's bytes. So every use is ``with handles.lease(path) as file``; closing,
eviction and deletion wait for the last lease, and a descriptor never crosses an ``await`` or enters a thread without
one. The pool holds at most ``limit`` open handles, those of writers included: before it opens another one it closes the
least recently used one. Only while all of them are leased it holds more, up to ``EXCESS_MAX``; ``excess`` is their
number.
"""

import errno
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from seglog_broker.storage.io.filesystem import File, FileSystem, Map, parent
from seglog_broker.storage.io.os_errors import NO_RESOURCES
from seglog_broker.storage.io.pauses import ColdReadError, OnlyWarm
from seglog_protocol.header_scan import ReadBytes

HANDLES_MAX_DEFAULT: Final = 512

EXCESS_MAX: Final = 64
"""Handles beyond the limit, while all are leased. Then opening fails as if the process had no descriptor left, because
connections and other files need the rest."""

STOP_EXCESS: Final = 6
"""Further handles that a stop may open: a segment with its indexes, a producer snapshot, and two more."""

READ_AHEAD_BYTES: Final = 128 * 1024
"""Bytes read into memory at a time when a seek found cold bytes: the seek, or the fetch after it, reads on there."""


ResourceT = TypeVar("ResourceT", bound=File | Map)


class _Handle(Generic[ResourceT]):
    __slots__ = ("forgotten", "home", "leases", "path", "resource", "retired", "writable")

    def __init__(
        self, home: "dict[str, _Handle[ResourceT]]", path: str, resource: ResourceT, *, writable: bool
    ) -> None:
        self.home = home  # the pool's files or its maps
        self.path = path
        self.resource = resource
        self.writable = writable
        self.leases = 0
        self.retired = False  # no longer found by its path: the last lease closes it
        self.forgotten = False  # retired because the path no longer names this file


class Lease(Generic[ResourceT]):
    """A promise that ``resource`` stays open until ``release``, or until the ``with`` block ends."""

    __slots__ = ("_handle", "_pool", "resource")

    def __init__(self, pool: "HandlePool", handle: _Handle[ResourceT]) -> None:
        self._pool = pool
        self._handle: _Handle[ResourceT] | None = handle
        self.resource = handle.resource

    @property
    def is_forgotten(self) -> bool:
        """Whether the file has been renamed, removed or replaced since the lease began (``HandlePool.forget``)."""
        return self._handle is not None and self._handle.forgotten

    def release(self) -> None:
        """Give the resource back. A second release does nothing."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._pool._released(handle)  # noqa: SLF001 - a lease is part of its pool

    def __enter__(self) -> ResourceT:
        return self.resource

    def __exit__(self, *_error: object) -> None:
        self.release()


class HandlePool:
    """The open files and maps of one broker.

    Without ``readahead`` the system reads only the bytes asked for. A loop needs that: readahead may block it while the
    device's queue is full.
    """

    def __init__(self, fs: FileSystem, limit: int = HANDLES_MAX_DEFAULT, *, readahead: bool = True) -> None:
        self._fs = fs
        self._limit = limit
        self._excess_max = EXCESS_MAX
        self._readahead = readahead
        self._files: dict[str, _Handle[File]] = {}
        self._maps: dict[str, _Handle[Map]] = {}
        self._idle: OrderedDict[_Handle[Any], None] = OrderedDict()  # not leased, longest unused first
        self._retired_open = 0  # retired ones that are still leased
        self.only_warm = OnlyWarm()

    def lease(self, path: str, *, writable: bool = False, create: bool = False) -> Lease[File]:
        """The file at ``path``, opened if need be; one opened for writing serves readers too. Raises OSError."""
        return self._leased(self._handle_of(path, writable=writable or create, create=create))

    def read(self, path: str, size: int, position: int, *, may_wait: bool = False) -> ReadBytes:
        """Up to ``size`` bytes of a file from ``position``; fewer only at its end.

        Within ``only_warm`` it raises ColdReadError instead of waiting for the disk, unless it ``may_wait``. OSError
        where the file cannot be opened or read.
        """
        handle = self._handle_of(path)
        if not handle.leases:  # it is the one used last
            self._idle.pop(handle, None)
            self._idle[handle] = None
        file = handle.resource
        if may_wait or not self.only_warm.is_on or self.only_warm.may_wait:
            return file.pread(size, position)
        data = file.pread_cached(size, position)
        if data is None:
            raise ColdReadError(path, position, max(size, READ_AHEAD_BYTES))
        return data

    def _handle_of(self, path: str, *, writable: bool = False, create: bool = False) -> _Handle[File]:
        handle = self._files.get(path)
        if handle is not None and writable and not handle.writable:
            self._retire(self._files, path)
            handle = None
        if handle is None:
            file = self._opened(lambda: self._fs.open(path, create=create, writable=writable))
            if not self._readahead:
                file.no_readahead()
            handle = self._files[path] = _Handle(self._files, path, file, writable=writable)
        return handle

    def lease_map(self, path: str, size: int) -> Lease[Map]:
        """A map of the first ``size`` > 0 bytes of ``path``. Call ``forget_map`` before the file changes.

        Raises OSError, and ColdReadError within ``only_warm``.
        """
        handle = self._maps.get(path)
        if handle is None:
            if self.only_warm.is_on and not self.only_warm.may_wait:
                with self.lease(path) as file:
                    if not file.is_cached(0, size):
                        raise ColdReadError(path, 0, size)
            mapped = self._opened(lambda: self._fs.map(path, size))
            handle = self._maps[path] = _Handle(self._maps, path, mapped, writable=False)
        return self._leased(handle)

    def forget(self, path: str) -> None:
        """Close the file and the map of ``path``, at once or with the last lease; the next lease opens it again."""
        self._retire(self._files, path, forgotten=True)
        self._retire(self._maps, path, forgotten=True)

    def forget_map(self, path: str) -> None:
        """Close the map of ``path``, because its file is about to change."""
        self._retire(self._maps, path)

    def forget_in(self, *directories: str) -> None:
        """Forget every path in these directories, because they are about to be renamed or removed."""
        gone = frozenset(directories)
        for path in [path for path in (*self._files, *self._maps) if parent(path) in gone]:
            self.forget(path)

    def limit_to(self, limit: int, excess_max: int) -> None:
        """Lower the limit to ``limit`` handles, and ``excess_max`` more while all are leased; never raises either.

        For a process that may open fewer files than was planned.
        """
        self._limit, self._excess_max = min(self._limit, limit), min(self._excess_max, excess_max)
        self._shrink(self._limit)

    def make_room_for_stop(self) -> None:
        """Allow STOP_EXCESS more handles: if writers lease all of them, a stop could not open the files of any log."""
        self._excess_max += STOP_EXCESS

    def close(self) -> None:
        """Close all files and maps; leased ones when their last lease ends."""
        for path in [*self._files, *self._maps]:
            self.forget(path)

    @property
    def open_count(self) -> int:
        """The number of open files and maps, leased or not, forgotten ones included."""
        return len(self._files) + len(self._maps) + self._retired_open

    @property
    def excess(self) -> int:
        """By how many handles the limit is exceeded, because all are leased; 0 if it is not."""
        return max(0, self.open_count - self._limit)

    @property
    def is_scarce(self) -> bool:
        """Whether appends to further files should wait: half of the excess is in use, and the rest is for readers."""
        return self.excess > self._excess_max // 2

    def has_room_for(self, count: int) -> bool:
        """Whether ``count`` more handles can be leased within the limit."""
        return self.open_count - len(self._idle) + count <= self._limit

    def _opened(self, open_it: Callable[[], ResourceT]) -> ResourceT:
        """``open_it()``, after closing an idle handle if the limit is reached, or all if the system has none left."""
        self._shrink(self._limit - 1)
        if self.excess >= self._excess_max:
            raise OSError(errno.EMFILE, f"all {self.open_count} open segment files and index maps are in use")
        try:
            return open_it()
        except OSError as error:
            if error.errno not in NO_RESOURCES or not self._idle:
                raise
        self._shrink(0)
        return open_it()

    def _shrink(self, limit: int) -> None:
        """Close unused handles until at most ``limit`` are open."""
        while self._idle and self.open_count > limit:
            oldest = next(iter(self._idle))
            self._retire(oldest.home, oldest.path)

    def _leased(self, handle: _Handle[ResourceT]) -> Lease[ResourceT]:
        if not handle.leases:
            self._idle.pop(handle, None)
        handle.leases += 1
        return Lease(self, handle)

    def _retire(self, handles: dict[str, _Handle[ResourceT]], path: str, *, forgotten: bool = False) -> None:
        handle = handles.pop(path, None)
        if handle is not None:
            handle.retired = True
            handle.forgotten = forgotten
            if handle.leases == 0:
                self._idle.pop(handle, None)
                handle.resource.close()
            else:
                self._retired_open += 1

    def _released(self, handle: _Handle[ResourceT]) -> None:
        handle.leases -= 1
        if handle.leases:
            return
        if handle.retired:
            self._retired_open -= 1
            handle.resource.close()
            return
        self._idle[handle] = None
        if len(self._files) + len(self._maps) + self._retired_open > self._limit:  # ``open_count``: for every lease
            self._shrink(self._limit)
