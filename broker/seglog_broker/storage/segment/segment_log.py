"""The ``.log`` of a segment: its size, its writer, and walks over its batches by their headers.

Each read finds the file in the pool anew, so that a walk that is left alone holds nothing open. Only the active segment
is written to: from the first append on it holds a lease on a writable handle, which ``release_idle_writer`` gives back
once all its bytes are on the disk. Not earlier: only an open descriptor reports that writing back has failed.

A walk skips the bytes that are known to be damaged (``damaged``). A read results in a ``LogSlice``.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.storage.io.filesystem import Buffer, File, FileSystem, write_all
from seglog_broker.storage.io.handle_pool import HandlePool, Lease
from seglog_broker.storage.io.pauses import HEADERS_A_TURN, Pauses
from seglog_broker.storage.segment.checksum import NO_BYTES, SegmentChecksum, measure
from seglog_broker.storage.segment.damage import DamagedRange, HeaderWalk
from seglog_broker.storage.segment.seek_steps import SeekSteps
from seglog_protocol.errors import CorruptRecordError, SegmentAwaitedError
from seglog_protocol.header_scan import BatchWalk, LocatedBatch, Readable, ReadBytes, Windowed
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, verify_crc, why_implausible

BATCHES_MIN: Final = 256
"""The number of batches kept; beyond twice that the older ones are dropped. At most 8 KiB a partition."""


class TailRange(NamedTuple):
    """Whole batches: bytes [position, end) of the ``.log``, the first with base ``start_offset``."""

    position: int
    end: int
    start_offset: int


class TailCache:
    """The newest batches of one segment, in their order: a read at the end needs no look-up in files.

    Most fetches are for records that were just appended, and a hundred of them may be woken by one append. With the
    offset index each would read up to ``index.interval.bytes`` of headers; here a look-up is two bisections. It is only
    a cache, of batches that this process appended, as one run without a hole. A change of the segment other than an
    append clears it.
    """

    __slots__ = ("_bases", "_end", "_next_offset", "_positions", "latest", "latest_asked")

    def __init__(self) -> None:
        self._bases = array("q")  # base offsets of the batches
        self._positions = array("q")  # and their positions
        self._next_offset = self._end = -1  # after the last batch
        self.latest: TailRange | None = None
        """The last range found, if nothing has changed since. After a change it is another object."""
        self.latest_asked = (-1, -1, False)
        """With which arguments of ``find``: one append often wakes many equal readers."""

    def __len__(self) -> int:
        return len(self._bases)

    def note(self, base_offsets: Sequence[int], positions: Sequence[int], next_offset: int, end: int) -> None:
        """Add appended batches, one behind the other: where each begins, by offset and by position, and the end."""
        if positions[0] != self._end or base_offsets[0] != self._next_offset:
            self.forget()  # they do not follow the last one
        self.latest = None
        self._bases.extend(base_offsets)
        self._positions.extend(positions)
        if len(self._bases) > 2 * BATCHES_MIN:
            del self._bases[:-BATCHES_MIN], self._positions[:-BATCHES_MIN]
        self._next_offset, self._end = next_offset, end

    def forget(self) -> None:
        """Forget all batches: the segment was changed other than by an append."""
        if self._bases:
            self._bases, self._positions = array("q"), array("q")
        self._next_offset = self._end = -1
        self.latest = None

    def find(self, offset: int, bytes_max: int, min_one: bool = True) -> TailRange | None:
        """As many whole batches from the one with ``offset`` on as fit ``bytes_max``; None if that one is not cached.

        If the first one does not fit, the range is that batch with ``min_one``, else it is empty.
        """
        bases, positions = self._bases, self._positions
        if not bases or not bases[0] <= offset < self._next_offset:
            return None
        number = bisect_right(bases, offset) - 1
        position, end = positions[number], self._end
        if end - position > bytes_max:
            last = (
                bisect_right(positions, position + bytes_max, lo=number) - 1
            )  # position of the first one that does not fit
            if last > number or not min_one:
                end = positions[last]
            elif number + 1 < len(positions):
                end = positions[number + 1]
        return TailRange(position, end, bases[number])


class Start(NamedTuple):
    """Where a walk begins, and the batch there if its header was just read."""

    position: int
    batch: LocatedBatch | None = None


class LogSlice:
    """Whole batches: [position, position + size) of a leased ``.log`` file, the first with base ``start_offset``."""

    __slots__ = ("_lease", "file", "position", "size", "start_offset")

    def __init__(self, lease: Lease[File], position: int, size: int, start_offset: int) -> None:
        self._lease = lease
        self.file = lease.resource
        self.position = position
        self.size = size
        self.start_offset = start_offset

    def is_of(self, near: TailRange) -> bool:
        """Whether the same batches are the given range of the log's tail cache."""
        return self.start_offset == near.start_offset and self.size == near.end - near.position

    @property
    def is_removed(self) -> bool:
        """Whether the file has left the log since the read."""
        return self._lease.is_forgotten

    def __len__(self) -> int:
        return self.size

    def release(self) -> None:
        """Release the lease. A second release does nothing."""
        self._lease.release()


