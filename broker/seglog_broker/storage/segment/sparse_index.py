"""The base of offset and time index: a sorted file of fixed-size entries that can be rebuilt from the log.

The newest entries are in memory, and are appended with ``pwritev``, many at a time. Older ones are read through a
read-only map that is never longer than the file and is closed before the file changes. No file is preallocated or
written through a map: a store into a hole of a full disk kills the process. Whether an index is full is decided by the
count of its entries and ``segment.index.bytes``, not by the size of its file.

A write that fails loses nothing: its entries stay in memory and are written with the next ones, and all entries can be
rebuilt from the log.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Final, Self

from seglog_broker.storage.io.filesystem import Buffer, FileSystem, write_all
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_protocol import segment_files as files

WRITE_BYTES: Final = 4096
"""Bytes of entries collected before they are written: one system call for 512 offset entries."""

TAIL_BYTES_MAX: Final = 64 * 1024
"""Entries kept in memory before they are read through a map: bounds memory at 128 KiB a partition."""


FloorSearch = Callable[..., int]
"""A floor search of ``segment_files``: (data, count, wanted, low=0) -> number of the last entry in [low, count) at or
below ``wanted``, or low - 1."""

BESIDE_SUFFIX: Final = f".made{files.TEMPORARY_SUFFIX}"
"""Suffix of an index that is built while the old one still exists; the scrub uses another name."""


class IndexOrderError(Exception):
    """An entry that does not follow the last one: a bug when appending, damage when rebuilding from a log."""


class SparseIndex:
    """A file of ``entry_size``-byte entries, sorted by their first field.

    Not thread-safe, like everything in storage. ``count`` reads the size of the file once, at the first call.
    """

    entry_size: ClassVar[int]
    """Bytes of an entry, set by the subclass."""
    reserved: ClassVar[int] = 0
    """Slots that plain entries leave free."""

    def __init__(
        self, fs: FileSystem, handles: HandlePool, path: str, base_offset: int, *, bytes_max: int, exists: bool
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.write_bytes = WRITE_BYTES
        self.tail_bytes_max = TAIL_BYTES_MAX
        self.entries_max = bytes_max // self.entry_size
        self._fs = fs
        self._handles = handles
        self.exists = exists  # whether there is a file
        self._on_file: int | None = None if exists else 0  # entries in the file only; None: not read yet
        self._tail = bytearray()  # entries after those
        self._written = 0  # bytes of the tail that are in the file too
        self._last_known = not exists  # whether the subclass has the newest entry decoded
        self.is_dirty = False  # written since it was last known to be synced

    # --- Reading ------------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Whole entries."""
        on_file = self._on_file
        return (self._file_count() if on_file is None else on_file) + len(self._tail) // self.entry_size

    @property
    def size(self) -> int:
        """Bytes of whole entries, in the file or to be written."""
        return self.count * self.entry_size

    @property
    def room(self) -> int:
        """How many more plain entries fit; the time index keeps one slot for its closing entry."""
        return self.entries_max - self.reserved - self.count

    @property
    def is_full(self) -> bool:
        """Whether the next plain entry would not fit."""
        return self.count >= self.entries_max - self.reserved

    def search(self, floor: FloorSearch, wanted: int) -> bytes | None:
        """The last entry at or below ``wanted``, as bytes, or None; at most log2(count) + 2 probes.

        The first of the entries in memory shows whether the result is among them, so that the file is not read, or in
        the file, which is searched through a map. ``floor`` gets the entries in memory as a bytearray.
        """
        return self._search(floor, wanted, around=0)[0]

    def search_around(self, floor: FloorSearch, wanted: int) -> Sequence[bytes | None]:
        """As ``search``, between the entries before and after it; all None if there is none at or below ``wanted``."""
        return self._search(floor, wanted, around=1)

    def _search(self, floor: FloorSearch, wanted: int, *, around: int) -> Sequence[bytes | None]:
        tail, size = self._tail, self.entry_size
        on_file = self._file_count()
        if tail and floor(tail, 1, wanted) == 0:
            number = on_file + floor(tail, len(tail) // size, wanted, low=1)
        elif on_file:
            with self._handles.lease_map(self.path, on_file * size) as mapped:
                data = mapped.data
                number = floor(data, on_file, wanted)
                if around <= number < on_file - around:
                    start = (number - around) * size
                    return [bytes(data[at : at + size]) for at in range(start, start + (2 * around + 1) * size, size)]
        else:
            number = -1
        return self._entries_around(number, around)

    def _entries_around(self, number: int, around: int = 1) -> Sequence[bytes | None]:
        """Entry ``number`` and as many before and after it; None where there is none, all None for number -1."""
        numbers = range(number - around, number + around + 1)
        return [self._entry_bytes(at) if number >= 0 and 0 <= at < self.count else None for at in numbers]

    def read_last(self) -> bytes | None:
        """The newest entry, or None when there is none."""
        return self._entry_bytes(self.count - 1) if self.count else None

    def read(self) -> bytes:
        """All whole entries as bytes; for tools, tests and checks, not for lookups."""
        count = self._file_count()
        if not count:
            return bytes(self._tail)
        with self._handles.lease_map(self.path, count * self.entry_size) as mapped:
            return bytes(mapped.data[: count * self.entry_size]) + self._tail

    def read_ends(self) -> bytes:
        """The first and the last entry, concatenated: all that a sanity check needs."""
        count = self.count
        numbers = (0, count - 1) if count > 1 else range(count)
        return b"".join(self._entry_bytes(number) for number in numbers)

    def file_size(self) -> int:
        """Bytes of the file as it is, half entries included; 0 when there is no file."""
        return self._fs.stat(self.path).size if self.exists else 0

    # --- Writing ------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the empty file; the content of an earlier, failed attempt is dropped."""
        if not self.exists:
            with self._fs.open(self.path, create=True) as file:
                if file.size():
                    file.truncate(0)
            self.exists = True
            self.is_dirty = True

    def _append(self, entry: Buffer) -> None:
        self._tail += entry
        if len(self._tail) - self._written >= self.write_bytes:
            try:
                self.write_pending()
            except OSError:
                return  # derived data: it stays in memory, and the next append tries again
            if len(self._tail) >= self.tail_bytes_max:
                self._forget_tail()

    def write_pending(self) -> None:
        """Write every entry to the file. After an OSError they stay in memory, to be written later."""
        if len(self._tail) > self._written or not self.exists:
            self._handles.forget_map(self.path)
            base = self._file_count() * self.entry_size
            with self._fs.open(self.path, create=True) as file:
                self.exists = True
                self.is_dirty = True
                write_all(file, [memoryview(self._tail)[self._written :]], base + self._written)
                self._written = len(self._tail)

    def trim(self) -> None:
        """Write and trim the file to exactly its entries, and keep none in memory; for a segment that is closed."""
        self.write_pending()
        if self._fs.stat(self.path).size != self.size:
            self._cut_file(self.size)
        self._forget_tail()

    def drop_last(self) -> None:
        """Drop the newest entry, in memory and in the file: the closing one of a segment that becomes active again."""
        count = self.count - 1
        self._last_known = False
        kept_on_file = min(count, self._file_count())
        self._tail = self._tail[: (count - kept_on_file) * self.entry_size]
        self._on_file = kept_on_file
        if self.exists:
            self._written = min(self._written, len(self._tail))
            self._cut_file(min(self._fs.stat(self.path).size, self.size))

    def reset(self) -> None:
        """Drop every entry, and all bytes of the file."""
        self._last_known = False
        self._tail = bytearray()
        self._written = 0
        self._on_file = 0
        if self.exists and self._fs.stat(self.path).size:
            self._cut_file(0)

    def beside(self) -> Self:
        """A new, empty index in another file; ``take_over`` replaces this index by it."""
        return type(self)(
            self._fs,
            self._handles,
            f"{self.path}{BESIDE_SUFFIX}",
            self.base_offset,
            bytes_max=self.entries_max * self.entry_size,
            exists=False,
        )

    def take_over(self, made: Self) -> None:
        """Replace the entries by those of ``made``, an index from ``beside``; its file is synced and renamed to this.

        After an OSError the entries are kept in memory and the old file stays: it is derived data.
        """
        try:
            made.trim()
            with self._fs.open(made.path, writable=True) as file:
                file.fdatasync()
            self.replace(made.path)
        except OSError:
            entries = bytearray(made.read())
            self._handles.forget(self.path)
            self._tail, self._written, self._on_file = entries, 0, 0
            self._last_known = False
            made.remove()

    def remove(self) -> None:
        """Drop every entry and remove the file, if there is one. If that fails, the next start removes it."""
        self._tail, self._written, self._on_file = bytearray(), 0, 0
        self._handles.forget(self.path)
        if self.exists:
            self.exists = False
            with suppress(OSError):
                self._fs.unlink(self.path)

    def replace(self, temporary: str) -> None:
        """Replace the file by ``temporary``, and forget everything known about the old one."""
        self._handles.forget(self.path)
        self._handles.forget(temporary)
        self._fs.rename(temporary, self.path)
        self._tail = bytearray()
        self._written = 0
        self._on_file = None
        self._last_known = False
        self.exists = self.is_dirty = True

    def _cut_file(self, size: int) -> None:
        self._handles.forget(self.path)
        with self._fs.open(self.path, writable=True) as file:
            file.truncate(size)
            self.is_dirty = True

    def _entry_bytes(self, number: int) -> bytes:
        on_file = self._file_count()
        start = number * self.entry_size
        if number >= on_file:
            start -= on_file * self.entry_size
            return bytes(self._tail[start : start + self.entry_size])
        with self._handles.lease_map(self.path, on_file * self.entry_size) as mapped:
            return bytes(mapped.data[start : start + self.entry_size])

    def _forget_tail(self) -> None:
        self._handles.forget_map(self.path)
        self._on_file = self.count
        self._tail = bytearray()
        self._written = 0

    def _file_count(self) -> int:
        if self._on_file is None:
            self._on_file = self._fs.stat(self.path).size // self.entry_size
        return self._on_file
