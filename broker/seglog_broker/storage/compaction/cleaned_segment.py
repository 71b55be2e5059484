"""A segment that compaction writes: ``.cleaned`` files beside its sources, complete when ``finish`` returns."""

from collections.abc import Iterable, Sequence
from typing import Final

from seglog_broker.storage.io.filesystem import Buffer, FileSystem, write_all
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.transaction_files import TXN_INDEX_ENTRY, AbortedTransaction

_HANDLES_MAX: Final = 4


class CleanedSegment:
    """``<base>.log.cleaned``, indexes and checksum, appended to as if live. After an OSError only ``discard`` helps."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_bytes_max: int,
        index_interval: int,
    ) -> None:
        self._fs = fs
        self._handles = HandlePool(fs, _HANDLES_MAX)
        self._segment = Segment(
            *(fs, self._handles, directory, base_offset),
            index_bytes_max=index_bytes_max,
            index_interval=index_interval,
            suffix=names.CLEANED_SUFFIX,
        )
        self._txn_index_path = (
            f"{directory}/{names.segment_file_name(base_offset, names.TXN_INDEX_SUFFIX)}{names.CLEANED_SUFFIX}"
        )
        try:
            self._segment.create()
        except OSError:
            self.discard()
            raise

    def append(self, buffers: Sequence[Buffer], batches: Iterable[tuple[int, int, int]]) -> None:
        """Write batches, of each of which (size, last offset, max timestamp) are given."""
        self._segment.append(buffers, batches)

    def append_damaged(self, data: Buffer) -> None:
        """Write damaged bytes."""
        self._segment.append_damaged(data)

    def finish(self, aborted: Sequence[AbortedTransaction], mtime_ms: int) -> None:
        """Close it like a rolled segment, with this transaction index, as old as ``mtime_ms``; all of it synced."""
        self._segment.close()
        self._segment.checksum.save()
        indexes = (self._segment.offset_index.path, self._segment.time_index.path)
        paths = [self._segment.log_path, *indexes, self._segment.checksum.path]
        if aborted:
            file = self._fs.open(self._txn_index_path, create=True)
            try:
                write_all(file, [b"".join(TXN_INDEX_ENTRY.pack(*entry) for entry in aborted)], 0)
            finally:
                file.close()
            paths.append(self._txn_index_path)
        for path in paths:
            file = self._fs.open(path, writable=True)
            try:
                file.fdatasync()
            finally:
                file.close()
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
