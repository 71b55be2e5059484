"""The transaction indexes of a log: which transactions were aborted, by the segment that holds their marker.

A segment has a ``.txnindex`` only if a transaction was aborted in it, so most logs have none, and then nothing here
costs anything. An index follows from its log and the producer snapshots: a recovery builds it again, and so does a load
for a segment that has lost its other indexes. So an entry that is appended is not synced with its marker, but with the
next checkpoint, before which a start reads the log. Source: Kafka's TransactionIndex.

The format has no checksum. ``seglog-partition.json`` has the size and CRC-32C of each index, by which a load judges it;
one that differs is built again from the log. From then on a CRC-32C of each block is in memory, and a look-up verifies
the blocks that it reads.
"""

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

from seglog_broker.storage.io.filesystem import read_file, write_all, write_files_atomically
from seglog_broker.storage.log.log_files import LogFiles
from seglog_broker.storage.log.partition_state import SEGMENTS_REMEMBERED_MAX, PartitionState
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.producers.producer_snapshots import ProducerSnapshots, replayed
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_broker.storage.segment.index_rebuild import InTurns, pieces
from seglog_protocol import segment_files as names
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch, ReadBytes
from seglog_protocol.transaction_files import (
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
    AbortedTransaction,
    aborted_transaction,
    encode_aborted_transaction,
)

_ENTRY_SIZE: Final = TXN_INDEX_ENTRY.size
_BLOCK_SIZE: Final = 120 * _ENTRY_SIZE
"""Bytes that a look-up reads and verifies at a time, in a few microseconds."""


