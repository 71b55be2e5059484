"""A segment: one ``.log`` file of record batches and its two sparse indexes.

A segment is put together from parts: the log (``SegmentLog``), look-ups in the indexes and their rebuild
(``SegmentIndexes``), and the search for damage (``FlawFinder``). Here is what concerns several of them: opening,
appending, finding, shortening. The partition log decides which segment holds an offset, when to roll and what to keep.

A scan skips damaged bytes (``damaged``, found by recovery), and a slice ends before them.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.pauses import HEADERS_A_TURN, RecordsWantedError
from seglog_broker.storage.segment.checksum import ChecksumFile
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.flaws import FlawFinder
from seglog_broker.storage.segment.index_writer import WrittenBatch
from seglog_broker.storage.segment.offset_index import OffsetIndex
from seglog_broker.storage.segment.segment_indexes import SegmentIndexes
from seglog_broker.storage.segment.segment_log import SegmentLog, Start, TailCache, TailRange, WaitingReads
from seglog_broker.storage.segment.sparse_index import SparseIndex
from seglog_broker.storage.segment.time_index import TimeIndex, TimestampOffset
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import CorruptRecordError, DecompressedTooLargeError, SegmentAwaitedError
from seglog_protocol.header_scan import LocatedBatch, Windowed
from seglog_protocol.record_batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader
from seglog_protocol.records import first_record_at

RECORDS_A_TURN: Final = 4
"""Batches whose records are searched in one turn, where they lack the timestamp that their headers announce."""

RECORDS_IN_LINE_BYTES: Final = 16 * 1024
"""The largest batch, packed and unpacked, whose records are searched on the loop: at worst, with many record headers,
this takes a hundredth of a second."""

BEHIND_READS_MAX: Final = 4
"""Ends of reads remembered in each segment: so many sequential readers need no index look-up."""

PROVEN_AT_START_BYTES: Final = 4 * 1024 * 1024
"""Bytes after the last index entry whose checksums a start verifies, at most."""

PROVEN_WHILE_SEEKING_BYTES: Final = 256 * 1024
"""Bytes whose checksums a seek by time verifies, at most: many times the default index interval."""


DerivedFile = SparseIndex | ChecksumFile
"""A file that follows from a ``.log`` and is synced with it."""


class FoundTimestamp(NamedTuple):
    """The first record at or after a wanted time."""

    timestamp: int
    offset: int
    leader_epoch: int


class Segment:
    """Base offset, files, indexes and the facts needed to append to it and to find something in it.

    For a closed segment they are asked of the files when first needed, so that opening a log touches only the active
    one.
    """

    def __init__(
        self,
        fs: FileSystem,
        handles: HandlePool,
        directory: str,
        base_offset: int,
        *,
        index_bytes_max: int,
        index_interval: int,
        existing: Collection[str] = (),
        suffix: str = "",
        damaged: list[DamagedRange] | None = None,
    ) -> None:
        """``existing`` are the names in ``directory``: other files are created when first written.

        ``damaged`` is a list that the caller keeps up to date: where bytes of the ``.log`` are damaged, by position.

        ``suffix`` is appended to all names: compaction writes a segment as ``.cleaned`` files.
        """
        self.base_offset = base_offset
        self.directory = directory
        self.damaged: list[DamagedRange] = [] if damaged is None else damaged
        self.tail = TailCache()  # filled by the appender, which knows the base offsets
        self.last_leader_epoch = -1  # of the last batch, as far as ``activate`` saw one
        self._suffix = suffix
        self._handles = handles
        # By base offset: the batches that readers are likely to fetch next.
        self._behind_reads: dict[int, LocatedBatch] = {}
        self._first_timestamp: int | None = None
        self._end_checked = False  # looked at since this object was made, of a closed segment
        self.log_path = self._path(names.LOG_SUFFIX)
        _, is_awaited = self._place(names.AWAITED_SUFFIX, existing)
        self.log = SegmentLog(fs, handles, self.log_path, base_offset, self.damaged, is_awaited=is_awaited)
        path, exists = self._place(names.OFFSET_INDEX_SUFFIX, existing)
        self.offset_index = OffsetIndex(fs, handles, path, base_offset, bytes_max=index_bytes_max, exists=exists)
        path, exists = self._place(names.TIME_INDEX_SUFFIX, existing)
        self.time_index = TimeIndex(fs, handles, path, base_offset, bytes_max=index_bytes_max, exists=exists)
        path, exists = self._place(names.CHECKSUM_SUFFIX, existing)
        self.checksum = ChecksumFile(fs, handles, path, exists=exists)
        self.indexes = SegmentIndexes(self.log, self.offset_index, self.time_index, index_interval)
        self.flaws = FlawFinder(self.log, self.offset_index)

    # --- Facts --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the ``.log`` without those of an unfinished append."""
        return self.log.size

    @property
    def max_timestamp(self) -> TimestampOffset:
        """(largest timestamp, last offset of the earliest batch that has it); (-1, base offset) without timestamps.

        For a closed segment this is its closing time entry; one that lost its time index has it rebuilt first, unless
        bytes of its log are damaged, which a read of them finds out, or are still to come.
        """
        try:
            return self.indexes.find_max_timestamp()
        except (CorruptRecordError, SegmentAwaitedError):
            return self.time_index.last

    @property
    def is_time_known(self) -> bool:
        """Whether ``max_timestamp`` is in memory."""
        return self.indexes.writer.largest is not None

    @property
    def derived_files(self) -> tuple[DerivedFile, ...]:
        """The files that follow from its ``.log``."""
        return self.offset_index, self.time_index, self.checksum

    @property
    def largest_timestamp(self) -> int:
        """The ``timestamp`` of ``max_timestamp``."""
        return self.max_timestamp.timestamp

    @property
    def first_timestamp(self) -> int:
        """The maxTimestamp of the first batch, read from the file when first needed; -1 when there is none.

        Likewise, for now, while its bytes are still to come.
        """
        if self._first_timestamp is None:
            if self.log.is_awaited:
                return NO_TIMESTAMP
            first = self.log.batches().next()
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first.header.max_timestamp
        return self._first_timestamp

    @property
    def is_first_time_known(self) -> bool:
        """Whether ``first_timestamp`` is in memory."""
        return self._first_timestamp is not None

    # --- Opening ------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the files of a new, empty, active segment."""
        self.log.create()
        self.indexes.create()
        self.checksum.begin()

    def ends_at(self, offset: int) -> bool:
        """Whether the file ends with a whole batch that ``offset`` follows, as far as its last headers tell.

        Only headers from the last index entry on are read, and no index is rebuilt: False where an index cannot be
        trusted, or bytes are damaged.
        """
        size = self.log.size
        if not size:
            return self.base_offset == offset
        if self.damaged or not self.indexes.look_usable():
            return False
        last = self.offset_index.last
        end, next_offset = 0, self.base_offset
        for position, header in self.log.batches(last.position if last else 0):
            end, next_offset = position + header.size, header.next_offset
            if next_offset > offset:
                return False
        return end == size and next_offset == offset

    def ends_sound(self) -> bool:
        """Whether the batches after the last index entry match their checksums; at most the last 4 MiB are read."""
        last = self.offset_index.last
        size = self.log.size
        scan = BatchScan(WaitingReads(self.log), size)
        return all(
            scan.batch_at(position) is not None
            for position, _ in self.log.batches(last.position if last else 0)
            if position >= size - PROVEN_AT_START_BYTES
        )

    def activate(self) -> int:
        """Make an existing segment appendable and return the offset after its last batch.

        The closing time entry of a clean stop is removed, so that the index becomes what it would be without the stop;
        the index interval and the largest timestamp continue where they were.
        """
        self.release()  # a newly created segment holds a lease already
        self.log.activate()
        self._end_checked = False
        self.indexes.ensure()
        self.indexes.writer.create()
        next_offset = self._restore_append_state() if self.indexes.proves_last_time() else None
        if next_offset is None:  # an index that is ahead of its log: rely on the log
            self.indexes.rebuild()
            next_offset = self._restore_append_state()
        return self.base_offset if next_offset is None else next_offset

    def _restore_append_state(self) -> int | None:
        """Restore the state for appends from the last indexed batch on; None when the index points to no batch."""
        last = self.offset_index.last
        if self.time_index.count and (last is None or self.time_index.last.offset > last.offset):
            self.time_index.drop_last()
        start = last.position if last else 0
        size = self.log.size
        maximum = self.time_index.last
        next_offset = None if last else self.base_offset
        end = start
        for position, header in self.log.batches(start):
            if last and position == start and header.last_offset != last.offset:
                return None
            if header.max_timestamp > maximum.timestamp:
                maximum = TimestampOffset(header.max_timestamp, header.last_offset)
            next_offset = header.next_offset
            self.last_leader_epoch = header.leader_epoch
            end = position + header.size
        if next_offset is not None:  # offsets of a damaged end were handed out, and are not handed out again
            next_offset = max([next_offset, *(d.end_offset for d in self.damaged)])
        self.indexes.writer.resume(maximum, size - start)
        if next_offset is not None and end < size and not any(d.end_position > end for d in self.damaged):
            # A clean stop cannot have left such a tail. The next append must not overwrite it.
            raise CorruptRecordError(
                f"{self.log_path} ends in {size - end} bytes that are no record batch",
                path=self.log_path,
                position=end,
                start_offset=next_offset,
            )
        return next_offset

    # --- Appending ----------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Iterable[WrittenBatch]) -> int:
        """Write batches at the end, one behind the other, and index them when due; return the position of the first.

        ``buffers`` are their bytes, split anywhere; ``batches`` tells each of them. Raises OSError with the segment as
        it was but for bytes behind its end: ``SegmentLog.cut_back`` must remove them before anything else is appended.
        """
        position = self.log.write(buffers)
        for data in buffers:
            self.checksum.update(data)
        self.indexes.writer.add(position, batches)
        return position

    def append_damaged(self, data: Buffer) -> None:
        """Write damaged bytes at the end: they count towards the next index entry, and get none themselves."""
        self.log.write((data,))
        self.checksum.update(data)
        self.indexes.writer.bytes_since_entry += len(data)

    def close(self) -> None:
        """Write the closing time entry and both indexes, and trim their files.

        After an OSError the entries are still in memory and the segment is closed; ``IndexWriter.save`` tries again.
        """
        maximum = self.max_timestamp
        self.release()
        if self.log.size:
            self.indexes.writer.close(maximum)
        self.indexes.writer.save()

    # --- Finding ------------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> LocatedBatch | None:
        """The first batch whose last offset is at or above ``offset``, or None when the segment ends before it.

        Raises CorruptRecordError when the scan meets bytes that are no batch.
        """
        behind = self._behind_reads.get(offset)
        return self.look_up(offset) if behind is None else behind

    def look_up(self, offset: int) -> LocatedBatch | None:
        """``find``, without what is remembered of earlier reads."""
        window = self.indexes.window(1)
        start = self.indexes.start_for(offset, window=window)
        walk = self.log.walk(("offset", offset, start.position), start, window=window)
        while (found := walk.next()) is not None:
            if found.header.last_offset >= offset:
                self.log.steps.find(found)
                return found
        return None

    def remembers(self, offset: int) -> bool:
        """Whether a fetch from ``offset`` finds its batch without the index."""
        return offset in self._behind_reads or self.tail.find(offset, 0) is not None

    def find_near_end(self, offset: int, bytes_max: int, *, min_one: bool) -> TailRange | None:
        """The range in ``tail``, unless the file contradicts it; None: use ``find``.

        The file is read once for all equal requests between two appends.
        """
        asked = (offset, bytes_max, min_one)
        if self.tail.latest is not None and self.tail.latest_asked == asked:
            return self.tail.latest
        near = self.tail.find(*asked)
        if near is not None:
            header = self.log.header_at(near.position)
            if header is not None and header.base_offset == near.start_offset:
                self.tail.latest, self.tail.latest_asked = near, asked
                return near
        return None

    def find_timestamp(
        self, timestamp: int, offset_min: int, next_base: int = names.OFFSET_MAX
    ) -> FoundTimestamp | None:
        """The first record with a timestamp at or after ``timestamp`` (ms) and an offset from ``offset_min`` on.

        ``next_base`` is where the next segment begins, or the log ends.
        """
        window = self.indexes.window(3)  # the batch before the entry's, the entry's, and the one behind it
        below = self.indexes.time_below(timestamp, window)
        expected = self.base_offset
        if below is not None and below.behind is not None and offset_min <= below.behind[1]:
            position, expected = below.behind
            start = Start(position)
            window = self.indexes.window(1)
        else:
            covered, proof = (self.base_offset, None) if below is None else (below.entry.offset, below.batch)
            proof = self.log.steps.begins_at(proof) if offset_min <= covered else None
            if proof is not None:
                start = Start(proof.position, proof)
            else:
                start = self.indexes.start_for(max(covered, offset_min), window)
        question = "timestamp", timestamp, offset_min, start.position
        searched = 0
        walk = self.log.walk(question, start, window=window)
        file = Windowed(self.log) if window is None else window
        while (found := walk.next()) is not None:
            header = found.header
            is_wanted = header.max_timestamp >= timestamp and header.last_offset >= offset_min
            is_proven = is_wanted or found.end <= start.position + PROVEN_WHILE_SEEKING_BYTES
            data = file.pread(header.size + HEADER_SIZE, found.position) if is_proven else b""
            behind = data[header.size :] if is_proven else None
            self.flaws.refuse_misplaced(found, expected, next_base, file, behind)
            expected = header.next_offset
            if not is_proven:
                continue
            # A header's timestamp is no better than its checksum: believed, a wrong one would hide its batch.
            self.log.refuse_corrupt(found, data)
            if below is not None and below.batch is not None and below.batch.position == found.position:
                self.indexes.note_verified(below.entry, found)
            first = self._first_in(found, data[: header.size], timestamp, offset_min) if is_wanted else None
            if first is not None:
                self.log.steps.find(found)
                return first
            searched += is_wanted
            if searched == RECORDS_A_TURN:
                self.log.pauses.pause(question, (found.end, header.next_offset))
                searched = 0
        return None

    def _first_in(self, found: LocatedBatch, data: Buffer, timestamp: int, offset_min: int) -> FoundTimestamp | None:
        """``first_at``; on a loop not for a batch that is large, or opens to much."""
        header, only_warm = found.header, self._handles.only_warm
        if not only_warm.is_on:
            return first_at(header, data, timestamp, offset_min)
        if header.size <= RECORDS_IN_LINE_BYTES:
            with suppress(DecompressedTooLargeError):
                return first_at(header, data, timestamp, offset_min, RECORDS_IN_LINE_BYTES)
        question = (header.base_offset, header.size, header.crc, timestamp, offset_min)
        if question not in only_warm.found:
            raise RecordsWantedError(self.log_path, found.position, header.size, question)
        answer = only_warm.found[question]
        return None if answer is None else FoundTimestamp(*answer)

    def end_at_most(self, found: LocatedBatch, size_max: int) -> int:
        """``boundary_at_most`` from a batch that was found; nothing is read where that batch alone is larger."""
        if found.header.size > size_max and self.log.has_whole(found):
            return found.position
        return self.boundary_at_most(found.position, size_max)

    def boundary_at_most(self, start: int, size_max: int) -> int:
        """The largest known batch boundary in (start, start + size_max], or ``start`` when no whole batch fits.

        ``start`` is a boundary itself. The index floor gives one cheaply; only when it lies at or before ``start`` are
        headers walked. Never steps over damaged bytes.
        """
        wanted = start + size_max
        end = next((d.position for d in self.damaged if d.position >= start), self.log.size)
        if wanted >= end:
            return end
        floor = self.offset_index.lookup_position(wanted)
        if floor is not None and start < floor.position < end and (behind := self.indexes.batch_at(floor)) is not None:
            while len(self._behind_reads) >= BEHIND_READS_MAX:
                del self._behind_reads[next(iter(self._behind_reads))]
            self._behind_reads[behind.header.base_offset] = behind
            return floor.position
        boundary = start
        for walked, found in enumerate(self.log.batches(start, end, strict=True)):
            if found.end > wanted or (walked == HEADERS_A_TURN and self.log.pauses.are_wanted):
                break
            boundary = found.end
        return boundary

    def check_end(self, next_base: int) -> None:
        """Raise CorruptRecordError when the last batch reaches ``next_base``, where the next segment begins.

        Checksums leave out the offset: one that is wrong shows by the batch that follows, which here is in another
        file. Looked at once.
        """
        if not self._end_checked:
            last = self.find(next_base - 1)
            if last is not None and last.header.last_offset >= next_base:
                what = f"reaches offset {last.header.last_offset}, and the next segment begins at {next_base}"
                raise self.log.corrupt(last.position, what)
            self._end_checked = True

    def measure_damage(
        self, position: int, start_offset: int, next_base: int, *, compacted_before: int = 0
    ) -> DamagedRange:
        """As ``FlawFinder.measure``; what is remembered of positions of batches is forgotten.

        The caller adds the range to ``damaged``.
        """
        damage = self.flaws.measure(position, start_offset, next_base, compacted_before)
        self._forget_places()
        return damage

    def _forget_places(self) -> None:
        """Drop everything remembered about positions in the file."""
        self._end_checked = False
        self.indexes.forget_walks()
        self.tail.forget()
        self._behind_reads.clear()

    def note_arrived(self) -> None:
        """Its ``.log`` has been awaited, and is whole now: what was taken on trust is looked at again."""
        self.log.is_awaited = False
        self._handles.forget(self.log_path)
        self._forget_places()
        self.indexes.stop_rebuild()

    # --- Shortening and leaving ---------------------------------------------------------------------------------------

    def cut(self, position: int) -> int:
        """Shorten the ``.log`` to ``position`` (bytes), a batch boundary; return how many bytes went.

        The indexes are not touched: the caller rebuilds them.
        """
        self.checksum.drop()
        removed = self.log.cut(position)
        self._forget_places()
        if position == 0:
            self._first_timestamp = None
        return removed

    def forget(self) -> None:
        """Forget every open file, because their names are about to change. Holders of leases can read on."""
        self.release()
        for suffix in names.SEGMENT_SUFFIXES:
            self._handles.forget(self._path(suffix))

    def release(self) -> None:
        """Give the writer's handle back, if there is one: no more will be appended."""
        self.tail.forget()
        self.indexes.forget_walks()
        self.log.release()

    def _place(self, suffix: str, existing: Collection[str]) -> tuple[str, bool]:
        """The path of one of the files, and whether it is among the ``existing`` names."""
        name = names.segment_file_name(self.base_offset, suffix) + self._suffix
        return f"{self.directory}/{name}", name in existing

    def _path(self, suffix: str) -> str:
        return self._place(suffix, ())[0]


def first_at(
    header: BatchHeader, data: Buffer, timestamp: int, offset_min: int, size_max: int | None = None
) -> FoundTimestamp | None:
    """The first record of a whole batch with such a timestamp and offset.

    With ``size_max`` DecompressedTooLargeError is raised where the batch opens to more bytes.
    """
    size_limit = DECOMPRESSED_BATCH_BYTES_MAX if size_max is None else size_max
    try:
        found = first_record_at(header, data, timestamp, offset_min, size_limit=size_limit)
    except CorruptRecordError as error:
        if size_max is not None and isinstance(error, DecompressedTooLargeError):
            raise
        # A producer's unreadable records under a right checksum: the batch as a whole is the answer.
        return FoundTimestamp(header.max_timestamp, max(header.base_offset, offset_min), header.leader_epoch)
    return None if found is None else FoundTimestamp(*found, header.leader_epoch)
