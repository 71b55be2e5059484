"""Reads of logs for share fetches, each of which wants few records and all of which want the next ones.

A piece of the log is read at once, and kept for the fetches that follow.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from seglog_broker.coordinators.share.in_flight import Acquired
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.checksum import Buffer
from seglog_protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, outline, parse_header
from seglog_protocol.transaction_files import AbortedTransaction

PIECE_BYTES: Final = 64 * 1024
"""Bytes that are read at a time; a larger batch at once, which is not kept."""

PIECES_MAX: Final = 256
"""Pieces that are kept, of the share partitions that were read last."""


class Piece:
    """Whole batches of a log. Their headers are looked at when they are wanted."""

    def __init__(self, log: PartitionLog, data: Buffer, aborted: Sequence[AbortedTransaction] | None) -> None:
        """``aborted`` has the transactions whose records are not to be seen; None: all are, of open ones, too."""
        self.view = memoryview(data)
        self.batches: list[tuple[int, int]] = []
        """First and last offsets of batches, as far as they were looked at."""
        self.ends: list[int] = [0]
        """Where these begin in ``view``, and where the last one ends."""
        self.hidden: list[tuple[int, int]] = []
        """First and last offsets of batches of aborted transactions."""
        self._lasts: list[int] = []
        self._aborted = aborted
        self._log = log
        self._removals = log.segments.removals

    def serves(self, log: PartitionLog, offset: int, *, committed: bool) -> bool:
        """True if it has ``offset``, and ``log`` these bytes: no segment was removed, or replaced by compaction."""
        is_same = self._log is log and log.segments.removals == self._removals
        is_same = is_same and committed == (self._aborted is not None)
        return is_same and self.batches[0][0] <= offset and self.index(offset) >= 0

    def index(self, offset: int) -> int:
        """The index of the batch that has ``offset``, or is the first behind it; -1 if there is none."""
        while not self._lasts or self._lasts[-1] < offset:
            if not self._look():
                return -1
        return bisect_left(self._lasts, offset)

    def has(self, index: int) -> bool:
        """True if there is such a batch."""
        return index < len(self.batches) or self._look()

    def _look(self) -> bool:
        """Look at the next batch; False at the end."""
        begin = self.ends[-1]
        found = outline(self.view, begin)
        if found is None:
            return False
        size, base, last, attributes = found
        if self._aborted and attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT:
            producer_id = parse_header(self.view, begin).producer_id
            if self._is_aborted(producer_id, base):
                self.hidden.append((base, last))
        self.batches.append((base, last))
        self._lasts.append(last)
        self.ends.append(begin + size)
        return True

    def _is_aborted(self, producer_id: int, base: int) -> bool:
        return any(
            each.producer_id == producer_id and each.first_offset <= base <= each.last_offset
            for each in self._aborted or ()
        )


class Read:
    """Batches that were read for one fetch, from an offset on."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.batches: list[tuple[int, int]] = []
        """First and last offsets."""
        self.hidden: list[tuple[int, int]] = []
        """Of batches of aborted transactions."""
        self.size = 0
        self._parts: list[Buffer] = []
        self._begins: list[int] = []  # of batches, in the parts one after the other

    def add(self, piece: Piece, low: int, high: int) -> None:
        """Add batches of a piece, from one index to before another."""
        begin, end = piece.ends[low], piece.ends[high]
        self.batches += piece.batches[low:high]
        self._begins += [self.size + place - begin for place in piece.ends[low:high]]
        self._parts.append(piece.view[begin:end])
        self.size += end - begin
        self.hidden += [each for each in piece.hidden if each[1] >= self.batches[0][0]]

    def of(self, acquired: Sequence[Acquired]) -> Buffer:
        """The batches that have acquired records, and those between them."""
        first, last = acquired[0].first, acquired[-1].last
        begin, end = 0, self.size
        for number in range(len(self.batches)):
            base = self.batches[number][0]
            if base <= first:
                begin = self._begins[number]
            elif base > last:
                end = self._begins[number]
                break
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        return data if end - begin == self.size else memoryview(data)[begin:end]


class ShareReads:
    """The pieces that are kept, by who reads them."""

    def __init__(self, handles: HandlePool) -> None:
        self._handles = handles
        self._pieces: dict[str, Piece] = {}

    def read(
        self,
        reader: str,
        log: PartitionLog,
        offset: int,
        enough: int,
        bytes_max: int,
        *,
        min_one: bool,
        committed: bool,
    ) -> Read | None:
        """Whole batches from ``offset`` on, until offset ``enough`` is reached; None at the end of the log.

        They have at most ``bytes_max``, but with ``min_one`` at least one batch. With ``committed`` they end at the
        last stable offset, and batches of aborted transactions are told. Raises what ``PartitionLog.read`` raises.
        """
        read = Read(offset)
        following = offset
        while following < enough:
            piece = self._piece(reader, log, following, committed=committed)
            if piece is None:
                break
            low = high = piece.index(following)
            while piece.has(high) and following < enough:
                size = read.size + piece.ends[high + 1] - piece.ends[low]
                if size > bytes_max and not (min_one and size == piece.ends[high + 1] - piece.ends[high]):
                    enough = 0
                else:
                    following = piece.batches[high][1] + 1
                    high += 1
            if high > low:
                read.add(piece, low, high)
        return read if read.batches else None

    def _piece(self, reader: str, log: PartitionLog, offset: int, *, committed: bool) -> Piece | None:
        """A piece with ``offset``, or what follows it."""
        known = self._pieces.get(reader)
        if known is not None and known.serves(log, offset, committed=committed):
            self._pieces[reader] = self._pieces.pop(reader)  # those used last are at the end
            return known
        before = log.last_stable_offset if committed else None
        found = log.read(offset, PIECE_BYTES, min_one=True, before=before)
        if found is None:
            return None
        try:
            data = self._handles.read(found.file.path, found.size, found.position)
            aborted = log.aborted_in(found) if committed else None
        finally:
            found.release()
        piece = Piece(log, data, aborted)
        if piece.index(offset) < 0:
            return None
        if len(data) <= PIECE_BYTES:
            self._pieces.pop(reader, None)
            if len(self._pieces) >= PIECES_MAX:
                del self._pieces[next(iter(self._pieces))]
            self._pieces[reader] = piece
        return piece
