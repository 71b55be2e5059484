"""The search for damage in a segment, after a reader met bytes that are no batch, or a batch that may be wrong.

Headers lead readers through a log, and are not verified on the way. Here checksums are, and offsets, which no checksum
covers, are compared with those of the batches before and after.
"""

from typing import Final

from seglog_broker.storage.io.pauses import HEADERS_A_TURN
from seglog_broker.storage.segment.damage import BatchVerifier, DamagedRange
from seglog_broker.storage.segment.offset_index import OffsetIndex, OffsetPosition
from seglog_broker.storage.segment.segment_log import SegmentLog
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch, Readable, ReadBytes
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, why_implausible

PROOF_ENTRIES_MAX: Final = 8
"""Index entries tried, to find a valid batch from which to verify checksums."""

WALKED_BACK_BYTES: Final = 4 * 1024 * 1024
"""How far before a flaw the verification begins, at most, where the scan that met it began there."""


class FlawFinder:
    """Finds what is wrong in one segment; nothing is changed."""

    def __init__(self, log: SegmentLog, offset_index: OffsetIndex) -> None:
        self._log = log
        self._offset_index = offset_index

    def find(self, offset: int, found: LocatedBatch, end: int, next_base: int) -> CorruptRecordError | None:
        """The error for the batches from ``found`` (for ``offset``) up to ``end``, and right before; None if valid.

        Their checksums are verified, and their offsets compared with each other; the walk begins at a batch that an
        index entry points to. ``next_base`` is where the next segment begins, or the log ends.
        """
        verifier = BatchVerifier(self._log, self._log.size, self._log.pauses)
        entry = self._offset_index.lookup(offset)
        if entry.position:
            entry = self._offset_index.lookup(entry.offset - 1)
        flaw = self._flaw_from(verifier, entry, found.position, end, next_base)
        if flaw is None:
            return None
        position, start_offset = flaw
        return self._log.corrupt(position, "does not match its checksum or its neighbours", start_offset)

    def find_before(self, position: int, offset: int, next_base: int) -> tuple[int, int] | None:
        """(position, first offset lost or -1) of a flaw before ``position``, to which a batch's length has led.

        ``offset`` is the one expected there by the headers. None: no flaw before it, so the bytes there are damaged.
        """
        base_offset = self._log.base_offset
        entry = self._offset_index.lookup_position(position - 1) or OffsetPosition(base_offset, 0)
        floor = self._offset_index.lookup(max(offset, base_offset))  # a scan for it began here
        if floor.position < entry.position and position - floor.position <= WALKED_BACK_BYTES:
            entry = floor
        verifier = BatchVerifier(self._log, self._log.size, self._log.pauses)
        return self._flaw_from(verifier, entry, position, position, next_base)

    def _flaw_from(
        self, verifier: BatchVerifier, entry: OffsetPosition, at_most: int, end: int, next_base: int
    ) -> tuple[int, int] | None:
        """As ``BatchVerifier.first_flaw`` up to ``end``, from the last sound batch that ``entry`` or one before names.

        Where there is none it begins at ``at_most``.
        """
        base_offset = self._log.base_offset
        start, expected = at_most, -1
        for _ in range(PROOF_ENTRIES_MAX):
            if entry.position == 0:
                start, expected = 0, base_offset
                break
            sound = verifier.batch_at(entry.position, base_offset, entry.offset)
            if sound is not None and sound.position <= at_most:
                start, expected = sound.position, sound.header.base_offset
                break
            entry = self._offset_index.lookup(entry.offset - 1)
        return verifier.first_flaw(start, end, expected, (base_offset, next_base - 1), self._log.damaged)

    def refuse_misplaced(
        self, found: LocatedBatch, expected: int, next_base: int, file: Readable, behind: ReadBytes | None = None
    ) -> None:
        """Raise CorruptRecordError when an offset, which no checksum covers, does not fit between its neighbours.

        ``file`` is the open log; ``behind`` the bytes that follow the batch in it, a header's at most, None if they
        have not been read.
        """
        header, log = found.header, self._log
        if header.base_offset == expected or found.end >= log.size:
            behind = b""
        elif behind is None:
            behind = file.pread(HEADER_SIZE, found.end)
        following = parse_header(behind) if len(behind) == HEADER_SIZE else None
        if following is not None and why_implausible(following) is None:
            next_base = min(next_base, following.base_offset)
        if not expected <= header.base_offset <= header.last_offset < max(next_base, expected + 1):
            raise log.corrupt(
                found.position,
                f"has offset {header.base_offset}, between {expected} and {next_base}",
                expected if found.position == 0 else -1,
            )

    def measure(self, position: int, start_offset: int, next_base: int, compacted_before: int = 0) -> DamagedRange:
        """The damaged range that begins at ``position`` and ends at the next valid batch of this segment.

        ``start_offset`` is the first offset lost, -1 when it is not known; ``next_base`` where the next segment begins.
        Below ``compacted_before`` compaction has left holes.
        """
        log = self._log
        if not log.base_offset <= start_offset <= next_base:  # not known, or by a header that is wrong itself
            start_offset = self._due_at(position, next_base)
        verifier = BatchVerifier(log, log.size, log.pauses)
        found = verifier.next_batch_after_flaw(position, start_offset, next_base - 1, compacted_before)
        end_offset, end_position = (found.header.base_offset, found.position) if found else (next_base, log.size)
        return DamagedRange(start_offset, end_offset, log.base_offset, position, end_position)

    def _due_at(self, position: int, next_base: int) -> int:
        """The offset that is due at ``position``, as far as the headers before it tell."""
        question = "due", position, next_base
        start, due = self._log.pauses.resume(question, (0, self._log.base_offset))
        for walked, found in enumerate(self._log.batches(start, position), start=1):
            header = found.header
            if due <= header.base_offset <= header.last_offset < next_base:
                due = header.next_offset
            if walked % HEADERS_A_TURN == 0:
                self._log.pauses.pause(question, (found.end, due))
        return int(due)
