"""One round of compaction of one partition: from a job to finished ``.cleaned`` files. Runs in a worker process.

Two passes. The first reads the dirty segments and notes the offset of every key's last record, as far as memory allows.
The second reads everything up to there from the first segment on, and writes the records that stay; small segments are
merged. The sources are only read: the broker replaces them by the new files, or removes those.

Source: Kafka's LogCleaner. The rules for records are in ``batch_filter``, the steps on disk in docs/STORAGE.md.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

import numpy as np

from seglog_broker.storage.compaction.batch_filter import BatchFilter, Filtered
from seglog_broker.storage.compaction.cleaned_segment import CleanedSegment, remove_cleaned, remove_cleaned_segment
from seglog_broker.storage.compaction.job import (
    UNREADABLE,
    CleanedGroup,
    CleaningJob,
    CleaningResult,
    RecordCounts,
    SegmentLoss,
    SourceSegment,
)
from seglog_broker.storage.compaction.keys import Keys
from seglog_broker.storage.compaction.offset_map import OffsetMap
from seglog_broker.storage.compaction.producers import ProducerScan, TransactionTracker, read_marker
from seglog_broker.storage.compaction.source import PIECE_BYTES, Piece, SourceFile, open_source
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import Buffer, FileSystem, read_file
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.batch_columns import BatchColumns, Bools, Int64s
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, parse_header
from seglog_protocol.record_columns import open_batches
from seglog_protocol.transaction_files import TXN_INDEX_ENTRY, AbortedTransaction, aborted_transaction


def clean(fs: FileSystem, job: CleaningJob, throttle: Throttle) -> CleaningResult:
    """Do one round. With ``job.dry_run`` nothing is written.

    Raises OSError with no ``.cleaned`` file left, as far as the file system lets them be removed; so does a bug.
    """
    cleaning = _Cleaning(fs, job, throttle)
    if job.dry_run:
        return cleaning.run()
    remove_cleaned(fs, job.directory)
    try:
        return cleaning.run()
    except Exception:
        cleaning.discard()
        with suppress(OSError):
            remove_cleaned(fs, job.directory)
        raise


@dataclass(slots=True)
class _Group:
    """Sources that become one segment, and what is known of that while it is made."""

    sources: list[SourceSegment]
    next_base: int
    bytes_before: int = 0
    size: int = 0  # of the new log so far
    records_read: int = 0
    records_kept: int = 0
    is_same: bool = True  # so far every byte of the sources is there
    damaged: list[DamagedRange] = field(default_factory=list)
    unreadable: list[DamagedRange] = field(default_factory=list)

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset


class _Cleaning:
    """One round; made for one ``run``."""

    def __init__(self, fs: FileSystem, job: CleaningJob, throttle: Throttle) -> None:
        self._fs = fs
        self._job = job
        self._throttle = throttle
        bases = [segment.base_offset for segment in job.segments]
        self._next_base = dict(pairwise([*bases, job.upper_bound]))
        self._map = OffsetMap(int(job.map_bytes * job.map_load_factor), job.first_dirty)
        self._producers = ProducerScan()
        self._counts = RecordCounts()
        self._bytes_written = 0
        self._losses: list[SegmentLoss] = []
        self._output: CleanedSegment | None = None

    def run(self) -> CleaningResult:
        """Clean all groups of segments; nothing is replaced before the caller installs them."""
        job = self._job
        aborted = self._read_transaction_indexes()
        self._build_map(aborted)
        first_base = job.segments[0].base_offset
        rules = BatchFilter(
            offset_map=self._map,
            upper_bound=job.upper_bound,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
            decompressed_batch_bytes_max=job.decompressed_batch_bytes_max,
            transactions=TransactionTracker((entry for entries in aborted.values() for entry in entries), first_base),
            producers=self._producers.active(job.now_ms, job.producer_id_expiration_ms),
            counts=self._counts,
        )
        groups = [self._clean_group(group, rules, aborted) for group in self._grouped()]
        return CleaningResult(
            **asdict(self._counts),
            first_dirty=self._map.latest_offset + 1,
            groups=tuple(groups),
            losses=tuple(self._losses),
            bytes_read=self._throttle.total - self._bytes_written,
            bytes_written=self._bytes_written,
        )

    def discard(self) -> None:
        """Close what an error left open."""
        if self._output is not None:
            self._output.discard()

    # --- The first pass -----------------------------------------------------------------------------------------------

    def _read_transaction_indexes(self) -> dict[int, list[AbortedTransaction]]:
        """By segment. Those of later segments too: a transaction may end there whose batches lie here."""
        bases = [*(segment.base_offset for segment in self._job.segments), *self._job.later_segments]
        found = {}
        for base in bases:
            path = self._path(base, names.TXN_INDEX_SUFFIX)
            if self._fs.exists(path):
                data = read_file(self._fs, path)
                self._throttle.note(len(data))
                found[base] = [aborted_transaction(data, n) for n in range(len(data) // TXN_INDEX_ENTRY.size)]
        return found

    def _build_map(self, aborted: dict[int, list[AbortedTransaction]]) -> None:
        """Fill the map from the dirty segments; meet every header of the log on the way."""
        job, offset_map = self._job, self._map
        tracker = TransactionTracker((entry for entries in aborted.values() for entry in entries), job.first_dirty)
        for segment in job.segments:
            next_base = self._next_base[segment.base_offset]
            with self._open(segment) as source:
                if next_base <= job.first_dirty or offset_map.is_full:
                    for _, header in source.headers():
                        self._producers.note(header)
                    continue
                for item in self._dirty_pieces(source):
                    if isinstance(item, Piece):
                        self._producers.note_all(item.batches)
                        if not offset_map.is_full:
                            self._note_keys(item.batches, tracker)
                if not offset_map.is_full:
                    offset_map.latest_offset = next_base - 1  # over gaps too
        for base, next_base in pairwise([*job.later_segments, names.OFFSET_MAX]):
            with self._open(SourceSegment(base), next_base) as source:
                for _, header in source.headers():
                    self._producers.note(header)

    def _dirty_pieces(self, source: SourceFile) -> Iterator[Piece | DamagedRange]:
        """The segment from the batch on that has the first dirty offset; headers before it are noted."""
        first_dirty = self._job.first_dirty
        position, expected = 0, source.base_offset
        if source.base_offset < first_dirty:
            for found in source.headers():
                if found.header.last_offset >= first_dirty:
                    break
                self._producers.note(found.header)
                position, expected = found.end, found.header.next_offset
        return source.pieces(position, expected)

    def _note_keys(self, batches: BatchColumns, tracker: TransactionTracker) -> None:
        """Put the keys of some batches into the map, until it is full."""
        offset_map, first_dirty = self._map, self._job.first_dirty
        wanted = batches.record_count > 0
        for number in np.flatnonzero(batches.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)).tolist():
            producer_id, last_offset = int(batches.producer_id[number]), int(batches.last_offset[number])
            if batches.attributes[number] & CONTROL_BIT:
                wanted[number] = False
                with suppress(CorruptRecordError):
                    if read_marker(batches, number).end is not None:
                        tracker.end(producer_id, last_offset, is_abort=False)
            elif tracker.is_aborted(producer_id, last_offset):
                wanted[number] = False
        limit = self._job.decompressed_batch_bytes_max
        for opened in open_batches(batches, wanted, size_limit=limit):
            records = opened.records
            numbers = opened.first + records.list_number
            offsets = batches.base_offset[numbers] + records.offset_delta
            is_dirty = offsets >= first_dirty
            which = np.flatnonzero((records.key_length >= 0) & is_dirty)
            if opened.errors or records.malformed or len(which) < np.count_nonzero(is_dirty):
                offset_map.is_complete = False
            count = offset_map.put(Keys.of_records(records, which), offsets[which])
            if offset_map.is_full:
                refused = int(numbers[which[count]])
                finished = int(batches.last_offset[refused - 1]) if refused else -1
                put = int(offsets[which[count - 1]]) if count else -1
                offset_map.latest_offset = max(offset_map.latest_offset, finished, put)
                return
        offset_map.latest_offset = max(offset_map.latest_offset, int(batches.last_offset[-1]))

    # --- The second pass ----------------------------------------------------------------------------------------------

    def _grouped(self) -> list[_Group]:
        """Groups of neighbouring segments that fit into one, greedily, up to the last offset in the map."""
        job, groups = self._job, list[_Group]()
        limits = (job.segment_bytes, job.segment_index_bytes, job.segment_index_bytes)
        suffixes = (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        sums = [0, 0, 0]
        for segment in job.segments:
            base = segment.base_offset
            if base > self._map.latest_offset:
                break
            sizes = [self._size(self._path(base, suffix)) for suffix in suffixes]
            together = [total + size for total, size in zip(sums, sizes, strict=True)]
            last_offset = self._next_base[base] - 1
            if (
                groups
                and all(total <= limit for total, limit in zip(together, limits, strict=True))
                and (sizes[0] == 0 or last_offset - groups[-1].base_offset <= names.RELATIVE_OFFSET_MAX)
            ):
                sums = together
            else:
                groups.append(_Group([], 0))
                sums = sizes
            group = groups[-1]
            group.sources.append(segment)
            group.next_base = self._next_base[base]
            group.bytes_before += sizes[0]
        return groups

    def _clean_group(
        self, group: _Group, rules: BatchFilter, aborted: dict[int, list[AbortedTransaction]]
    ) -> CleanedGroup:
        """Write one segment with the records of a group that are kept; a dry run only counts them."""
        job = self._job
        if not job.dry_run:
            self._output = CleanedSegment(
                *(self._fs, job.directory, group.base_offset),
                index_bytes_max=job.segment_index_bytes,
                index_interval=job.index_interval_bytes,
            )
        for segment in group.sources:
            before = (group.size, group.records_read - group.records_kept)
            with self._open(segment) as source:
                size = source.size
                for item in source.pieces():
                    if isinstance(item, Piece):
                        self._add(group, item.batches, rules.filter(item.batches))
                    else:
                        self._add_damage(group, source, item)
            lost = group.records_read - group.records_kept - before[1]
            self._losses.append(SegmentLoss(segment.base_offset, lost, size - (group.size - before[0])))
        index = rules.transactions.take_index(group.next_base)
        first = group.sources[0].base_offset
        unchanged = group.is_same and len(group.sources) == 1 and index == aborted.get(first, [])
        if self._output is not None:
            if unchanged:
                self._output.discard()
                remove_cleaned_segment(self._fs, job.directory, first)
            else:
                last = group.sources[-1].base_offset
                self._output.finish(index, self._fs.stat(self._path(last, names.LOG_SUFFIX)).mtime_ms)
            self._output = None
        return CleanedGroup(
            base_offset=first,
            sources=tuple(source.base_offset for source in group.sources),
            bytes_before=group.bytes_before,
            bytes_after=group.size,
            records_read=group.records_read,
            records_kept=group.records_kept,
            unchanged=unchanged,
            damaged=tuple(group.damaged),
            unreadable=tuple(group.unreadable),
        )

    def _add(self, group: _Group, batches: BatchColumns, filtered: Filtered) -> None:
        """Write what is left of some batches, neighbours that stay as they are in one piece."""
        left, changed = filtered.left, filtered.changed
        group.records_read += int(batches.record_count.sum())
        group.records_kept += int(filtered.records_kept.sum())
        group.is_same &= len(left) == len(batches) and not changed
        if not len(left):
            return
        sizes = batches.end[left] - batches.position[left]
        timestamps = batches.max_timestamp[left]
        is_changed = np.zeros(len(left), np.bool_)
        for index in np.flatnonzero(np.isin(left, np.fromiter(changed, np.int64, len(changed)))).tolist():
            encoded = changed[int(left[index])]
            is_changed[index] = True
            sizes[index], timestamps[index] = len(encoded), parse_header(encoded).max_timestamp
        ends = np.cumsum(sizes)
        for index in np.flatnonzero(np.isin(left, filtered.unreadable)).tolist():
            header = batches.header(int(left[index]))
            position, end = (group.size + int(ends[index] - sizes[index]), group.size + int(ends[index]))
            group.unreadable.append(
                DamagedRange(header.base_offset, header.next_offset, group.base_offset, position, end, UNREADABLE)
            )
        group.size += int(ends[-1])
        if self._output is None:
            return
        rows = zip(sizes.tolist(), batches.last_offset[left].tolist(), timestamps.tolist(), strict=True)
        self._output.append(_buffers(batches, left, changed, is_changed), rows)
        self._note_written(int(ends[-1]))

    def _add_damage(self, group: _Group, source: SourceFile, hole: DamagedRange) -> None:
        """Copy damaged bytes to their place in the new segment."""
        size = hole.end_position - hole.position
        group.damaged.append(
            replace(hole, segment=group.base_offset, position=group.size, end_position=group.size + size)
        )
        group.size += size
        if self._output is None:
            return
        for position in range(hole.position, hole.end_position, PIECE_BYTES):
            data = source.pread(min(PIECE_BYTES, hole.end_position - position), position)
            self._output.append_damaged(data)
            self._note_written(len(data))

    def _note_written(self, size: int) -> None:
        self._bytes_written += size
        self._throttle.note(size)

    # --- Files --------------------------------------------------------------------------------------------------------

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self._job.directory}/{names.segment_file_name(base_offset, suffix)}"

    def _size(self, path: str) -> int:
        return self._fs.stat(path).size if self._fs.exists(path) else 0

    def _open(self, segment: SourceSegment, next_base: int | None = None) -> AbstractContextManager[SourceFile]:
        base = segment.base_offset
        next_base = self._next_base[base] if next_base is None else next_base
        return open_source(
            self._fs, self._path(base, names.LOG_SUFFIX), base, next_base, segment.damaged, self._throttle
        )


def _buffers(batches: BatchColumns, left: Int64s, changed: Mapping[int, bytes], is_changed: Bools) -> list[Buffer]:
    """The bytes of the batches that are left, neighbours that stay as they are in one piece."""
    goes_on = np.zeros(len(left), np.bool_)
    goes_on[1:] = (left[1:] == left[:-1] + 1) & ~is_changed[1:] & ~is_changed[:-1]
    firsts = np.flatnonzero(~goes_on)
    lasts = np.append(firsts[1:], len(left)) - 1
    view = memoryview(batches.data)
    rows = zip(
        left[firsts].tolist(),
        is_changed[firsts].tolist(),
        batches.position[left[firsts]].tolist(),
        batches.end[left[lasts]].tolist(),
        strict=True,
    )
    return [changed[number] if is_new else view[start:end] for number, is_new, start, end in rows]
