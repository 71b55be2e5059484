"""Whole batches of a ``.log`` file with their checksums, for recovery, checks and the search after damage.

``seglog_protocol.header_scan`` reads headers only. Neither module skips bytes silently: a walk stops where no valid
batch begins.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from seglog_broker.storage.io.pauses import HEADERS_A_TURN, SEARCHED_A_TURN, Pauses
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_protocol.checksum import crc32c
from seglog_protocol.header_scan import LocatedBatch, Readable
from seglog_protocol.record_batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC_POSITION,
    parse_header,
    verify_crc,
    why_implausible,
)
from seglog_protocol.segment_files import OFFSET_MAX

RECOVERY_WINDOW: Final = 1024 * 1024
"""Bytes read at a time while verifying whole batches."""


WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of the largest batch that is searched for if its header may be wrong."""


class WholeBatch(NamedTuple):
    """A batch that matches its checksum, up to position ``end``; ``offsets`` is its number of offsets."""

    end: int
    offsets: int


class BatchVerifier:
    """Reads whole batches of one file and validates them: plausible, within the file, checksum right."""

    def __init__(self, file: Readable, size: int, pauses: Pauses | None = None) -> None:
        """With ``pauses`` long searches may stop with TurnWantedError."""
        self._file = file
        self.size = size
        self._pauses = pauses
        self._window = b""
        self._window_start = 0

    def batch_at(self, position: int, offset_min: int = 0, offset_max: int = OFFSET_MAX) -> LocatedBatch | None:
        """The valid batch that begins at ``position`` with all its offsets in that range, or None.

        The offset is checked first: if the bytes are not a header, their length would often require a checksum over the
        rest of the file.
        """
        head = self._bytes(position, HEADER_SIZE)
        if head is None:
            return None
        header = parse_header(head)
        if why_implausible(header) is not None:
            return None
        if header.base_offset < offset_min or header.last_offset > offset_max:
            return None
        body = self._bytes(position, header.size)
        if body is None or not verify_crc(body, 0, header):
            return None
        return LocatedBatch(position, header)

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

    def next_batch(self, position: int, offset_min: int, offset_max: int) -> LocatedBatch | None:
        """The first valid batch at or after ``position`` with all its offsets in [offset_min, offset_max].

        If the length in the header at ``position`` leads to a valid batch, that one is returned, so that a batch inside
        a value of the damaged batch is not mistaken for one of the log.
        """
        head = self._bytes(position, HEADER_SIZE)
        if head is not None:
            header = parse_header(head)
            if why_implausible(header) is None:
                found = self.batch_at(position + header.size, offset_min, offset_max)
                if found is not None:
                    return found
        question = "next batch", position, offset_min, offset_max
        position = self._resume(question, position)
        while position + HEADER_SIZE <= self.size:
            stop = position + SEARCHED_A_TURN
            for _ in range(HEADERS_A_TURN):
                candidate = self._next_magic(position, stop)
                if candidate is None:
                    position = stop
                    break
                found = self.batch_at(candidate, offset_min, offset_max)
                if found is not None:
                    return found
                position = candidate + 1
            self._pause(question, position)
        return None

    def at_or_after(self, position: int, offset_min: int, offset_max: int) -> LocatedBatch | None:
        """The valid batch at ``position``, else the first one after it, as ``next_batch``."""
        return self.batch_at(position, offset_min, offset_max) or self.next_batch(position, offset_min, offset_max)

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
            if not self._disagree(found, after, dense_from):
                break
            third = self.at_or_after(after.end, offset_min, offset_max)
            goes_on = after.header.next_offset == (offset_max + 1 if third is None else third.header.base_offset)
            if not goes_on and found.header.base_offset > offset_min:  # else no batch would be wrong
                break
            found = after
        return found

    @staticmethod
    def _disagree(found: LocatedBatch, after: LocatedBatch, dense_from: int) -> bool:
        base = after.header.base_offset
        is_hole = base > max(found.header.next_offset, dense_from) and after.position == found.end
        return is_hole or base < found.header.next_offset

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

    def _resume(self, question: tuple[Any, ...], start: Any) -> Any:
        return start if self._pauses is None else self._pauses.resume(question, start)

    def _pause(self, question: tuple[Any, ...], state: Any) -> None:
        if self._pauses is not None:
            self._pauses.pause(question, state)

    def _next_magic(self, position: int, stop: int) -> int | None:
        """Where a batch could begin in [position, stop): sixteen bytes before a byte of value 2."""
        while position < stop and position + HEADER_SIZE <= self.size:
            size = min(RECOVERY_WINDOW // 2, self.size - position)
            if self._bytes(position, size) is None:
                return None
            start = position - self._window_start
            found = self._window.find(b"\x02", start + MAGIC_POSITION, start + size)
            if found >= 0:
                candidate = self._window_start + found - MAGIC_POSITION
                return candidate if candidate < stop else None
            position += size - MAGIC_POSITION
        return None

    def _bytes(self, position: int, size: int) -> memoryview | None:
        """``size`` bytes at ``position``, or None if the file has fewer."""
        if position + size > self.size:
            return None
        start = position - self._window_start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, RECOVERY_WINDOW), self.size - position)
            self._window, self._window_start, start = self._file.pread(wanted, position), position, 0
            if len(self._window) < size:
                return None
        return memoryview(self._window)[start : start + size]
