"""A segment that compaction writes, ``.cleaned`` files, and its crash-safe swap for its sources.

The files lie beside their sources. The cleaner leaves ``<base>.log.cleaned`` and its indexes, synced. For one group of
segments at a time then:

    promote   .cleaned -> .swap, and the directory is synced: before this a start undoes it, after it completes it
    install   the old files -> .deleted, oldest first, and .swap -> the plain names; the log changes at the same time
    settle    the directory is synced again: only now may the old files be removed and the checkpoint move on

``promote`` and ``settle`` run in a thread, ``install`` on the loop: between two of its renames a reader who opens a
file by name would find another one. Syncing before ``install`` matters: a file system may otherwise keep the second
change of names and lose the first, and the old records would be gone with nothing in their place. One group after the
other, because a start completes *all* swap files as one range. See docs/STORAGE.md, "Compaction".
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, write_all
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.transaction_files import TXN_INDEX_ENTRY, AbortedTransaction

_HANDLES_MAX: Final = 4


class CleanedSegment:
    """``<base>.log.cleaned``, indexes and checksum, appended to as if live. After an OSError only ``discard`` helps."""

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, *, index_bytes_max: int, index_interval: int
    ) -> None:
        self._fs = fs
        self._handles = HandlePool(fs, _HANDLES_MAX)
        self._segment = Segment(
            *(fs, self._handles, directory, base_offset),
            index_bytes_max=index_bytes_max,
            index_interval=index_interval,
            suffix=names.CLEANED_SUFFIX,
        )
        self.append = self._segment.append
        self.append_damaged = self._segment.append_damaged
        self._txn_index_path = (
            f"{directory}/{names.segment_file_name(base_offset, names.TXN_INDEX_SUFFIX)}{names.CLEANED_SUFFIX}"
        )
        try:
            self._segment.create()
        except OSError:
            self.discard()
            raise

    def finish(self, aborted: Sequence[AbortedTransaction], mtime_ms: int) -> None:
        """Close it like a rolled segment, with this transaction index, as old as ``mtime_ms``; all of it synced."""
        self._segment.close()
        self._segment.checksum.save()
        indexes = (self._segment.offset_index.path, self._segment.time_index.path)
        paths = [self._segment.log_path, *indexes, self._segment.checksum.path]
        if aborted:
            with self._fs.open(self._txn_index_path, create=True) as file:
                write_all(file, [b"".join(TXN_INDEX_ENTRY.pack(*entry) for entry in aborted)], 0)
            paths.append(self._txn_index_path)
        for path in paths:
            with self._fs.open(path, writable=True) as file:
                file.fdatasync()
            self._fs.set_mtime(path, mtime_ms)
        self._handles.close()

    def discard(self) -> None:
        """Close what is open; the files are for ``remove_cleaned``."""
        self._segment.release()
        self._handles.close()


def remove_cleaned(fs: FileSystem, directory: str) -> None:
    """Remove every ``.cleaned`` file, left by an unfinished round."""
    for name in fs.list_directory(directory):
        if name.endswith(names.CLEANED_SUFFIX):
            fs.unlink(f"{directory}/{name}")


def remove_cleaned_segment(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the ``.cleaned`` files of one segment."""
    for suffix in names.SEGMENT_SUFFIXES:
        path = f"{directory}/{names.segment_file_name(base_offset, suffix)}{names.CLEANED_SUFFIX}"
        if fs.exists(path):
            fs.unlink(path)


class SegmentSwap:
    """One group: the bases of its sources, ascending, and the base of the cleaned segment, which is the first's."""

    def __init__(self, fs: FileSystem, directory: str, sources: Sequence[int]) -> None:
        self.sources = tuple(sources)
        self.base_offset = self.sources[0]
        self._fs = fs
        self._directory = directory
        self._moved: list[tuple[str, str]] = []  # what ``install`` has done so far
        self._moves_left: list[tuple[str, str]] | None = None

    @property
    def is_half_done(self) -> bool:
        """Whether ``install`` could neither finish nor undo: only calling it again helps, or the next start."""
        return bool(self._moved and self._moves_left)

    def promote(self) -> None:
        """Rename the cleaned files to swap files. After an OSError nothing has changed; the caller discards them."""
        for path in self._paths(self.base_offset):
            cleaned = f"{path}{names.CLEANED_SUFFIX}"
            if self._fs.exists(cleaned):
                self._fs.rename(cleaned, f"{path}{names.SWAP_SUFFIX}")
        self._fs.sync_directory(self._directory)

    def install(self) -> None:
        """Rename the files; the sources must not be opened by name meanwhile, open leases are fine.

        OSError: the names are what they were before, unless ``is_half_done``; then nothing may be discarded.
        """
        if self._moves_left is None:
            aside = [(path, f"{path}{names.DELETED_SUFFIX}") for base in self.sources for path in self._paths(base)]
            into_place = [(f"{path}{names.SWAP_SUFFIX}", path) for path in self._paths(self.base_offset)]
            self._moves_left = [*reversed([*aside, *into_place])]
        try:
            while self._moves_left:
                old, new = self._moves_left[-1]
                if self._fs.exists(old):
                    self._fs.rename(old, new)
                    self._moved.append((old, new))
                self._moves_left.pop()
        except OSError:
            with suppress(OSError):
                while self._moved:
                    old, new = self._moved[-1]
                    self._fs.rename(new, old)
                    self._moves_left.append(self._moved.pop())
            raise

    def settle(self) -> None:
        """Return when the names survive a power cut."""
        self._fs.sync_directory(self._directory)

    def _paths(self, base: int) -> list[str]:
        return [f"{self._directory}/{names.segment_file_name(base, suffix)}" for suffix in names.SEGMENT_SUFFIXES]


def discard_cleaned(fs: FileSystem, directory: str) -> None:
    """Remove what an unfinished or unwanted round of compaction left in a directory.

    The indexes among the swap files first, and for good: without their ``.log`` a start would give them to the old one.
    """
    swaps = [name for name in fs.list_directory(directory) if name.endswith(names.SWAP_SUFFIX)]
    logs = [name for name in swaps if name.endswith(f"{names.LOG_SUFFIX}{names.SWAP_SUFFIX}")]
    for name in set(swaps) - set(logs):
        fs.unlink(f"{directory}/{name}")
    if logs:
        fs.sync_directory(directory)
    for name in logs:
        fs.unlink(f"{directory}/{name}")
    remove_cleaned(fs, directory)
