"""Damaged bytes of a log: ranges that are known, walks that step over them, and how a log continues after them.

The rules are for recovery, checks and readers that met damage. What a valid batch is, and how the next one is found, is
``seglog_protocol.batch_scan``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.storage.io.pauses import HEADERS_A_TURN
from seglog_protocol.batch_scan import SEARCHED_A_TURN, BatchScan
from seglog_protocol.checksum import crc32c
from seglog_protocol.header_scan import SEEK_WINDOW, BatchWalk, HeaderScan, LocatedBatch, Readable
from seglog_protocol.record_batch import ATTRIBUTES_POSITION, HEADER_SIZE, parse_header

WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of the largest batch that is searched for if its header may be wrong."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets [start_offset, end_offset) that cannot be read, and the bytes of one segment in their place.

    ``reason`` is "damaged" (bytes [position, end_position) are no valid batches) or "missing" (there are no bytes: both
    positions are that of the hole).
    """

    start_offset: int
    end_offset: int
    segment: int
    position: int
    end_position: int
    reason: str = "damaged"

    def covers_offsets_of(self, other: "DamagedRange") -> bool:
        """Whether all offsets of ``other`` are in this range."""
        return self.start_offset <= other.start_offset and other.end_offset <= self.end_offset

    def covers_bytes_of(self, other: "DamagedRange") -> bool:
        """Whether all bytes of ``other`` are in this range."""
        is_inside = self.position <= other.position and other.end_position <= self.end_position
        return self.segment == other.segment and is_inside


def next_damage(damaged: Iterable[DamagedRange], position: int) -> DamagedRange | None:
    """The damaged bytes that ``position`` lies in, else the next ones behind it. ``damaged`` is sorted by position."""
    return next((hole for hole in damaged if position < hole.end_position > hole.position), None)


class HeaderWalk(BatchWalk):
    """The batches in [position, end) by their headers; checksums are not looked at.

    ``position`` is where the walk is, and ``expected`` the offset that is due there, -1 when it is not known. The walk
    ends short of ``end`` where bytes that are not known to be damaged form no batch.
    """

    __slots__ = ("_damaged", "_end", "_file", "_hole", "_scan", "_stop", "_window_bytes", "expected", "position")

    def __init__(
        self,
        file: Readable,
        position: int,
        end: int,
        damaged: Sequence[DamagedRange],
        expected: int = -1,
        window_bytes: int = SEEK_WINDOW,
    ) -> None:
        """``damaged``, sorted by position, is stepped over; ``window_bytes`` is that of ``HeaderScan``."""
        self.position = position
        self.expected = expected
        self._file = file
        self._end = end
        self._damaged = damaged
        self._window_bytes = window_bytes
        self._go_on()

    def next(self) -> LocatedBatch | None:
        """The next batch; None at the end."""
        while True:
            found = self._scan.next()
            if found is not None:
                self.position, self.expected = self._scan.position, found.header.next_offset
                return found
            hole = self._hole
            if self.position < self._stop or self.position >= self._end or hole is None or hole.position >= self._end:
                return None
            self.position, self.expected = hole.end_position, max(self.expected, hole.end_offset)
            self._go_on()

    def _go_on(self) -> None:
        """Scan up to the next damaged bytes."""
        self._hole = next_damage(self._damaged, self.position) if self._damaged else None
        self._stop = self._end if self._hole is None else max(self.position, min(self._hole.position, self._end))
        self._scan = HeaderScan(self._file, self.position, self._stop, self._window_bytes)


class WholeBatch(NamedTuple):
    """A batch that matches its checksum, up to position ``end``; ``offsets`` is its number of offsets."""

    end: int
    offsets: int


