"""A segment: one ``.log`` file of record batches and its two sparse indexes.

A segment handles files and positions; the partition log decides which segment holds an offset, when to roll and what to
keep. Reads lease the file for the time of a call, or pass the lease on with the slice. Only the active segment is
written to: from the first append on it holds a lease on a writable handle, which ``release_idle_writer`` gives back
once all its bytes are on the disk. Not earlier: only an open descriptor reports that writing back has failed.

A scan skips damaged bytes (``damaged``, found by recovery), and a slice ends before them.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from typing import Final, NamedTuple, Protocol

from seglog_broker.storage.io.filesystem import Buffer, File, FileSystem, write_all
from seglog_broker.storage.io.handle_pool import ColdReadError, HandlePool, Lease, RecordsWantedError, TurnWantedError
from seglog_broker.storage.io.pauses import HEADERS_A_TURN, Pauses
from seglog_broker.storage.segment.batch_scan import BatchVerifier
from seglog_broker.storage.segment.checksum import NO_BYTES, SegmentChecksum, measure
from seglog_broker.storage.segment.checksum_file import ChecksumFile
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.storage.segment.offset_index import OffsetIndex, OffsetPosition
from seglog_broker.storage.segment.tail_cache import Tail, TailRange
from seglog_broker.storage.segment.time_index import TimeEntries, TimeIndex, TimestampOffset
from seglog_protocol import segment_files as names
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import CorruptRecordError, DecompressedTooLargeError
from seglog_protocol.header_scan import LocatedBatch, Readable, scan_headers
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    parse_header,
    verify_crc,
    why_implausible,
)
from seglog_protocol.records import iter_records

RECORDS_A_TURN: Final = 4
"""Batches whose records are searched in one turn, where they lack the timestamp that their headers announce."""

RECORDS_IN_LINE_BYTES: Final = 16 * 1024
"""The largest batch, packed and unpacked, whose records are searched on the loop: at worst, with many record headers,
this takes a hundredth of a second."""

BEHIND_READS_MAX: Final = 4
"""Ends of reads remembered in each segment: so many sequential readers need no index look-up."""

PROOF_ENTRIES_MAX: Final = 8
"""Index entries tried, to find a valid batch from which to verify checksums."""


PROVEN_AT_START_BYTES: Final = 4 * 1024 * 1024
"""Bytes after the last index entry whose checksums a start verifies, at most."""

PROVEN_WHILE_SEEKING_BYTES: Final = 256 * 1024
"""Bytes whose checksums a seek by time verifies, at most: many times the default index interval."""


Stop = TurnWantedError | ColdReadError
"""Why an operation stopped half way; it continues when it is called again."""

Making = Generator[Stop, None, int | None]
"""A rebuild of indexes in steps. It returns the offset after the last batch, None when there is none."""


class DerivedFile(Protocol):
    """A file that follows from a ``.log`` and is synced with it."""

    path: str
    is_dirty: bool


class FoundTimestamp(NamedTuple):
    """The first record at or after a wanted time."""

    timestamp: int
    offset: int
    leader_epoch: int


class Segment:
    """Base offset, files, indexes and the facts needed to append to it and to find something in it.

    ``size`` is in bytes. For a closed segment it is asked of the file when first needed, so that opening a log touches
    only the active one.
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
        self.index_interval = index_interval
        self.damaged: list[DamagedRange] = [] if damaged is None else damaged
        self.is_dirty = False  # the .log has bytes or a size that no fdatasync has covered
        self._suffix = suffix
        self.tail = Tail()  # filled by the appender, which knows the base offsets
        self._pauses = Pauses(handles.only_warm)
        self._making: Making | None = None  # a rebuild of indexes, in turns
        # By base offset: the batches that readers are likely to fetch next.
        self._behind_reads: dict[int, LocatedBatch] = {}
        self._fs = fs
        self._handles = handles
        self._writer: Lease[File] | None = None
        self.is_active = False  # it can be appended to
        self._size: int | None = None
        self._bytes_since_index = 0
        self._max: TimestampOffset | None = None
        self._first_timestamp: int | None = None
        self.last_leader_epoch = -1  # of the last batch, as far as ``activate`` saw one
        self.log_path = self._path(names.LOG_SUFFIX)
        self.offset_index = OffsetIndex(
            fs,
            handles,
            self._path(names.OFFSET_INDEX_SUFFIX),
            base_offset,
            bytes_max=index_bytes_max,
            exists=self._name(names.OFFSET_INDEX_SUFFIX) in existing,
        )
        self.time_index = TimeIndex(
            fs,
            handles,
            self._path(names.TIME_INDEX_SUFFIX),
            base_offset,
            bytes_max=index_bytes_max,
            exists=self._name(names.TIME_INDEX_SUFFIX) in existing,
        )
        self.checksum = ChecksumFile(
            fs,
            handles,
            self._path(names.CHECKSUM_SUFFIX),
            exists=self._name(names.CHECKSUM_SUFFIX) in existing,
        )
        self._offset_index_checked = False  # looked at since this object was made
        self._time_index_checked = False
        self._end_checked = False  # as above, of a closed segment

    # --- Facts --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the ``.log`` without those of an unfinished append."""
        if self._size is None:
            self._size = self._fs.stat(self.log_path).size
        return self._size

    @property
    def holds_writer(self) -> bool:
        """Whether its file is kept open for appends."""
        return self._writer is not None

    @property
    def max_timestamp(self) -> TimestampOffset:
        """(largest timestamp, last offset of the earliest batch that has it); (-1, base offset) without timestamps.

        For a closed segment this is its closing time entry; one that lost its time index has it rebuilt first, unless
        bytes of its log are damaged, which a read of them finds out.
        """
        try:
            return self.find_max_timestamp()
        except CorruptRecordError:
            return self.time_index.last

    def find_max_timestamp(self) -> TimestampOffset:
        """``max_timestamp``: it reads no file once the value is known.

        Raises CorruptRecordError when an index must be rebuilt from a log that is damaged.
        """
        if self._max is None:
            self._ensure_time_index()
            if not self._proves_last_time():
                self.rebuild_indexes()
            self._max = self.time_index.last
        return self._max

    @property
    def is_time_known(self) -> bool:
        """Whether ``max_timestamp`` is in memory."""
        return self._max is not None

    @property
    def derived_files(self) -> tuple[DerivedFile, ...]:
        """The files that follow from its ``.log``."""
        return self.offset_index, self.time_index, self.checksum

    @property
    def largest_timestamp(self) -> int:
        """The ``timestamp`` of ``max_timestamp``."""
        return self.max_timestamp.timestamp

    @property
    def modified_ms(self) -> int:
        """When the ``.log`` was last written to, as its file system says (wall time, ms)."""
        return self._fs.stat(self.log_path).mtime_ms

    @property
    def first_timestamp(self) -> int:
        """The maxTimestamp of the first batch, read from the file when first needed; -1 when there is none."""
        if self._first_timestamp is None:
            first = next(self._batches(0, self.size), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first.header.max_timestamp
        return self._first_timestamp

    @property
    def is_first_time_known(self) -> bool:
        """Whether ``first_timestamp`` is in memory."""
        return self._first_timestamp is not None

    @property
    def is_index_full(self) -> bool:
        """Whether the next append might not fit one of the indexes."""
        return self.offset_index.is_full or self.time_index.is_full

    # --- Appending ----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the files of a new, empty, active segment."""
        self._writer = self._handles.lease(self.log_path, create=True)
        self._writer.resource.truncate(0)
        self.is_active = True
        self.offset_index.create()
        self.time_index.create()
        self.checksum.begin()
        self._size, self._max = 0, TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._offset_index_checked = self._time_index_checked = True
        self.is_dirty = True

    def ends_at(self, offset: int) -> bool:
        """Whether the file ends with a whole batch that ``offset`` follows, as far as its last headers tell.

        Only headers from the last index entry on are read, and no index is rebuilt: False where an index cannot be
        trusted, or bytes are damaged.
        """
        if not self.size:
            return self.base_offset == offset
        try:
            if self.damaged or self._why_offset_index_unusable() is not None or self.time_index.problem() is not None:
                return False
        except ValueError:
            return False
        last = self.offset_index.last
        end, next_offset = 0, self.base_offset
        for position, header in self._batches(last.position if last else 0, self.size):
            end, next_offset = position + header.size, header.next_offset
            if next_offset > offset:
                return False
        return end == self.size and next_offset == offset

    def activate(self) -> int:
        """Make an existing segment appendable and return the offset after its last batch.

        The closing time entry of a clean stop is removed, so that the index becomes what it would be without the stop;
        the index interval and the largest timestamp continue where they were.
        """
        self.release()  # a newly created segment holds a lease already
        self.is_active, self._end_checked = True, False
        self.ensure_indexes()
        self.offset_index.create()
        self.time_index.create()
        next_offset = self._restore_append_state() if self._proves_last_time() else None
        if next_offset is None:  # an index that is ahead of its log: rely on the log
            self.rebuild_indexes()
            next_offset = self._restore_append_state()
        return self.base_offset if next_offset is None else next_offset

    def _restore_append_state(self) -> int | None:
        """Restore the state for appends from the last indexed batch on; None when the index points to no batch."""
        last = self.offset_index.last
        if self.time_index.count and (last is None or self.time_index.last.offset > last.offset):
            self.time_index.drop_last()
        start = last.position if last else 0
        self._bytes_since_index = self.size - start
        maximum = self.time_index.last
        next_offset = None if last else self.base_offset
        end = start
        for position, header in self._batches(start, self.size):
            if last and position == start and header.last_offset != last.offset:
                return None
            if header.max_timestamp > maximum.timestamp:
                maximum = TimestampOffset(header.max_timestamp, header.last_offset)
            next_offset = header.next_offset
            self.last_leader_epoch = header.leader_epoch
            end = position + header.size
        if next_offset is not None:  # offsets of a damaged end were handed out, and are not handed out again
            next_offset = max([next_offset, *(d.end_offset for d in self.damaged)])
        self._max = maximum
        if next_offset is not None and end < self.size and not any(d.end_position > end for d in self.damaged):
            # A clean stop cannot have left such a tail. The next append must not overwrite it.
            raise CorruptRecordError(
                f"{self.log_path} ends in {self.size - end} bytes that are no record batch",
                path=self.log_path,
                position=end,
                start_offset=next_offset,
            )
        return next_offset

    def ends_sound(self) -> bool:
        """Whether the batches after the last index entry match their checksums; at most the last 4 MiB are read."""
        last = self.offset_index.last
        with self._handles.lease(self.log_path) as file:
            verifier = BatchVerifier(file, self.size)
            return all(
                verifier.batch_at(position) is not None
                for position, _ in self._batches(last.position if last else 0, self.size)
                if position >= self.size - PROVEN_AT_START_BYTES
            )

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> int:
        """Write one batch at the end and index it when due; return its position.

        Raises OSError with the segment as it was but for bytes behind its end: ``cut_back`` must remove them before
        anything else is appended.
        """
        position, size = self.size, len(batch)
        self.is_dirty = True
        write_all(self._writing(), (batch,), position)
        self._size = position + size
        self.checksum.update(batch)
        self._index(position, size, last_offset, max_timestamp)
        return position

    def append_many(self, buffers: Sequence[Buffer], batches: Iterable[tuple[int, int, int]]) -> None:
        """Write many batches at the end, as ``append`` does one by one.

        ``buffers`` are their bytes, split anywhere; ``batches`` has (size, last offset, max timestamp) of each. After
        an OSError the segment must not be used any more.
        """
        self.is_dirty = True
        position = self.size
        self._size = position + write_all(self._writing(), buffers, position)
        for data in buffers:
            self.checksum.update(data)
        for size, last_offset, max_timestamp in batches:
            self._index(position, size, last_offset, max_timestamp)
            position += size

    def append_damaged(self, data: Buffer) -> None:
        """Write damaged bytes at the end: they count towards the next index entry, and get none themselves."""
        self.is_dirty = True
        self._size = self.size + write_all(self._writing(), (data,), self.size)
        self.checksum.update(data)
        self._bytes_since_index += len(data)

    def cut_back(self) -> None:
        """Remove what a failed append left behind the end. OSError: the file cannot be trusted with another append."""
        if self._writer is not None:  # else the file could not even be opened
            self._writer.resource.truncate(self.size)

    def _writing(self) -> File:
        """The file to append to, opened if it is not."""
        if self._writer is None:
            assert self.is_active, "append to a segment that is not active"
            self._writer = self._handles.lease(self.log_path, writable=True)
        return self._writer.resource

    def release_idle_writer(self) -> None:
        """Give the writer's handle back until the next append, unless bytes still have to be synced."""
        if self._writer is not None and not (self.is_dirty and self.size):
            self._writer.release()
            self._writer = None

    def _index(self, position: int, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Count the batch, and add index entries if they are due; whether they were."""
        maximum = self._max
        if maximum is None or max_timestamp > maximum.timestamp:
            maximum = self._max = TimestampOffset(max_timestamp, last_offset)
        is_due = self._bytes_since_index > self.index_interval and not self.is_index_full
        if is_due:
            self.offset_index.append(last_offset, position)
            self.time_index.offer(*maximum)
            self._bytes_since_index = 0
        self._bytes_since_index += size
        return is_due

    def close(self) -> None:
        """Write the closing time entry and both indexes, and trim their files.

        After an OSError the entries are still in memory and the segment is closed; ``save_indexes`` tries again.
        """
        maximum = self.max_timestamp
        self.release()
        if self.size:
            self.time_index.offer(*maximum, closing=True)
        self.save_indexes()

    def save_indexes(self) -> None:
        """Write the index entries that are still in memory; after an OSError they stay there."""
        self.offset_index.trim()
        self.time_index.trim()

    def measure(self, so_far: SegmentChecksum = NO_BYTES) -> SegmentChecksum:
        """The checksum of the whole ``.log``; bytes that ``so_far`` covers are not read."""
        with self._handles.lease(self.log_path) as file:
            return measure(file, self.size, so_far)

    # --- Finding ------------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> LocatedBatch | None:
        """The first batch whose last offset is at or above ``offset``, or None when the segment ends before it.

        Raises CorruptRecordError when the scan meets bytes that are no batch.
        """
        behind = self._behind_reads.get(offset)
        return self._look_up(offset) if behind is None else behind

    def _look_up(self, offset: int) -> LocatedBatch | None:
        """``find``, without what is remembered of earlier reads."""
        start = self._start_for(offset)
        for found in self._walk(("offset", offset, start), start):
            if found.header.last_offset >= offset:
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
            with self._handles.lease(self.log_path) as leased:
                data = self._handles.for_seeking(leased).pread(HEADER_SIZE, near.position)
            if len(data) == HEADER_SIZE:
                header = parse_header(data)
                if why_implausible(header) is None and header.base_offset == near.start_offset:
                    self.tail.latest, self.tail.latest_asked = near, asked
                    return near
        return None

    def find_timestamp(
        self, timestamp: int, offset_min: int, next_base: int = names.OFFSET_MAX
    ) -> FoundTimestamp | None:
        """The first record with a timestamp at or after ``timestamp`` (ms) and an offset from ``offset_min`` on.

        ``next_base`` is where the next segment begins, or the log ends.
        """
        self._ensure_time_index()
        found = self._time_below(timestamp)
        if found is not None and not self._proves(found):
            self.rebuild_indexes()
            found = self._time_below(timestamp)
        start = self._start_for(max(found.entry.offset if found is not None else self.base_offset, offset_min))
        with self._handles.lease(self.log_path) as leased:
            file = self._for_seeking(leased)
            expected = self.base_offset
            question = "timestamp", timestamp, offset_min, start
            searched = 0
            for position, header in self._walk(question, start):
                self._refuse_misplaced(LocatedBatch(position, header), expected, next_base, file)
                expected = header.next_offset
                is_wanted = header.max_timestamp >= timestamp and header.last_offset >= offset_min
                if not is_wanted and position + header.size > start + PROVEN_WHILE_SEEKING_BYTES:
                    continue
                # A header's timestamp is no better than its checksum: believed, a wrong one would hide its batch.
                data = self._whole(file, LocatedBatch(position, header))
                first = self._first_in(header, data, position, timestamp, offset_min) if is_wanted else None
                if first is not None:
                    return first
                searched += is_wanted
                if searched == RECORDS_A_TURN:
                    self._pauses.pause(question, (position + header.size, header.next_offset))
                    searched = 0
        return None

    def _refuse_misplaced(self, found: LocatedBatch, expected: int, next_base: int, file: Readable) -> None:
        """Raise CorruptRecordError when an offset, which no checksum covers, does not fit between its neighbours."""
        header = found.header
        behind = file.pread(HEADER_SIZE, found.end) if header.base_offset != expected and found.end < self.size else b""
        following = parse_header(behind) if len(behind) == HEADER_SIZE else None
        if following is not None and why_implausible(following) is None:
            next_base = min(next_base, following.base_offset)
        if not expected <= header.base_offset <= header.last_offset < max(next_base, expected + 1):
            raise CorruptRecordError(
                f"the batch at position {found.position} of {self.log_path} has offset {header.base_offset}, between "
                f"{expected} and {next_base}",
                path=self.log_path,
                position=found.position,
                start_offset=expected if found.position == 0 else -1,
            )

    def _whole(self, file: Readable, found: LocatedBatch) -> bytes:
        """The bytes of a batch. CorruptRecordError when they do not match its checksum."""
        data = file.pread(found.header.size, found.position)
        if not verify_crc(data, 0, found.header):
            raise CorruptRecordError(
                f"the batch at position {found.position} of {self.log_path} does not match its checksum",
                path=self.log_path,
                position=found.position,
                start_offset=-1,
            )
        return data

    def _proves_last_time(self) -> bool:
        """Whether the newest time entry is true, and no batch after the last offset entry has a later timestamp.

        Where bytes of the log are damaged the entry is trusted: only one of the two is wrong.
        """
        last = self.time_index.around_last()
        if last is None:
            return True
        try:
            return self._proves(last) and self._is_youngest(last.entry)
        except CorruptRecordError:
            return last.is_in_order

    def _is_youngest(self, last: TimestampOffset) -> bool:
        if self.is_active:
            return True  # what was appended since is younger, or not
        indexed = self._start_for(names.OFFSET_MAX)
        behind = self._walk(("youngest", last.timestamp, indexed), indexed)
        return all(header.max_timestamp <= last.timestamp for _, header in behind)

    def _proves(self, entries: TimeEntries) -> bool:
        """Whether log and neighbours confirm a time entry; the batches between two offset entries are read.

        It must name the earliest batch there that has its timestamp, and none before it may have a later one. Raises
        CorruptRecordError when that batch does not match its checksum.
        """
        entry = entries.entry
        if not entries.is_in_order or not self.base_offset <= entry.offset:
            return False
        with self._handles.lease(self.log_path) as leased:
            start = self._start_for(max(self.base_offset, entry.offset - 1))
            file = self._for_seeking(leased)
            for found in self._walk(("proof", *entry, start), start):
                header = found.header
                is_named = header.last_offset >= entry.offset
                if is_named and header.base_offset <= entry.offset and header.max_timestamp == entry.timestamp:
                    return True
                if is_named or header.max_timestamp >= entry.timestamp:
                    self._whole(file, found)  # to find out which of the two is wrong
                    return False
        return False

    def _first_in(
        self, header: BatchHeader, data: bytes, position: int, timestamp: int, offset_min: int
    ) -> FoundTimestamp | None:
        """``first_at``; on a loop not for a batch that is large, or opens to much."""
        only_warm = self._handles.only_warm
        if not only_warm.is_on:
            return first_at(header, data, timestamp, offset_min)
        if header.size <= RECORDS_IN_LINE_BYTES:
            with suppress(DecompressedTooLargeError):
                return first_at(header, data, timestamp, offset_min, RECORDS_IN_LINE_BYTES)
        question = (header.base_offset, header.size, header.crc, timestamp, offset_min)
        if question not in only_warm.found:
            raise RecordsWantedError(self.log_path, position, header.size, question)
        answer = only_warm.found[question]
        return None if answer is None else FoundTimestamp(*answer)

    def boundary_at_most(self, start: int, size_max: int) -> int:
        """The largest known batch boundary in (start, start + size_max], or ``start`` when no whole batch fits.

        ``start`` is a boundary itself. The index floor gives one cheaply; only when it lies at or before ``start`` are
        headers walked. Never steps over damaged bytes.
        """
        wanted = start + size_max
        end = next((d.position for d in self.damaged if d.position >= start), self.size)
        if wanted >= end:
            return end
        floor = self.offset_index.lookup_position(wanted)
        if floor is not None and start < floor.position < end and (behind := self._batch_at_entry(floor)) is not None:
            while len(self._behind_reads) >= BEHIND_READS_MAX:
                del self._behind_reads[next(iter(self._behind_reads))]
            self._behind_reads[behind.header.base_offset] = behind
            return floor.position
        boundary = start
        for walked, found in enumerate(self._batches(start, end, strict=True)):
            if found.end > wanted or (walked == HEADERS_A_TURN and self._pauses.are_wanted):
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
                raise CorruptRecordError(
                    f"the batch at position {last.position} of {self.log_path} reaches offset "
                    f"{last.header.last_offset}, and the next segment begins at {next_base}",
                    path=self.log_path,
                    position=last.position,
                    start_offset=-1,
                )
            self._end_checked = True

    def base_behind(self, found: LocatedBatch, next_base: int) -> int | None:
        """The base offset of the batch behind ``found``, as its header has it; None where that tells nothing.

        ``next_base`` is where the next segment begins, or the log ends, which counts behind the last one.
        """
        if found.end >= self.size:
            return next_base
        if any(d.position <= found.end < d.end_position for d in self.damaged):
            return None
        with self._handles.lease(self.log_path) as leased:
            data = self._handles.for_seeking(leased).pread(HEADER_SIZE, found.end)
        if len(data) < HEADER_SIZE or why_implausible(header := parse_header(data)) is not None:
            return None
        return header.base_offset

    def find_flaw(self, offset: int, found: LocatedBatch, end: int, next_base: int) -> CorruptRecordError | None:
        """The error for the batches from ``found`` (for ``offset``) up to ``end``, and right before; None if valid.

        Their checksums are verified, and their offsets compared with each other; the walk begins at a batch that an
        index entry points to. ``next_base`` is where the next segment begins, or the log ends.
        """
        with self._handles.lease(self.log_path) as leased:
            verifier = BatchVerifier(self._handles.for_seeking(leased), self.size, self._pauses)
            entry = self.offset_index.lookup(offset)
            if entry.position:
                entry = self.offset_index.lookup(entry.offset - 1)
            flaw = self._flaw_from(verifier, entry, found.position, end, next_base)
        if flaw is None:
            return None
        position, start_offset = flaw
        return CorruptRecordError(
            f"the batch at position {position} of {self.log_path} does not match its checksum or its neighbours",
            path=self.log_path,
            position=position,
            start_offset=start_offset,
        )

    def flaw_before(self, position: int, offset: int, next_base: int) -> tuple[int, int] | None:
        """(position, first offset lost or -1) of a flaw before ``position``, to which a batch's length has led.

        ``offset`` is the one expected there by the headers. None: no flaw before it, so the bytes there are damaged.
        """
        with self._handles.lease(self.log_path) as leased:
            entry = self.offset_index.lookup_position(position - 1) or OffsetPosition(self.base_offset, 0)
            floor = self.offset_index.lookup(max(offset, self.base_offset))  # a scan for it began here
            if floor.position < entry.position and position - floor.position <= PROVEN_AT_START_BYTES:
                entry = floor
            verifier = BatchVerifier(self._for_seeking(leased), self.size, self._pauses)
            return self._flaw_from(verifier, entry, position, position, next_base)

    def _flaw_from(
        self, verifier: BatchVerifier, entry: OffsetPosition, at_most: int, end: int, next_base: int
    ) -> tuple[int, int] | None:
        """As ``BatchVerifier.first_flaw`` up to ``end``, from the last sound batch that ``entry`` or one before names.

        Where there is none it begins at ``at_most``.
        """
        start, expected = at_most, -1
        for _ in range(PROOF_ENTRIES_MAX):
            if entry.position == 0:
                start, expected = 0, self.base_offset
                break
            sound = verifier.batch_at(entry.position, self.base_offset, entry.offset)
            if sound is not None and sound.position <= at_most:
                start, expected = sound.position, sound.header.base_offset
                break
            entry = self.offset_index.lookup(entry.offset - 1)
        return verifier.first_flaw(start, end, expected, (self.base_offset, next_base - 1), self.damaged)

    def lease(self) -> Lease[File]:
        """The ``.log`` file, kept open until the lease is released."""
        return self._handles.lease(self.log_path)

    def batches(self) -> Iterator[LocatedBatch]:
        """Every batch, by its header only; checksums are not verified, damaged bytes are skipped."""
        return self._batches(0, self.size)

    def read_batch(self, found: LocatedBatch) -> bytes:
        """The bytes of a batch that was found here."""
        with self._handles.lease(self.log_path) as file:
            return file.pread(found.header.size, found.position)

    def _batches(
        self,
        position: int,
        end: int,
        *,
        strict: bool = False,
        to_end: bool = False,
        expected: int = -1,
    ) -> Generator[LocatedBatch, None, None]:
        """Batches from ``position`` on, without damaged bytes; ``expected`` is the offset due there, -1 if not known.

        With ``to_end`` it raises where they end too early. ``strict`` is for seeks: it does so as well, and also raises
        where it would have to wait for the disk on the loop.
        """
        with self._handles.lease(self.log_path) as leased:
            file = self._for_seeking(leased) if strict else self._for_walking(leased)
            while position < end:
                hole = next((d for d in self.damaged if position < d.end_position > d.position), None)
                stop = max(position, min(hole.position, end)) if hole else end
                for found in scan_headers(file, position, stop):
                    yield found
                    position, expected = found.end, found.header.next_offset
                if position < stop:
                    if strict or to_end:
                        raise CorruptRecordError(
                            f"{self.log_path} holds no record batch at position {position}",
                            path=self.log_path,
                            position=position,
                            start_offset=expected,
                        )
                    return
                position = hole.end_position if hole else end

    def _walk(self, question: tuple[object, ...], start: int, *, strict: bool = True) -> Iterator[LocatedBatch]:
        """Every batch from ``start`` on, for the first that answers a question; see ``Pauses``."""
        position, expected = self._pauses.resume(question, (start, -1))
        walk = self._batches(position, self.size, strict=strict, expected=expected)
        for walked, found in enumerate(walk, start=1):
            yield found
            if walked % HEADERS_A_TURN == 0:
                self._pauses.pause(question, (found.end, found.header.next_offset))

    def _for_seeking(self, file: File) -> Readable:
        """The ``.log`` as a seek may read it now: on a loop it does not wait for the disk."""
        return self._handles.for_seeking(file)

    def _for_walking(self, file: File) -> Readable:
        """The ``.log`` as it is read where a wait for the disk does no harm."""
        return file

    def measure_damage(
        self,
        position: int,
        start_offset: int,
        next_base: int,
        *,
        compacted_before: int = 0,
    ) -> DamagedRange:
        """The damaged range that begins at ``position`` and ends at the next valid batch of this segment.

        The caller adds the range to ``damaged``. Remembered positions of batches are forgotten.

        ``start_offset`` is the first offset lost, -1 when it is not known; ``next_base`` where the next segment begins.
        Below ``compacted_before`` compaction has left holes.
        """
        if not self.base_offset <= start_offset <= next_base:  # not known, or by a header that is wrong itself
            start_offset = self._due_at(position, next_base)
        with self._handles.lease(self.log_path) as leased:
            verifier = BatchVerifier(self._for_seeking(leased), self.size, self._pauses)
            found = verifier.next_batch_after_flaw(position, start_offset, next_base - 1, compacted_before)
        end_offset, end_position = (found.header.base_offset, found.position) if found else (next_base, self.size)
        damage = DamagedRange(start_offset, end_offset, self.base_offset, position, end_position)
        self._forget_places()
        return damage

    def _due_at(self, position: int, next_base: int) -> int:
        """The offset that is due at ``position``, as far as the headers before it tell."""
        question = "due", position, next_base
        start, due = self._pauses.resume(question, (0, self.base_offset))
        for walked, found in enumerate(self._batches(start, position), start=1):
            header = found.header
            if due <= header.base_offset <= header.last_offset < next_base:
                due = header.next_offset
            if walked % HEADERS_A_TURN == 0:
                self._pauses.pause(question, (found.end, due))
        return int(due)

    def _forget_places(self) -> None:
        """Drop everything remembered about positions in the file."""
        self._end_checked = False
        self._forget_walks()
        self.tail.forget()
        self._behind_reads.clear()

    def _forget_walks(self) -> None:
        """Drop all interrupted walks, so that they begin again."""
        self._pauses.forget()
        if self._making is not None:
            self._making.close()
            self._making = None

    # --- Indexes that cannot be trusted -------------------------------------------------------------------------------

    def _start_for(self, offset: int) -> int:
        """Position from which a scan finds ``offset``: the index floor, used only if a fitting batch begins there.

        Indexes have no checksum: one flipped bit would otherwise skip records silently.
        """
        self._ensure_offset_index()
        try:
            entry = self._index_floor(offset)
            if entry.position == 0 or self._batch_at_entry(entry) is not None:
                return entry.position
        except ValueError:
            pass  # the file is shorter than it was: rebuilt below
        self.rebuild_indexes()
        return self._index_floor(offset).position

    def _index_floor(self, offset: int) -> OffsetPosition:
        return self.offset_index.lookup(offset)

    def _time_below(self, timestamp: int) -> TimeEntries | None:
        return self.time_index.below(timestamp)

    def _batch_at_entry(self, entry: OffsetPosition) -> LocatedBatch | None:
        """The batch at the position of an index entry; None when no fitting batch begins there."""
        if not 0 < entry.position <= self.size - HEADER_SIZE:
            return None
        with self._handles.lease(self.log_path) as leased:
            data = self._for_seeking(leased).pread(HEADER_SIZE, entry.position)
        header = parse_header(data)
        fits = why_implausible(header) is None and header.base_offset <= entry.offset
        return LocatedBatch(entry.position, header) if fits else None

    def ensure_indexes(self) -> None:
        """Rebuild both indexes if either is missing or implausible; looks once, and only at their ends."""
        self._ensure_offset_index()
        self._ensure_time_index()

    def _ensure_time_index(self) -> None:
        """The half of ``ensure_indexes`` for the largest timestamp, so that skipping a segment reads one file."""
        if not self._time_index_checked:
            problem = self._why_time_index_unusable()
            if problem is not None:
                self.rebuild_indexes()
            self._time_index_checked = True  # not before: a cold read interrupts the look, and damage the making

    def _ensure_offset_index(self) -> None:
        """The half of ``ensure_indexes`` that a seek by offset needs: a log without timestamps has no time index."""
        if not self._offset_index_checked:
            problem = self._why_offset_index_unusable()
            if problem is not None:
                self.rebuild_indexes()
            self._offset_index_checked = True

    def _why_offset_index_unusable(self) -> str | None:
        if not self.offset_index.exists:
            return "there is no offset index"
        try:
            problem = self.offset_index.problem(self.size)
        except ValueError as error:
            return str(error)
        if problem is None and not self.offset_index.count and self._is_worth_an_entry():
            return "it is empty, and the log is long enough for an entry"
        return problem

    def _is_worth_an_entry(self) -> bool:
        """Whether any batch lies so far from the start that it is indexed; a few headers tell."""
        if self.size <= self.index_interval:
            return False
        interval = self.index_interval
        return any(position > interval for position, _ in self._walk(("index",), 0, strict=False))

    def _why_time_index_unusable(self) -> str | None:
        if not self.time_index.exists:
            return "there is no time index"
        try:
            problem = self.time_index.problem()
        except ValueError as error:
            return str(error)
        if problem is None and not self.is_active and self.size and not self.time_index.count:
            # Either no batch has a timestamp, or the closing entry was lost: only the headers can tell.
            return "a closed segment's time index is empty"
        return problem

    def rebuild_indexes(self, batches: Iterable[LocatedBatch] | None = None) -> int | None:
        """Rebuild both indexes from ``batches``, by default all headers; checksums are not verified.

        Returns the offset after the last batch, or None when there is none. Raises CorruptRecordError, with the old
        indexes unchanged, where headers show unknown damage. The result equals, byte for byte, what the live segment
        would have; an index that is full stays full, which makes a seek slow but never wrong.
        """
        if batches is None:
            return self._make_in_turns()
        self.offset_index.reset()
        self.time_index.reset()
        next_offset = _run(self.fill_indexes(batches))
        if not self.is_active:
            self.save_indexes()
        return next_offset

    def _make_in_turns(self) -> int | None:
        """``rebuild_indexes`` from all headers. If it stops half way, the next call continues."""
        if self._making is None:
            self._making = self._rebuilt_indexes()
        stop: Exception | None = None
        try:
            while stop is None or not self._pauses.are_wanted:
                stop = next(self._making)
        except StopIteration as done:
            self._making = None
            made: int | None = done.value
            return made
        except BaseException:
            self._making = None
            raise
        raise stop

    def _rebuilt_indexes(self) -> "Making":
        """Build both indexes in new files, which replace the old ones once they are complete and synced.

        A half-built index after a kill would not be noticed: a later start trusts those of closed segments.
        """
        made: Segment | None = None
        is_made = False
        try:
            yield from self._refuse_unknown_damage()
            made = self._beside()
            next_offset = yield from made.fill_indexes(self._pieces())
            is_made = True
        finally:
            self._offset_index_checked = self._time_index_checked = is_made
            if not is_made:
                if not self.is_active:
                    self._max = None
                if made is not None:
                    made.offset_index.remove()
                    made.time_index.remove()
        self.offset_index.take_over(made.offset_index)
        self.time_index.take_over(made.time_index)
        self._max, self._bytes_since_index = made.counted
        return next_offset

    def _beside(self) -> "Segment":
        """The same batches, with empty indexes in files of their own."""
        beside = copy(self)
        beside._size = None  # noqa: SLF001 - it is one of these; there may be appends meanwhile
        beside.offset_index, beside.time_index = self.offset_index.beside(), self.time_index.beside()
        return beside

    @property
    def counted(self) -> tuple[TimestampOffset | None, int]:
        """State for the next index entries: the largest timestamp, and bytes since the last entry."""
        return self._max, self._bytes_since_index

    def fill_indexes(self, batches: Iterable[LocatedBatch | Stop]) -> "Making":
        """Fill both empty indexes; returns the offset after the last batch. It stops where ``batches`` do."""
        self._offset_index_checked = self._time_index_checked = True
        self._max = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        indexed, next_offset = 0, None
        highest = self.base_offset + names.RELATIVE_OFFSET_MAX
        for found in batches:
            if not isinstance(found, LocatedBatch):
                yield found
                continue
            position, header = found
            if not (next_offset or self.base_offset) <= header.base_offset <= header.last_offset <= highest:
                continue  # an offset that its checksum does not cover is wrong: no entry can name it
            self._bytes_since_index = position - indexed
            if self._index(position, header.size, header.last_offset, header.max_timestamp):
                indexed = position
            next_offset = header.next_offset
        self._bytes_since_index = self.size - indexed
        if self.size and not self.is_active:
            self.time_index.offer(*self._max, closing=True)
        return next_offset

    def _pieces(self) -> Iterator[LocatedBatch | Stop]:
        """Every batch by its header, also those that are appended meanwhile, and places to stop at.

        No file is held open there. Raises CorruptRecordError where bytes are no batch.
        """
        position, expected = 0, -1
        stop: Stop | None = TurnWantedError()
        while stop is not None:
            stop = None
            batches = self._batches(position, self.size, strict=True, expected=expected)
            try:
                for walked, found in enumerate(batches, start=1):
                    yield found
                    position, expected = found.end, found.header.next_offset
                    if walked == HEADERS_A_TURN:
                        stop = TurnWantedError()
                        break
            except ColdReadError as cold:
                stop = cold
            batches.close()
            if stop is not None:
                yield stop

    def _refuse_unknown_damage(self) -> Generator[Stop, None, None]:
        """Raise CorruptRecordError where no batch begins, or an offset does not fit between its neighbours.

        Indexes built from the rest would lead look-ups past the batches after such a place.
        """
        expected, highest = self.base_offset, self.base_offset + names.RELATIVE_OFFSET_MAX
        odd: LocatedBatch | None = None  # the batch before, if it left a gap
        for found in self._pieces():
            if not isinstance(found, LocatedBatch):
                yield found
                continue
            header = found.header
            misfit: LocatedBatch | None = None
            if header.last_offset > highest:
                misfit = found
            elif header.base_offset < expected:
                misfit = odd or found
            if misfit is not None:
                raise CorruptRecordError(
                    f"the batch at position {misfit.position} of {self.log_path} has an offset that does not fit",
                    path=self.log_path,
                    position=misfit.position,
                    start_offset=-1 if misfit.position else self.base_offset,
                )
            odd = found if header.base_offset > expected else None
            expected = header.next_offset

    def replace_indexes(self, suffixes: Sequence[str]) -> None:
        """Replace the index files of a closed segment by the correct ones beside them, which end in ``.tmp``.

        OSError: an old file is still there, which is no worse than before.
        """
        if names.OFFSET_INDEX_SUFFIX in suffixes:
            self.offset_index.replace(f"{self.offset_index.path}{names.TEMPORARY_SUFFIX}")
        if names.TIME_INDEX_SUFFIX in suffixes:
            self.time_index.replace(f"{self.time_index.path}{names.TEMPORARY_SUFFIX}")
        self._max = None
        self._forget_walks()
        self._offset_index_checked = self._time_index_checked = False

    # --- Shortening and leaving ---------------------------------------------------------------------------------------

    def cut(self, position: int) -> int:
        """Shorten the ``.log`` to ``position`` (bytes), a batch boundary; return how many bytes went.

        The indexes are not touched: the caller rebuilds or truncates them.
        """
        removed = self.size - position
        self.checksum.drop()
        with self._handles.lease(self.log_path, writable=True) as file:
            file.truncate(position)
        self._size, self.is_dirty = position, True
        self._forget_places()
        if position == 0:
            self._first_timestamp = None
        self.damaged[:] = [d for d in self.damaged if d.end_position <= position]
        return removed

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches ``offset`` or beyond: the segment ends before the first of them.

        The running state is stale afterwards: ``activate`` before the next append.
        """
        first = self.find(offset)
        if first is not None:
            self.cut(first.position)
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
            self._max = None

    def forget(self) -> None:
        """Forget every open file, because their names are about to change. Holders of leases can read on."""
        self.release()
        for suffix in names.SEGMENT_SUFFIXES:
            self._handles.forget(self._path(suffix))

    def release(self) -> None:
        """Give the writer's handle back, if there is one: no more will be appended."""
        self.tail.forget()
        self._forget_walks()
        self.is_active = False
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    def _path(self, suffix: str) -> str:
        return f"{self.directory}/{self._name(suffix)}"

    def _name(self, suffix: str) -> str:
        return names.segment_file_name(self.base_offset, suffix) + self._suffix


def _run(making: Making) -> int | None:
    """Make them without a stop."""
    try:
        while True:
            next(making)
    except StopIteration as done:
        next_offset: int | None = done.value
        return next_offset


def first_at(
    header: BatchHeader, data: Buffer, timestamp: int, offset_min: int, size_max: int | None = None
) -> FoundTimestamp | None:
    """The first record of a whole batch with such a timestamp and offset.

    With ``size_max`` DecompressedTooLargeError is raised where the batch opens to more bytes.
    """
    size_limit = DECOMPRESSED_BATCH_BYTES_MAX if size_max is None else size_max
    try:
        for record in iter_records(header, data, size_limit=size_limit):
            if record.timestamp >= timestamp and record.offset >= offset_min:
                return FoundTimestamp(record.timestamp, record.offset, header.leader_epoch)
    except CorruptRecordError as error:
        if size_max is not None and isinstance(error, DecompressedTooLargeError):
            raise
        # A producer's unreadable records under a right checksum: the batch as a whole is the answer.
        return FoundTimestamp(header.max_timestamp, max(header.base_offset, offset_min), header.leader_epoch)
    return None