class _Index:
    """What is known of an index: ``size`` is in bytes, of whole entries, and ``crc`` of all of them.

    ``blocks`` have the last offset of their first entry, and their own CRC-32C.
    """

    __slots__ = ("blocks", "crc", "size")

    def __init__(self, content: bytes) -> None:
        self.size = self.crc = 0
        self.blocks: list[tuple[int, int]] = []
        self.add(content[: len(content) // _ENTRY_SIZE * _ENTRY_SIZE])

    def add(self, entries: bytes) -> None:
        """Count entries behind those that are there."""
        position = 0
        while position < len(entries):
            filled = self.size % _BLOCK_SIZE
            piece = entries[position : position + _BLOCK_SIZE - filled]
            first, crc = self.blocks.pop() if filled else (aborted_transaction(piece, 0).last_offset, 0)
            self.blocks.append((first, crc32c(piece, crc)))
            self.size += len(piece)
            position += len(piece)
        self.crc = crc32c(entries, self.crc)


class TransactionIndexes:
    """The indexes of one log. Every method may raise OSError; a look-up also ColdReadError and TurnWantedError."""

    def __init__(
        self, files: LogFiles, state: PartitionState, segments: SegmentList, snapshots: ProducerSnapshots
    ) -> None:
        """``state`` has the sizes and checksums, and gets those of every change."""
        self._files = files
        self._state = state
        self._segments = segments
        self._snapshots = snapshots
        self._indexes: dict[int, _Index] = {}  # by base offset, ascending
        self._mending: dict[int, InTurns[list[AbortedTransaction]]] = {}  # what is being built again, in turns
        self.mended: list[int] = []
        """Base offsets of those that were wrong while in use, and built again: the caller tells it, and clears it."""
        self.unsynced: dict[int, None] = {}  # each log has one, and an empty set 216 bytes
        """Base offsets of those with appended entries that no flush has covered."""

    def load(self, found: Iterable[str], log_end: int) -> list[int]:
        """Take over those among the names of a directory; reads them all.

        Returns the base offsets, ascending, of those that may be wrong, for ``mend``: those that are not as the state
        has them, or are missing. Of those of which it says nothing, as Kafka's, those that cannot be the index of their
        segment.
        """
        parsed = (names.parse_segment_file_name(name) for name in found if name.endswith(names.TXN_INDEX_SUFFIX))
        there = {each[0] for each in parsed if each is not None and each[1] == names.TXN_INDEX_SUFFIX}
        bases, known = self._segments.bases, self._state.transaction_indexes
        self._state.transaction_indexes = {}
        doubtful = ((known or {}).keys() - there).intersection(bases)
        is_all = known is not None and len(known) < SEGMENTS_REMEMBERED_MAX
        for base in sorted(there.intersection(bases)):
            content = read_file(self._files.fs, self.path(base))
            self._note(base, _Index(content))
            if known is not None and (base in known or (is_all and base < self._state.held_end)):
                is_right = known.get(base) == (len(content), self._indexes[base].crc)
            else:
                is_right = _is_sound(content, base, self._segments.end_of(self._segments.floor(base), log_end))
            if not is_right:
                doubtful.add(base)
        return sorted(doubtful)

    @property
    def bases(self) -> Sequence[int]:
        """Base offsets of the segments that have an index, ascending."""
        return list(self._indexes)

    def path(self, base: int) -> str:
        """The index file of the segment with this base offset."""
        return f"{self._files.directory}/{names.segment_file_name(base, names.TXN_INDEX_SUFFIX)}"

    def write_ahead(self, base: int, entry: AbortedTransaction) -> None:
        """Write an entry behind the index of the last segment; ``count_entry`` when its marker is written.

        After an OSError, or if the marker cannot be written, call ``cut_back``.
        """
        with self._files.handles.lease(self.path(base), writable=True, create=True) as file:
            write_all(file, (encode_aborted_transaction(entry),), self._size_of(base))

    def count_entry(self, base: int, entry: AbortedTransaction) -> None:
        """The entry that was written ahead belongs to the index."""
        index = self._indexes.get(base) or _Index(b"")
        index.add(encode_aborted_transaction(entry))
        self._note(base, index)
        self.unsynced[base] = None

    def cut_back(self, base: int) -> None:
        """Remove what is behind the index. OSError: the next load finds that it does not belong there."""
        if self._files.fs.exists(self.path(base)):
            with self._files.handles.lease(self.path(base), writable=True) as file:
                file.truncate(self._size_of(base))

    def find(self, base: int, start: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions that may have batches at offsets ``start`` to ``end`` (exclusive).

        ``base`` is that of the segment with ``start``. The marker of a transaction may lie in a later one.
        """
        while isinstance(found := self._find(base, start, end), int):
            if not self.mend(found):
                raise OSError(errno.EIO, "other bytes are read than are there", self.path(found))
        return found

    def _find(self, base: int, start: int, end: int) -> list[AbortedTransaction] | int:
        """As ``find``, or the base offset of an index that is not as it was written."""
        found: list[AbortedTransaction] = []
        bases = self.bases
        for each in bases[bisect_left(bases, base) :]:
            blocks = self._indexes[each].blocks
            for block in range(max(0, bisect_right(blocks, start, key=itemgetter(0)) - 1), len(blocks)):
                data = self._verified(each, block)
                if data is None:
                    return each
                count = len(data) // _ENTRY_SIZE
                first = bisect_left(range(count), start, key=lambda n: aborted_transaction(data, n).last_offset)
                for number in range(first, count):
                    entry = aborted_transaction(data, number)
                    if entry.first_offset < end:
                        found.append(entry)
                    if entry.last_stable_offset >= end:  # what was aborted later began later
                        return found
        return found

    def look_at_files(self) -> Callable[[], list[int]]:
        """What a thread may do: read all files, and return the base offsets of those that are wrong, for ``mend``."""
        fs = self._files.fs
        wanted = [(base, self.path(base), index.size, index.crc) for base, index in self._indexes.items()]
        return lambda: [
            base for base, path, size, crc in wanted if not fs.exists(path) or crc32c(read_file(fs, path)[:size]) != crc
        ]

    def mend(self, base: int) -> bool:
        """Build one again from the log, unless it is as that has it; whether it was not.

        Raises TurnWantedError and ColdReadError: called again, it goes on.
        """
        is_on_the_loop = self._files.handles.only_warm.is_on
        making = self._mending.pop(base, None) or self._by_log(base, strict=is_on_the_loop)
        while True:
            try:
                stop = next(making)
            except StopIteration as done:
                is_changed = self._replace(base, _encoded(done.value), sync=not is_on_the_loop)
                if is_changed and is_on_the_loop:
                    self.mended.append(base)
                return is_changed
            except CorruptRecordError:  # of the log, which its own readers are told
                making = self._by_log(base, strict=False)
                continue
            if is_on_the_loop:
                self._mending[base] = making
                raise stop

    def _by_log(self, base: int, *, strict: bool) -> InTurns[list[AbortedTransaction]]:
        """The transactions that were aborted by a marker in the segment, in the order of the log.

        If ``strict``, raises CorruptRecordError at unknown damage; else waits for the disk.
        """
        next_offset, producers = self._snapshots.below(base)
        state = ProducerState(expiration_ms=self._snapshots.state.expiration_ms)
        state.restart(next_offset, producers)
        segments, number = self._segments, self._segments.floor(base)
        end = segments.end_of(number, names.OFFSET_MAX)
        aborted: list[AbortedTransaction] = []
        for segment in segments[max(0, segments.floor(next_offset)) : number + 1]:
            for found in pieces(segment.log, strict=strict):
                if not isinstance(found, LocatedBatch):
                    yield found
                elif next_offset <= found.header.base_offset <= found.header.last_offset < end:
                    next_offset = found.header.next_offset
                    entry = state.apply_replayed(*replayed(segment, found))
                    if entry is not None and entry.last_offset >= base:
                        aborted.append(entry)
        return aborted

    def rebuild(self, aborted: Iterable[AbortedTransaction], first: int) -> None:
        """Write the indexes of the segments from base ``first`` on, where they differ.

        ``aborted`` are all transactions whose markers lie there, in the order of the log.
        """
        by_base: dict[int, list[AbortedTransaction]] = {base: [] for base in self._indexes if base >= first}
        for entry in aborted:
            base = self._segments.bases[max(0, self._segments.floor(entry.last_offset))]
            if base >= first:
                by_base.setdefault(base, []).append(entry)
        for base, entries in by_base.items():
            self._replace(base, _encoded(entries))

    def drop(self, segment_bases: Iterable[int]) -> None:
        """These segments leave the log; their files go with them."""
        self._mending.clear()
        for base in segment_bases:
            self._forget(base)
            self.unsynced.pop(base, None)

    def note_compacted(self, sources: Iterable[int], base: int) -> None:
        """A compacted segment is in the place of its sources."""
        self.drop(sources)
        if self._files.fs.exists(self.path(base)):
            self._note(base, _Index(self._read(base)))

    def _note(self, base: int, index: _Index) -> None:
        if base not in self._indexes:
            self._indexes = dict(sorted([*self._indexes.items(), (base, index)], key=itemgetter(0)))
        self._indexes[base] = index
        assert self._state.transaction_indexes is not None, "since the load"
        self._state.transaction_indexes[base] = index.size, index.crc

    def _forget(self, base: int) -> None:
        self._indexes.pop(base, None)
        assert self._state.transaction_indexes is not None, "since the load"
        self._state.transaction_indexes.pop(base, None)

    def _size_of(self, base: int) -> int:
        index = self._indexes.get(base)
        return 0 if index is None else index.size

    def _verified(self, base: int, block: int) -> ReadBytes | None:
        """A block of an index; None if the file has changed."""
        index, position = self._indexes[base], block * _BLOCK_SIZE
        try:
            data = self._files.handles.read(self.path(base), min(_BLOCK_SIZE, index.size - position), position)
        except FileNotFoundError:
            return None
        return data if crc32c(data) == index.blocks[block][1] else None

    def _read(self, base: int) -> bytes:
        path = self.path(base)
        return read_file(self._files.fs, path) if self._files.fs.exists(path) else b""

    def _replace(self, base: int, content: bytes, *, sync: bool = True) -> bool:
        """Make ``content`` that of the index; no file without entries. Returns whether it was another.

        With ``sync`` a new one is on the disk before this returns, else after the next checkpoint. What is there
        already may have been written by a process that was killed before it synced it.
        """
        fs, path = self._files.fs, self.path(base)
        is_changed = content != self._read(base)
        self._files.handles.forget(path)
        if content:
            if is_changed:
                write_files_atomically(fs, [(path, content)], sync=sync)
            self._note(base, _Index(content))
            self.unsynced[base] = None
        elif is_changed:
            fs.unlink(path)
            fs.sync_directory(self._files.directory)
        if not content or (is_changed and sync):
            self.unsynced.pop(base, None)
        if not content:
            self._forget(base)
        return is_changed


def _encoded(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(map(encode_aborted_transaction, entries))


def _is_sound(content: bytes, base: int, end: int) -> bool:
    """Whether these can be the entries of a segment with the offsets from ``base`` to ``end`` (exclusive)."""
    entries = [aborted_transaction(content, number) for number in range(len(content) // _ENTRY_SIZE)]
    ends = [base - 1, *(entry.last_offset for entry in entries), end]
    return (
        not len(content) % _ENTRY_SIZE
        and all(before < after for before, after in pairwise(ends))
        and all(entry.version == TXN_INDEX_VERSION and 0 <= entry.first_offset < entry.last_offset for entry in entries)
    )