class SegmentLog:
    """One ``.log``. ``size`` is in bytes; of a closed segment it is asked of the file system when first needed.

    ``pauses`` has the walks over this file that stopped to let others have their turn.
    """

    def __init__(
        self,
        fs: FileSystem,
        handles: HandlePool,
        path: str,
        base_offset: int,
        damaged: list[DamagedRange],
        *,
        is_awaited: bool = False,
    ) -> None:
        """``damaged`` is a list that the caller keeps up to date: where bytes are damaged, by position.

        While it ``is_awaited`` the file is a hole of its size, and every read raises SegmentAwaitedError.
        """
        self.path = path
        self.base_offset = base_offset
        self.damaged = damaged
        self.is_awaited = is_awaited  # its bytes are still to come, see ``awaited``
        self.is_active = False  # it can be appended to
        self.is_dirty = False  # it has bytes or a size that no fdatasync has covered
        self.pauses = Pauses(handles.only_warm)
        self.steps = SeekSteps()  # a trace puts others here, for one seek
        self._fs = fs
        self._handles = handles
        self._writer: Lease[File] | None = None
        self._size: int | None = None

    # --- Facts --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes without those of an unfinished append."""
        if self._size is None:
            self._size = self._fs.stat(self.path).size
        return self._size

    @property
    def modified_ms(self) -> int:
        """When it was last written to, as its file system says (wall time, ms)."""
        return self._fs.stat(self.path).mtime_ms

    @property
    def holds_writer(self) -> bool:
        """Whether the file is kept open for appends."""
        return self._writer is not None

    # --- Writing ------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the empty file, to be appended to."""
        self._writer = self._handles.lease(self.path, create=True)
        self._writer.resource.truncate(0)
        self._size = 0
        self.is_active = self.is_dirty = True

    def activate(self) -> None:
        """Let it be appended to, from its end on."""
        self.is_active = True

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Write at the end; return the position of the first byte.

        Raises OSError with bytes behind the end, perhaps: ``cut_back`` must remove them before anything else is
        written.
        """
        self.is_dirty = True
        if self._writer is None:
            assert self.is_active, "append to a segment that is not active"
            self._writer = self._handles.lease(self.path, writable=True)
        position = self.size
        self._size = position + write_all(self._writer.resource, buffers, position)
        return position

    def cut_back(self) -> None:
        """Remove what a failed append left behind the end. OSError: the file cannot be trusted with another append."""
        if self._writer is not None:  # else the file could not even be opened
            self._writer.resource.truncate(self.size)

    def cut(self, position: int) -> int:
        """Shorten it to ``position`` (bytes), a batch boundary; return how many bytes went."""
        removed = self.size - position
        with self._handles.lease(self.path, writable=True) as file:
            file.truncate(position)
        self._size, self.is_dirty = position, True
        self.damaged[:] = [d for d in self.damaged if d.end_position <= position]
        return removed

    def release_idle_writer(self) -> None:
        """Give the writer's handle back until the next append, unless bytes still have to be synced."""
        if self._writer is not None and not (self.is_dirty and self.size):
            self._writer.release()
            self._writer = None

    def release(self) -> None:
        """Give the writer's handle back, if there is one: no more will be appended."""
        self.is_active = False
        if self._writer is not None:
            self._writer.release()
            self._writer = None

    # --- Reading ------------------------------------------------------------------------------------------------------

    def refuse_awaited(self) -> None:
        """Raise SegmentAwaitedError while its bytes are still to come."""
        if self.is_awaited:
            raise SegmentAwaitedError(
                f"the segment {self.path} is still fetched from the backup that this broker was started from: try "
                "again",
                segment=self.base_offset,
                bytes=self.size,
            )

    def lease(self) -> Lease[File]:
        """The file, kept open until the lease is released."""
        self.refuse_awaited()
        return self._handles.lease(self.path)

    def pread(self, size: int, position: int) -> ReadBytes:
        """Up to ``size`` bytes from ``position``, fewer only at the end, for a seek: as ``HandlePool.read``."""
        self.refuse_awaited()
        size = min(size, self.size - position)
        return self.steps.read(self._handles, self.path, size, position, may_wait=False) if size > 0 else b""

    def pread_waiting(self, size: int, position: int) -> ReadBytes:
        """As ``pread``, where a wait for the disk does no harm."""
        self.refuse_awaited()
        return self.steps.read(self._handles, self.path, size, position, may_wait=True)

    def header_at(self, position: int, window: Windowed | None = None) -> BatchHeader | None:
        """The header at ``position``, read through ``window`` if there is one; None where the bytes there are none."""
        data = self.pread(HEADER_SIZE, position) if window is None else window.pread(HEADER_SIZE, position)
        if len(data) < HEADER_SIZE or why_implausible(header := parse_header(data)) is not None:
            return None
        return header

    def has_whole(self, found: LocatedBatch) -> bool:
        """Whether a batch ends within the file, as its header has it, and no damage is known."""
        return not self.damaged and found.end <= self.size

    def base_behind(self, found: LocatedBatch, next_base: int) -> int | None:
        """The base offset of the batch behind ``found``, as its header has it; None where that tells nothing.

        ``next_base`` is where the next segment begins, or the log ends, which counts behind the last one.
        """
        if found.end >= self.size:
            return next_base
        if any(d.position <= found.end < d.end_position for d in self.damaged):
            return None
        header = self.header_at(found.end)
        return None if header is None else header.base_offset

    def read_batch(self, found: LocatedBatch) -> ReadBytes:
        """The bytes of a batch that was found here."""
        self.refuse_awaited()
        return self._handles.read(self.path, found.header.size, found.position, may_wait=True)

    def refuse_corrupt(self, found: LocatedBatch, data: Buffer) -> None:
        """Raise CorruptRecordError when ``data``, which begins with a batch, does not match the batch's checksum."""
        if not verify_crc(data, 0, found.header):
            raise self.corrupt(found.position, "does not match its checksum")

    def corrupt(self, position: int, what: str, start_offset: int = -1) -> CorruptRecordError:
        """The error for the batch at ``position``; ``what`` ends its sentence."""
        message = f"the batch at position {position} of {self.path} {what}"
        return CorruptRecordError(message, path=self.path, position=position, start_offset=start_offset)

    def measure(self, so_far: SegmentChecksum = NO_BYTES) -> SegmentChecksum:
        """The checksum of the whole file; bytes that ``so_far`` covers are not read."""
        with self.lease() as file:
            return measure(file, self.size, so_far)

    # --- Walking ------------------------------------------------------------------------------------------------------

    def batches(
        self, position: int = 0, end: int | None = None, *, strict: bool = False, expected: int = -1
    ) -> "LogWalk":
        """Every batch in [position, end), to the end of the file if left out, by its header; see ``LogWalk``.

        ``expected`` is the offset due at ``position``, -1 if not known.
        """
        return LogWalk(self, Start(position), self.size if end is None else end, strict=strict, expected=expected)

    def walk(
        self, question: tuple[object, ...], start: Start, *, strict: bool = True, window: Windowed | None = None
    ) -> "LogWalk":
        """Every batch from ``start`` on, for the first that answers a question; see ``Pauses``.

        A strict walk reads through ``window``, if there is one.
        """
        position, expected = self.pauses.resume(question, (start.position, -1))
        self.steps.begin_scan(start.position)
        if position != start.position:
            start = Start(position)
        return LogWalk(self, start, self.size, strict=strict, expected=expected, question=question, window=window)


