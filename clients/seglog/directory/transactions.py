"""The transactions of one partition by its files: where the first open one begins, and which were aborted.

The transaction index of a closed segment names the aborted transactions whose markers lie in it. It has no checksum of
its own, so it is used where seglog has noted one. Elsewhere the segment's headers are read instead; so are those of the
last segment, which is still written. A snapshot says which transactions were open where its segment begins; without
one, that follows from the segments before.

What is known of a closed segment is kept. Compaction may remove a transaction later, with its marker: what was known of
it does no harm then, because it is known where it ended.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from seglog.directory.segment import SegmentFile
from seglog_protocol import segment_files as names
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.isolation import Aborted
from seglog_protocol.record_batch import NO_PRODUCER_ID
from seglog_protocol.records import decode_records
from seglog_protocol.transaction_files import (
    TXN_INDEX_ENTRY,
    MalformedSnapshotError,
    aborted_transaction,
    decode_end_marker,
    decode_snapshot,
)

Segments = Mapping[int, str]
"""Names of ``.log`` files by base offset."""


@dataclass(slots=True)
class _Scan:
    """Transactions found in the batches of a segment before ``position``; ``opened``: first offsets of open ones."""

    base_offset: int
    opened: dict[int, int]
    position: int = 0
    aborted: list[Aborted] = field(default_factory=list)


@dataclass(eq=False)
class Transactions:
    """The transactions of the partition in ``directory``; ``open_segment`` opens the segment with a base offset.

    ``state`` reads the content of seglog's state file.
    """

    _directory: Path
    _open_segment: Callable[[int, Segments], SegmentFile]
    _state: Callable[[], Mapping[str, Any]]
    _opened: dict[int, dict[int, int]] = field(
        default_factory=dict
    )  # by base offset: what was open where that segment begins
    _aborted: dict[int, list[Aborted]] = field(default_factory=dict)  # by base offset of a closed segment
    _tail: _Scan | None = None  # of the last segment, which goes on when the log has grown

    def first_open(self, segments: Segments, latest: int) -> int | None:
        """Where the first transaction begins that is open at the log end ``latest``; None without one."""
        if not segments:
            return None
        return min(self._scanned(max(segments), segments, latest).opened.values(), default=None)

    def aborted(self, segments: Segments, start: int, end: int, latest: int) -> list[Aborted]:
        """Aborted transactions that may have batches at offsets ``start`` to ``end`` (exclusive)."""
        bases = sorted(segments)
        found: list[Aborted] = []
        for base in bases[max(0, bisect_right(bases, start) - 1) :]:
            if base >= end and all(first >= end for first in self._opened_at(base, segments, latest).values()):
                break  # whatever begins before ``end`` has ended in the segments before
            found += [
                each
                for each in self._aborted_in(base, segments, latest)
                if each.last_offset >= start and each.first_offset < end
            ]
        return found

    def _aborted_in(self, base: int, segments: Segments, latest: int) -> list[Aborted]:
        following = min((other for other in segments if other > base), default=None)
        if following is None:
            return self._scanned(base, segments, latest).aborted
        if base not in self._aborted:
            indexed = self._indexed(base)
            self._aborted[base] = self._scanned(base, segments, latest).aborted if indexed is None else indexed
        return self._aborted[base]

    def _opened_at(self, base: int, segments: Segments, latest: int) -> dict[int, int]:
        """First offsets, by producer, of the transactions that were open where a segment begins."""
        bases = sorted(other for other in segments if other <= base)
        number = len(bases) - 1
        while number and not self._is_known(bases[number]):
            number -= 1
        for earlier, following in pairwise(bases[number:]):
            self._opened[following] = self._scanned(earlier, segments, latest).opened
        return self._opened.get(base, {})

    def _is_known(self, base: int) -> bool:
        """Whether it is known what was open at ``base``, if need be by its snapshot."""
        if base not in self._opened:
            try:
                entries = decode_snapshot(self._path(base, names.SNAPSHOT_SUFFIX).read_bytes())
            except (FileNotFoundError, MalformedSnapshotError):
                return False
            opened = {each.producer_id: each.current_txn_first_offset for each in entries}
            self._opened[base] = {producer: first for producer, first in opened.items() if first >= 0}
        return True

    def _indexed(self, base: int) -> list[Aborted] | None:
        """The transaction index of a closed segment; None if it is absent, or not known to be right."""
        noted = self._state().get("transaction_indexes")
        try:
            content = self._path(base, names.TXN_INDEX_SUFFIX).read_bytes()
        except FileNotFoundError:
            return None
        if not isinstance(noted, dict) or noted.get(str(base)) != [len(content), crc32c(content)]:
            return None
        entries = (aborted_transaction(content, number) for number in range(len(content) // TXN_INDEX_ENTRY.size))
        return [Aborted(entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries]

    def _scanned(self, base: int, segments: Segments, latest: int) -> _Scan:
        """Transactions by the headers of a segment, up to the log end ``latest``."""
        is_last = base == max(segments)
        tail = self._tail
        with closing(self._open_segment(base, segments)) as segment:
            if is_last and tail is not None and tail.base_offset == base and tail.position <= segment.size:
                scan = tail
            else:
                scan = _Scan(base, dict(self._opened_at(base, segments, latest)))
            for found in segment.walk(scan.position):
                if found.header.next_offset > latest:
                    break  # not a whole batch yet, or it was appended since
                _note(scan, segment, found)
                scan.position = found.end
        if is_last:
            self._tail = scan
        return scan

    def _path(self, base: int, suffix: str) -> Path:
        return self._directory / names.segment_file_name(base, suffix)


def _note(scan: _Scan, segment: SegmentFile, found: LocatedBatch) -> None:
    """One batch. Only those are verified on which all others depend: a transaction's first one, and its marker."""
    header = found.header
    if header.producer_id == NO_PRODUCER_ID or not (header.is_control or header.is_transactional):
        return
    if not header.is_control:
        if header.producer_id not in scan.opened and segment.is_intact(found):
            scan.opened[header.producer_id] = header.base_offset
        return
    if not segment.is_intact(found):
        return
    try:
        records = decode_records(header, segment.pread(header.size, found.position))
    except CorruptRecordError:
        return
    marker = decode_end_marker(records[0].key, records[0].value) if records else None
    if marker is None:
        return
    first = scan.opened.pop(header.producer_id, None)
    if first is not None and marker.type == "ABORT":
        scan.aborted.append(Aborted(header.producer_id, first, header.last_offset))