class BatchVerifier(BatchScan):
    """A scan that judges offsets, too, which no checksum covers: by those of the batches before and after."""

    def whole_at(self, position: int) -> WholeBatch | None:
        """The batch at ``position`` by its checksum alone.

        Offset, length, epoch and magic, which the checksum does not cover, may be wrong. If the length is wrong, only a
        batch at the end of the file is found.
        """
        head = self._bytes(position, HEADER_SIZE)
        if head is None:
            return None
        header = parse_header(head)
        for size in (header.size, self.size - position):
            if HEADER_SIZE <= size <= WHOLE_BYTES_MAX and header.last_offset_delta >= 0:
                body = self._bytes(position, size)
                if body is not None and crc32c(body[ATTRIBUTES_POSITION:]) == header.crc:
                    return WholeBatch(position + size, header.last_offset_delta + 1)
        return None

    def next_consistent_batch(self, position: int, offset_min: int, offset_max: int) -> LocatedBatch | None:
        """The batch that continues a log at or after ``position``, where ``offset_min`` is the next offset expected.

        Checksums do not cover the offset. If the batch after the one found has lower offsets, the one found is wrong:
        accepting it would make everything after it look like a tail.
        """
        found = self.at_or_after(position, offset_min, offset_max)
        while found is not None and found.header.base_offset > offset_min:
            after = self.at_or_after(found.end, offset_min, offset_max)
            if after is None or after.header.base_offset > found.header.last_offset:
                break
            found = after
        return found

    def next_batch_after_flaw(
        self, position: int, offset_min: int, offset_max: int, dense_from: int
    ) -> LocatedBatch | None:
        """The batch that continues a log after the flawed one at ``position``.

        Checksums do not cover the offset. If the batch found and the next one overlap, or leave a hole above
        ``dense_from`` (compaction leaves holes below it), one of the two has a wrong offset: the first one, if another
        batch follows the second without a hole.
        """
        found = self.next_batch(position, offset_min, offset_max)
        if found is not None and found.position == position:  # its checksum is right: the flaw is its offset
            found = self.at_or_after(found.end, offset_min, offset_max)
        while found is not None:
            after = self.at_or_after(found.end, offset_min, offset_max)
            if after is None:
                is_short = found.end == self.size and max(found.header.next_offset, dense_from) <= offset_max
                return None if is_short and found.header.base_offset == offset_min else found
            base, due = after.header.base_offset, found.header.next_offset
            is_hole = base > max(due, dense_from) and after.position == found.end
            if not is_hole and base >= due:
                break
            third = self.at_or_after(after.end, offset_min, offset_max)
            goes_on = after.header.next_offset == (offset_max + 1 if third is None else third.header.base_offset)
            if not goes_on and found.header.base_offset > offset_min:  # else no batch would be wrong
                break
            found = after
        return found

    def first_flaw(
        self, position: int, end: int, expected: int, offsets: tuple[int, int], damaged: Sequence[DamagedRange]
    ) -> tuple[int, int] | None:
        """(position, first offset lost or -1) of the first wrong batch in [position, end); None when all are right.

        Verifies checksums, and that offsets, which no checksum covers, rise within ``offsets`` and up to the batch
        after ``end``. ``expected`` is the next offset at ``position``, -1 if unknown. ``damaged`` is skipped.
        """
        before: tuple[int, int] | None = None  # the previous batch, if there was a hole before it
        question = "first flaw", position, end, expected, offsets
        position, expected, before = self._resume(question, (position, expected, before))
        paused, walked = position, 0
        while position < self.size:
            if walked == HEADERS_A_TURN or position - paused >= SEARCHED_A_TURN:
                self._pause(question, (position, expected, before))
                paused, walked = position, 0
            walked += 1
            hole = next((d for d in damaged if d.position <= position < d.end_position), None)
            if hole is not None:
                position, expected, before = hole.end_position, max(expected, hole.end_offset), None
                continue
            found = self.batch_at(position, *offsets)
            if found is None:
                return (position, expected) if position < end else None
            base = found.header.base_offset
            if base < expected:  # one of the two has a wrong offset
                return before or ((position, expected) if position < end else None)
            if position >= end:
                return None
            before = None if base == expected else (position, expected)
            position, expected = found.end, found.header.next_offset
        return None
