"""A file at a second place: by a second name, by sharing its blocks, or by copying its bytes, whichever works."""

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import CANNOT_LINK, File, FileSystem, parent, write_all

UNFINISHED_SUFFIX: Final = ".tmp"
"""At the end of the name of a file that is not whole yet."""

COPY_BYTES: Final = 4 * 1024 * 1024
"""Copied by one call, and counted for the pace."""

SYNC_BYTES: Final = 4 * 1024 * 1024
"""Written between two syncs of a long file. A sync of another file on the same disk waits for what is not written yet
of this one, in ext4 by way of the journal, too."""

READ_BYTES: Final = 1024 * 1024
"""Of a chunk of ``read_chunks``."""


class SourceTooShortError(OSError):
    """The source has fewer bytes than were to be copied."""


def copy_file(
    fs: FileSystem, source: str, target: str, *, size: int, link: bool = False, throttle: Throttle | None = None
) -> None:
    """Make ``target`` a file with the first ``size`` bytes of ``source``, durable but for its name.

    The caller syncs the directory. After a crash at any point ``target`` is what it was before or complete; until then
    the bytes are in a file with UNFINISHED_SUFFIX, which the next call replaces, and which is removed after an error.
    With ``link`` the two may be one file by two names, where that is possible: for files of which neither is ever
    changed again. ``throttle`` counts the bytes that are copied; linked and shared ones cost none. Raises OSError.
    """
    unfinished = target + UNFINISHED_SUFFIX
    remove_if_there(fs, unfinished)
    try:
        with fs.open(source) as opened:
            _need(opened, size)
            if not (link and opened.size() == size and _linked(fs, source, unfinished)):
                _copy(fs, opened, unfinished, size, throttle)
            else:
                opened.fdatasync()
        fs.rename(unfinished, target)
    except OSError:
        with contextlib.suppress(OSError):
            remove_if_there(fs, unfinished)
        raise
    remove_if_there(fs, unfinished)  # rename(2) does nothing where both are names of one file


class PieceSync:
    """Syncs a file after each SYNC_BYTES written, so that syncs of other files on the disk take no longer than that."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._written = 0

    def note(self, size: int) -> None:
        """So many more bytes were written. Raises OSError when they cannot be synced."""
        self._written += size
        if self._written >= SYNC_BYTES:
            self._written = 0
            self._file.fdatasync()


def remove_if_there(fs: FileSystem, path: str) -> None:
    """Remove a file, if there is one."""
    if fs.exists(path):
        fs.unlink(path)


def _linked(fs: FileSystem, source: str, target: str) -> bool:
    try:
        fs.link(source, target)
    except OSError as error:
        if error.errno in CANNOT_LINK:
            return False
        raise
    return True


def _copy(fs: FileSystem, source: File, target: str, size: int, throttle: Throttle | None) -> None:
    with fs.open(target, create=True) as copy:
        if not (size and copy.clone_from(source)):
            _copy_bytes(source, copy, size, throttle)
        if copy.size() > size:
            copy.truncate(size)  # a clone has all that the source has
        copy.fdatasync()


def _copy_bytes(source: File, copy: File, size: int, throttle: Throttle | None) -> None:
    done = 0
    syncs = PieceSync(copy)
    while done < size:
        count = copy.copy_from(source, done, min(COPY_BYTES, size - done))
        if not count:
            _need(source, size)
            raise OSError(errno.EIO, "a copy took no byte and gave no reason", copy.path)
        done += count
        syncs.note(count)
        if throttle is not None:
            throttle.note(count)


def _need(source: File, size: int) -> None:
    if source.size() < size:
        raise SourceTooShortError(f"{source.path} has {source.size()} bytes, and {size} were to be copied")


def copy_range(fs: FileSystem, source: str, target: str, position: int, end: int) -> None:
    """Write the bytes [position, end) of ``source`` to ``target``, atomically and durably. Raises OSError."""
    unfinished = target + UNFINISHED_SUFFIX
    try:
        with fs.open(unfinished, create=True) as written:
            written.truncate(0)
            done = 0
            for data in read_chunks(fs, source, end, start=position):
                done += write_all(written, [data], done)
            written.fdatasync()
        fs.rename(unfinished, target)
    except OSError:  # a full disk needs the room
        with contextlib.suppress(OSError):
            remove_if_there(fs, unfinished)
        raise
    fs.sync_directory(parent(target))


def read_chunks(fs: FileSystem, path: str, end: int | None = None, *, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file from ``start`` to ``end``, or all there are, READ_BYTES at a time.

    Raises SourceTooShortError where it has fewer, OSError.
    """
    with fs.open(path) as file:
        position = start
        while end is None or position < end:
            data = file.pread(READ_BYTES if end is None else min(READ_BYTES, end - position), position)
            if not data:
                break
            yield data
            position += len(data)
        if end is not None:
            _need(file, end)