class LogWalk(BatchWalk):
    """Batches of a log by their headers, one a call of ``next``; checksums are not verified. No file is held open.

    A ``strict`` walk is for seeks: it raises CorruptRecordError where the batches end too early, and ColdReadError
    where it would have to wait for the disk on the loop. One with a question pauses after HEADERS_A_TURN batches.
    """

    __slots__ = ("_end", "_first", "_log", "_question", "_strict", "_walked", "_way")

    def __init__(
        self,
        log: SegmentLog,
        start: Start,
        end: int,
        *,
        strict: bool,
        expected: int = -1,
        question: tuple[object, ...] | None = None,
        window: Windowed | None = None,
    ) -> None:
        """``expected`` is the offset due at ``start``, -1 if not known."""
        self._log = log
        self._end = end
        self._strict = strict
        self._question = question
        self._walked = 0
        self._first = start.batch if start.batch is not None and log.has_whole(start.batch) else None
        position = start.position
        if self._first is not None:
            position, expected = self._first.end, self._first.header.next_offset
        if strict and window is not None:
            self._way = HeaderWalk(window, position, end, log.damaged, expected, HEADER_SIZE)
        else:
            file: Readable = log if strict else WaitingReads(log)
            self._way = HeaderWalk(file, position, end, log.damaged, expected)

    def next(self) -> LocatedBatch | None:
        """The next batch; None at the end."""
        if self._walked == HEADERS_A_TURN and self._question is not None:
            self._walked = 0
            self._log.pauses.pause(self._question, (self._way.position, self._way.expected))
        self._walked += 1
        found = self._first
        if found is not None:
            self._first = None
        else:
            found = self._way.next()
        if found is None:
            if self._strict and self._way.position < self._end:
                raise CorruptRecordError(
                    f"{self._log.path} holds no record batch at position {self._way.position}",
                    path=self._log.path,
                    position=self._way.position,
                    start_offset=self._way.expected,
                )
            return None
        if self._question is not None:
            self._log.steps.pass_batch(found.position)
        return found


class WaitingReads:
    """A log as it is read where a wait for the disk does no harm."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    def pread(self, size: int, position: int) -> ReadBytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""
        return self._log.pread_waiting(size, position)
