"""The rules that separate valid batches of a log from damage, missing offsets and torn tails of a crash.

Recovery acts on the result, a check reports it. This module changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from seglog_broker.storage.segment.damage import BatchVerifier, DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.header_scan import LocatedBatch, Readable
from seglog_protocol.record_batch import HEADER_SIZE, MAGIC, MAGIC_POSITION, parse_header, why_implausible

_ZERO_CHECK_BYTES: Final = 1024 * 1024


class LogFile(Protocol):
    """A ``.log`` of ``size`` bytes, which is open while a lease on it lasts."""

    @property
    def base_offset(self) -> int:
        """The base offset of the segment."""
        ...

    @property
    def size(self) -> int:
        """The size in bytes."""
        ...

    def lease(self) -> AbstractContextManager[Readable]:
        """The open file."""
        ...


class UnverifiedTail(NamedTuple):
    """Bytes at the end of a segment without a valid batch; ``lost_offset`` is the first offset they could have held."""

    log: LogFile
    position: int
    lost_offset: int


@dataclass(eq=False, repr=False, kw_only=True)
class LogVerifier:
    """One pass over a log: ``batches`` of each segment, in the order of their offsets, then ``finish``.

    ``losses``: damaged bytes, and offsets missing between segments or at the end, in the order of the log.
    ``gaps``: offsets between two batches of one segment that are in no batch.
    ``tails``: invalid bytes at the end of a segment, without a valid batch after them so far. ``finish`` moves them to
    ``losses``, or to ``torn`` if a crash can have left them.
    ``next_offset``: the offset after the last batch; after ``finish`` also after damage and missing offsets at the end.
    ``fresh_base``: base offset of the new segment in which the log must continue; None: it continues in its last one.
    """

    compacted_before: int = 0
    """Below it gaps are from compaction, and no sign of a wrong offset."""
    held_end: int = 0
    """Everything below it was on the disk once, so if it is no longer there, it is lost."""
    is_exact: bool = False
    """Whether, after a clean stop, the log ended at ``held_end``."""
    known: InitVar[Sequence[DamagedRange]] = ()
    """Damage keeps its recorded offsets if the same bytes are damaged: next to it compaction leaves gaps too."""

    def __post_init__(self, known: Sequence[DamagedRange]) -> None:
        self.next_offset: int | None = None
        self.fresh_base: int | None = None
        self.losses: list[DamagedRange] = []
        self.gaps: list[DamagedRange] = []
        self.tails: list[UnverifiedTail] = []
        self.torn: list[UnverifiedTail] = []
        self._known = {(d.segment, d.position, d.end_position): d for d in known if d.position < d.end_position}
        self._logs: list[LogFile] = []

    def batches(self, log: LogFile, following: int | None) -> Iterator[LocatedBatch]:
        """The valid batches of the next segment. ``following``: base offset of the one after it; None for the last.

        When a batch is yielded, the losses before it are in ``losses``. Raises OSError.
        """
        if self._logs and not self.tails:
            self._note_hole(self.next_offset or self._logs[0].base_offset, log.base_offset)
        self._logs.append(log)
        highest = log.base_offset + names.RELATIVE_OFFSET_MAX
        if following is not None:
            highest = min(highest, following - 1)
        elif self.is_exact:
            highest = min(highest, self.held_end - 1)
        with log.lease() as file:
            verifier = BatchVerifier(file, log.size)
            position = 0
            while position < verifier.size:
                lowest = max(log.base_offset, self.next_offset or 0)
                found = verifier.next_consistent_batch(position, lowest, highest)
                if found is None or (
                    following is None and self._is_misplaced(found, position, lowest, highest, verifier)
                ):
                    self.tails.append(UnverifiedTail(log, position, lowest))
                    return
                first = found.header.base_offset
                if found.position > position:
                    self._note_damage(log, lowest, first, position, found.position)
                elif first > lowest and not self.tails:
                    gap = DamagedRange(lowest, first, log.base_offset, position, position, reason="missing")
                    self.gaps.append(gap)
                for tail in self.tails:  # a valid batch follows, so they are damage
                    self._note_damage(tail.log, tail.lost_offset, first, tail.position, tail.log.size)
                self.tails.clear()
                self.next_offset = found.header.next_offset
                yield found
                position = found.end

    def finish(self) -> None:
        """Call it after the last segment: separates torn tails from damage, and sets where the log continues."""
        first, last = self._logs[0], self._logs[-1]
        following = {before.base_offset: after.base_offset for before, after in pairwise(self._logs)}
        tails, self.tails = self.tails, []
        for tail in tails:
            log, lost = tail.log, tail.lost_offset
            whole = _offsets_held(tail)
            if not (whole or self.is_exact or lost < self.held_end or _holds_a_batch(tail)):
                self.torn.append(tail)
                continue
            # The checksummed part of a misplaced batch has its number of offsets, though not which ones they are.
            end = following.get(log.base_offset) or max(lost + whole, self.held_end)
            self._note_damage(log, lost, end, tail.position, log.size)
            self.next_offset = max(self.next_offset or 0, end)
            if log is last and end > last.base_offset:
                self.fresh_base = end
        if self.next_offset is None or self.next_offset < last.base_offset:
            if tails:
                reached = first.base_offset if self.next_offset is None else self.next_offset
                self._note_hole(reached, last.base_offset)
            self.next_offset = last.base_offset
        if self.next_offset < self.held_end:
            self._note_hole(self.next_offset, self.held_end)
            self.next_offset = self.fresh_base = self.held_end

    def _is_misplaced(
        self, found: LocatedBatch, position: int, lowest: int, highest: int, verifier: BatchVerifier
    ) -> bool:
        """Whether the last batch of the log has an offset that cannot be the one it was appended at.

        Appends leave no gap, and the checksum does not cover the offset. A gap is possible after damage, and below the
        offset up to which the log was compacted. A batch that ends where the log is known to have ended is in place.
        """
        return (
            found.position == position
            and self.compacted_before <= lowest < found.header.base_offset
            and not (self.is_exact and found.header.next_offset == self.held_end)
            and verifier.at_or_after(found.end, lowest, highest) is None
        )

    def _note_damage(self, log: LogFile, start: int, end: int, position: int, end_position: int) -> None:
        damage = DamagedRange(start, end, log.base_offset, position, end_position)
        known = self._known.get((log.base_offset, position, end_position))
        if known is not None and start <= known.start_offset <= known.end_offset <= end:
            damage = known
        self.losses.append(damage)

    def _note_hole(self, start: int, end: int) -> None:
        """Add offsets that were given to records which are not in the log. They are not given again."""
        if start < end:
            self.losses.append(DamagedRange(start, end, end, 0, 0, reason="missing"))


def _offsets_held(tail: UnverifiedTail) -> int:
    """The number of offsets in the batches at its beginning whose checksums, of all but 21 bytes, are right.

    So it is for messages of Kafka's old formats, each of which has the offset of its last record.
    """
    held, position = 0, tail.position
    with tail.log.lease() as file:
        verifier = BatchVerifier(file, tail.log.size)
        while True:
            if (found := verifier.whole_at(position)) is not None:
                held, position = held + found.offsets, found.end
            elif (old := verifier.old_message_at(position)) is not None:
                last = min(old.offset - tail.lost_offset + 1, names.RELATIVE_OFFSET_MAX)
                held, position = max(held + 1, last), old.end
            else:
                return held


def is_unfinished_append(tail: UnverifiedTail) -> bool:
    """Whether a torn tail is what an append leaves behind: zeros, or the beginning of the batch that was due."""
    with tail.log.lease() as file:
        if is_zero(file, tail.position, tail.log.size):
            return True
        head = file.pread(HEADER_SIZE, tail.position)
    if len(head) < HEADER_SIZE:
        return tail.lost_offset.to_bytes(8).startswith(head[:8]) and head[MAGIC_POSITION:][:1] in (b"", bytes([MAGIC]))
    header = parse_header(head)
    is_due = why_implausible(header) is None and header.base_offset == tail.lost_offset
    return is_due and tail.position + header.size > tail.log.size


def is_zero(file: Readable, position: int, end: int) -> bool:
    """Whether all bytes in [position, end) are zeros, as in space that was allocated and not written."""
    while position < end:
        piece = file.pread(min(_ZERO_CHECK_BYTES, end - position), position)
        if not piece or piece.count(0) != len(piece):
            return False
        position += len(piece)
    return True


def _holds_a_batch(tail: UnverifiedTail) -> bool:
    """Whether it contains a valid batch with lower offsets: then the offset of a batch before the tail is wrong."""
    with tail.log.lease() as file:
        verifier = BatchVerifier(file, tail.log.size)
        return verifier.next_batch(tail.position, tail.log.base_offset, tail.lost_offset - 1) is not None
