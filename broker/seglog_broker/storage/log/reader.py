"""Reads a log: batches from an offset on, and the offset for a timestamp."""

from typing import Final

from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.log_files import unreadable
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import FoundTimestamp, Segment
from seglog_broker.storage.segment.segment_log import LogSlice, TailRange
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog_protocol.header_scan import LocatedBatch

VERIFIED_BYTES_MAX: Final = 1024 * 1024
"""Bytes whose checksums are verified on the loop for one read, about a millisecond. A larger batch is verified
whole."""

PROVEN_MAX: Final = 64
"""Offsets remembered with the verified batch after a gap, so that it is not verified again."""


class LogReader:
    """Reads one log, anywhere between its start and its end."""

    def __init__(self, log: LoadedLog) -> None:
        self._offsets = log.offsets
        self._segments = log.segments
        self._state = log.state_file.state  # has the compacted part of the log, and why the log start moved
        self._damage = log.damage
        self._finder = log.finder
        self._proven: dict[int, int] = {}  # by offset read: the base offset of a batch that looked odd and was verified

    def read(
        self, offset: int, bytes_max: int, *, min_one: bool = True, verify: bool = False, before: int | None = None
    ) -> LogSlice | None:
        """Whole batches from the one that holds or follows ``offset``, at most ``bytes_max`` of them.

        With ``before``, where a batch begins, or the log, only batches below that offset.

        With ``min_one`` at least one batch, however large. None at the log end, or when not even one batch fits. With
        ``verify`` every batch is checked against its checksum and its neighbours; without, only a batch that looks odd.
        Raises what ``seek`` raises.
        """
        if before is not None:
            self.check_offset(offset)
            if offset >= before:
                return None
        if verify:
            bytes_max = min(bytes_max, VERIFIED_BYTES_MAX)
        elif self._offsets.start <= offset and before in (None, self._offsets.end):
            try:
                near = self._segments.active.find_near_end(offset, bytes_max, min_one=min_one)
                if near is not None:
                    return self.slice_near_end(near) if near.end > near.position else None
            except OSError as error:
                raise unreadable(self._segments.active, error) from error
        while (place := self.seek(offset)) is not None:
            number, found = place
            segment = self._segments[number]
            try:
                if before is not None:
                    if found.header.base_offset >= before:
                        return None
                    bytes_max = min(bytes_max, self._position_of(before, number) - found.position)
                end = segment.end_at_most(found, bytes_max)
                if end <= found.position:
                    if not min_one:
                        return None
                    end = found.end
                if end == segment.size and number + 1 < len(self._segments):
                    segment.check_end(self._segments.bases[number + 1])
                if verify or self._is_odd(number, found, offset):
                    flaw = segment.flaws.find(
                        offset, found, end if verify else found.end, self._segments.end_of(number, self._offsets.end)
                    )
                    if flaw is not None:
                        self._measure(number, segment, flaw)
                        continue
                    self._note_proven(found, offset)
                return LogSlice(segment.log.lease(), found.position, end - found.position, found.header.base_offset)
            except CorruptRecordError as error:
                self._measure(number, segment, error)  # after the batch found: a slice ends before it now
            except OSError as error:
                raise unreadable(segment, error) from error
        return None

    def _position_of(self, offset: int, number: int) -> int:
        """Where segment ``number`` has the first batch from ``offset`` on; its size if that is in a later one."""
        segment = self._segments[number]
        if offset >= self._segments.end_of(number, self._offsets.end):
            return segment.size
        found = segment.find(offset)
        return segment.size if found is None else found.position

    def end_of(self, found: LogSlice) -> int:
        """The offset behind the batches that were read; an offset above it where that cannot be read."""
        number = self._segments.floor(found.start_offset)
        segment, end = self._segments[number], found.position + found.size
        behind = segment.log.header_at(end) if end < segment.size else None
        next_base = self._segments.end_of(number, self._offsets.end)
        return next_base if behind is None else min(behind.base_offset, next_base)

    def _is_odd(self, number: int, found: LocatedBatch, offset: int) -> bool:
        """Whether the batch found for ``offset`` may be the wrong one because of a damaged header.

        The walk over headers does not verify checksums, which do not cover the base offset anyway. A batch that begins
        at ``offset`` and ends where the next one begins is right, or its reader finds a wrong checksum and asks again.
        A batch that overlaps the next one has a wrong offset, even if it begins at ``offset``.
        """
        base, following = found.header.base_offset, found.header.next_offset
        if self._proven.get(offset) == base:
            return False
        behind = self._segments[number].log.base_behind(found, self._segments.end_of(number, self._offsets.end))
        if behind is not None and behind < following:
            return True
        if base == offset:
            return False
        if base < offset:
            return behind is not None and self._is_unexplained(following, behind)
        return self._is_unexplained(offset, base)

    def _is_unexplained(self, start: int, end: int) -> bool:
        """Whether [start, end) is a gap that neither compaction nor known damage explains."""
        return end > max(start, self._state.compacted_before) and not self._damage.explains(start, end)

    def _note_proven(self, found: LocatedBatch, offset: int) -> None:
        """Remember that this verified batch is the right one for ``offset``."""
        while len(self._proven) >= PROVEN_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[offset] = found.header.base_offset

    def slice_near_end(self, near: TailRange) -> LogSlice:
        """A lease on ``near``, which the active segment found. OSError when its file cannot be opened."""
        return LogSlice(self._segments.active.log.lease(), near.position, near.end - near.position, near.start_offset)

    def seek(self, offset: int) -> tuple[int, LocatedBatch] | None:
        """(number of the segment, batch) of the batch that holds or follows ``offset``; None at the end.

        Raises OffsetOutOfRangeError with the valid range before any file is touched, and CorruptRecordError naming the
        range when ``offset`` lies in a damaged one.
        """
        self.check_offset(offset)
        if offset == self._offsets.end:
            return None
        for number in range(max(0, self._segments.floor(offset)), len(self._segments)):  # 0: the first is missing
            found = self._find_in(number, self._segments[number], offset)
            if found is not None:
                return number, found
        return None

    def _find_in(self, number: int, segment: Segment, offset: int) -> LocatedBatch | None:
        while True:
            damage = next((d for d in segment.damaged if d.start_offset <= offset < d.end_offset), None)
            if damage is not None:
                raise _damage_error(segment.log_path, damage)
            try:
                return self._find_batch(segment, offset)
            except CorruptRecordError as error:
                self._measure(number, segment, error)  # recorded: if it is elsewhere, the next scan skips it
            except OSError as error:
                raise unreadable(segment, error) from error

    def _find_batch(self, segment: Segment, offset: int) -> LocatedBatch | None:
        return segment.find(offset)

    def _measure(self, number: int, segment: Segment, error: CorruptRecordError) -> None:
        self._finder.measure(segment, self._segments.end_of(number, self._offsets.end), error)

    def check_offset(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError, with the valid range, unless ``offset`` can be read or waited for."""
        if not self._offsets.start <= offset <= self._offsets.end:
            start, end = self._offsets.start, self._offsets.end
            reason, words = "beyond_end", "beyond the end of the log"
            if offset < start and self._state.log_start_reason == "truncated":
                reason, words = "truncated", f"below the start of the log, the records before {start} were deleted"
            elif offset < start and self._state.log_start_reason == "missing":
                reason, words = "missing", f"below the start of the log, the records before {start} are missing"
            elif offset < start:
                reason, words = "expired", f"below the start of the log, the records before {start} have expired"
            left = f"records {start} to {end - 1} can be read, and the next one will be {end}"
            raise OffsetOutOfRangeError(
                f"offset {offset} is {words}: {left if start < end else f'the log is empty, its end is {end}'}",
                requested=offset,
                earliest=start,
                latest=end,
                reason=reason,
            )

    def find_timestamp(self, timestamp: int) -> FoundTimestamp | None:
        """The first record, in offset order, with a timestamp at or after ``timestamp`` (ms); None when there is none.

        Segments with a smaller largest timestamp are skipped by their last time index entry. Unlike Kafka, a segment
        without timestamps is skipped too, whatever its file's modification time.
        """
        for number in range(self._first_number, len(self._segments)):
            segment = self._segments[number]
            try:
                if self._find_max_in(number, segment) < timestamp:
                    continue
                found = self._find_timestamp_in(number, segment, timestamp)
            except OSError as error:
                raise unreadable(segment, error) from error
            if found is not None:
                return found
        return None

    @property
    def _first_number(self) -> int:
        """The number of the segment in which the log starts."""
        return max(0, self._segments.floor(self._offsets.start))

    def _find_max_in(self, number: int, segment: Segment) -> int:
        while True:
            try:
                return segment.indexes.find_max_timestamp().timestamp
            except CorruptRecordError as error:
                self._measure(number, segment, error)

    def _find_timestamp_in(self, number: int, segment: Segment, timestamp: int) -> FoundTimestamp | None:
        while True:
            try:
                return segment.find_timestamp(
                    timestamp, self._offsets.start, self._segments.end_of(number, self._offsets.end)
                )
            except CorruptRecordError as error:
                self._measure(number, segment, error)  # recorded: the next scan skips it


def _damage_error(path: str, damage: DamagedRange) -> CorruptRecordError:
    return CorruptRecordError(
        f"offsets {damage.start_offset} to {damage.end_offset - 1} are damaged on disk ({path}, bytes "
        f"{damage.position} to {damage.end_position - 1}); reading can continue at offset {damage.end_offset}",
        path=path,
        position=damage.position,
        start_offset=damage.start_offset,
        next_offset=damage.end_offset,
    )
