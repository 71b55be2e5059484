"""The transaction indexes of a log: which transactions were aborted, by the segment that holds their marker.

A segment has a ``.txnindex`` only if a transaction was aborted in it, so most logs have none, and then nothing here
costs anything. An index follows from its log and the producer snapshots: a recovery builds it again, and so does a load
for a segment that has lost its other indexes. So an entry that is appended is not synced with its marker, but with the
next checkpoint, before which a start reads the log. Source: Kafka's TransactionIndex.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Final

from seglog_broker.storage.io.filesystem import read_file, write_all, write_file_atomically
from seglog_broker.storage.log.log_files import LogFiles
from seglog_protocol import segment_files as names
from seglog_protocol.transaction_files import (
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
    AbortedTransaction,
    aborted_transaction,
    encode_aborted_transaction,
)

_ENTRY_SIZE: Final = TXN_INDEX_ENTRY.size


class TransactionIndexes:
    """The indexes of one log. Every method may raise OSError; a look-up also ColdReadError."""

    __slots__ = ("_files", "_sizes", "unsynced")

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._sizes: dict[int, int | None] = {}  # bytes of whole entries by base offset, ascending; None: not known yet
        self.unsynced: set[int] = set()
        """Base offsets of those with appended entries that no flush has covered."""

    def load(self, found: Iterable[str], segment_bases: Collection[int]) -> None:
        """Take over those among the names of a directory."""
        parsed = (names.parse_segment_file_name(name) for name in found if name.endswith(names.TXN_INDEX_SUFFIX))
        bases = (each[0] for each in parsed if each is not None and each[1] == names.TXN_INDEX_SUFFIX)
        known = set(segment_bases)
        self._sizes = dict.fromkeys(sorted(base for base in bases if base in known))

    @property
    def bases(self) -> Sequence[int]:
        """Base offsets of the segments that have an index, ascending."""
        return list(self._sizes)

    def path(self, base: int) -> str:
        """The index file of the segment with this base offset."""
        return f"{self._files.directory}/{names.segment_file_name(base, names.TXN_INDEX_SUFFIX)}"

    def write_ahead(self, base: int, entry: AbortedTransaction) -> None:
        """Write an entry behind the index of the last segment; ``count_entry`` when its marker is written.

        After an OSError, or if the marker cannot be written, call ``cut_back``.
        """
        with self._files.handles.lease(self.path(base), writable=True, create=True) as file:
            write_all(file, (encode_aborted_transaction(entry),), self._size_of(base))

    def count_entry(self, base: int) -> None:
        """The entry that was written ahead belongs to the index."""
        self._files.handles.forget_map(self.path(base))
        self._sizes[base] = self._size_of(base) + _ENTRY_SIZE
        self.unsynced.add(base)

    def cut_back(self, base: int) -> None:
        """Remove what is behind the index. OSError: the next load finds that it does not belong there."""
        if self._files.fs.exists(self.path(base)):
            with self._files.handles.lease(self.path(base), writable=True) as file:
                file.truncate(self._size_of(base))

    def find(self, base: int, start: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions that may have batches at offsets ``start`` to ``end`` (exclusive).

        ``base`` is that of the segment with ``start``. The marker of a transaction may lie in a later one.
        """
        found: list[AbortedTransaction] = []
        if not self._sizes:
            return found
        bases = self.bases
        for each in bases[bisect_left(bases, base) :]:
            size = self._size_of(each)
            if not size:
                continue
            with self._files.handles.lease_map(self.path(each), size) as mapped:
                data = mapped.data
                count = size // _ENTRY_SIZE
                first = bisect_left(range(count), start, key=lambda n: aborted_transaction(data, n).last_offset)
                for number in range(first, count):
                    entry = aborted_transaction(data, number)
                    if entry.first_offset < end:
                        found.append(entry)
                    if entry.last_stable_offset >= end:  # what was aborted later began later
                        return found
        return found

    def unsound(self, segment_bases: Sequence[int], log_end: int) -> list[int]:
        """Base offsets of those that cannot be the index of their segment; reads them all."""
        return [
            base for base in self._sizes if not _is_sound(self._read(base), base, _end_of(base, segment_bases, log_end))
        ]

    def rebuild(
        self,
        aborted: Iterable[AbortedTransaction],
        segment_bases: Sequence[int],
        first: int,
        end: int,
        *,
        compacted_before: int = 0,
    ) -> None:
        """Write the indexes of the segments from base ``first`` on, up to base ``end``, where they differ.

        ``aborted`` are all transactions whose markers lie there, in the order of the log. Below ``compacted_before``
        their first batches may be gone, and the entry that is there still has their first offset.
        """
        there = {
            (entry.producer_id, entry.last_offset): entry
            for base in self._sizes
            if first <= base < min(end, compacted_before)
            for entry in _entries(self._read(base))
        }
        by_base: dict[int, bytearray] = {}
        for replayed in aborted:
            entry = there.get((replayed.producer_id, replayed.last_offset), replayed)
            base = segment_bases[max(0, bisect_right(segment_bases, entry.last_offset) - 1)]
            by_base.setdefault(base, bytearray()).extend(encode_aborted_transaction(entry))
        for base in {*by_base, *self._sizes}:
            if first <= base < end:
                self._replace(base, bytes(by_base.get(base, b"")))

    def cut_from(self, offset: int) -> None:
        """The log ends at ``offset`` now: drop what was aborted from there on."""
        for base in reversed(self.bases):
            if base >= offset:
                self._replace(base, b"")
                continue
            content = self._read(base)
            entries = range(len(content) // _ENTRY_SIZE)
            kept = bisect_left(entries, offset, key=lambda n: aborted_transaction(content, n).last_offset)
            self._replace(base, content[: kept * _ENTRY_SIZE])
            if kept:
                return

    def drop(self, segment_bases: Iterable[int]) -> None:
        """These segments leave the log; their files go with them."""
        for base in segment_bases:
            self._sizes.pop(base, None)
            self.unsynced.discard(base)

    def note_compacted(self, sources: Iterable[int], base: int) -> None:
        """A compacted segment is in the place of its sources."""
        self.drop(sources)
        if self._files.fs.exists(self.path(base)):
            self._sizes = dict(sorted([*self._sizes.items(), (base, None)]))

    def _size_of(self, base: int) -> int:
        size = self._sizes.get(base, 0)
        if size is None:
            size = self._files.fs.stat(self.path(base)).size // _ENTRY_SIZE * _ENTRY_SIZE
            self._sizes[base] = size
        return size

    def _read(self, base: int) -> bytes:
        return read_file(self._files.fs, self.path(base)) if base in self._sizes else b""

    def _replace(self, base: int, content: bytes) -> None:
        """Make ``content`` that of the index, on the disk before this returns; no file without entries.

        What is there already may have been written by a process that was killed before it synced it.
        """
        if content == self._read(base):
            if content:
                self.unsynced.add(base)
            return
        fs, path = self._files.fs, self.path(base)
        self._files.handles.forget(path)
        self.unsynced.discard(base)
        if content:
            write_file_atomically(fs, path, content)
            self._sizes = dict(sorted({**self._sizes, base: len(content)}.items()))
        else:
            fs.unlink(path)
            fs.sync_directory(self._files.directory)
            del self._sizes[base]


def _end_of(base: int, segment_bases: Sequence[int], log_end: int) -> int:
    following = bisect_right(segment_bases, base)
    return segment_bases[following] if following < len(segment_bases) else log_end


def _entries(content: bytes) -> list[AbortedTransaction]:
    return [aborted_transaction(content, number) for number in range(len(content) // _ENTRY_SIZE)]


def _is_sound(content: bytes, base: int, end: int) -> bool:
    """Whether these can be the entries of a segment with the offsets from ``base`` to ``end`` (exclusive)."""
    entries = _entries(content)
    ends = [base - 1, *(entry.last_offset for entry in entries), end]
    return (
        not len(content) % _ENTRY_SIZE
        and all(before < after for before, after in pairwise(ends))
        and all(entry.version == TXN_INDEX_VERSION and 0 <= entry.first_offset < entry.last_offset for entry in entries)
    )
