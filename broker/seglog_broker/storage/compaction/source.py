"""Reads the segments that are compacted: verified batches in large pieces, and the damage between them.

Headers are walked as readers walk them (``damage``), and the next batch behind damage is found as recovery finds it
(``BatchScan``). Pieces have a walk of their own, because they are judged as arrays, many batches at once.

The bytes of a closed segment do not change, so what is found wrong on one pass is wrong on every other.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_broker.storage.segment.damage import DamagedRange, HeaderWalk, next_damage
from seglog_protocol.batch_columns import BatchColumns, intact, plausible, read_batches
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, why_implausible

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Bytes read at a time, unless a batch is larger: what is made of them stays in the processor's cache."""

PIECE_BATCHES: Final = 48
"""Where so many bytes have fewer batches, twice as many are read: their records are found in all batches at once."""

PIECE_BYTES_MAX: Final = 16 * 1024 * 1024


class Piece(NamedTuple):
    """Good batches; the first begins at ``position`` of the file."""

    position: int
    batches: BatchColumns

    @property
    def end(self) -> int:
        """Position in the file behind the last batch."""
        return self.position + int(self.batches.end[-1])


class SourceFile:
    """The ``.log`` of one segment, open. ``next_base`` is where the next segment's offsets begin."""

    def __init__(
        self, file: File, base_offset: int, next_base: int, damaged: Sequence[DamagedRange], throttle: Throttle
    ) -> None:
        self.base_offset = base_offset
        self.next_base = next_base
        self.size = file.size()
        self._file = file
        self._throttle = throttle
        self._damaged = list(damaged)
        self._piece_bytes = PIECE_BYTES

    def pread(self, size: int, position: int) -> bytes:
        """Bytes, counted."""
        data = self._file.pread(size, position)
        self._throttle.note(len(data))
        return data

    def headers(self) -> Generator[LocatedBatch, None, None]:
        """Every header, checksums not looked at; damage is stepped over in silence."""
        position, expected = 0, self.base_offset
        while position < self.size:
            walk = HeaderWalk(self, position, self.size, self._damaged, expected)
            yield from walk
            position, expected = walk.position, walk.expected
            if position < self.size:
                self._measure(position, expected)

    def pieces(self, position: int = 0, expected: int | None = None) -> Iterator[Piece | DamagedRange]:
        """Everything from ``position``, where a batch begins, in the order of the file.

        Batches are plausible, match their checksums, and their offsets rise from ``expected`` (the base offset if left
        out) to the end of this segment. Whatever lies between them is damage.
        """
        expected = self.base_offset if expected is None else expected
        while position < self.size:
            hole = next_damage(self._damaged, position)
            if hole is None or position < hole.position:
                batches = self._read(position, hole.position if hole else self.size)
                good = batches.first(self._count_good(batches, expected))
                if len(good):
                    piece = Piece(position, good)
                    yield piece
                    position, expected = piece.end, int(good.last_offset[-1]) + 1
                    continue
                hole = self._measure(position, expected)
            yield hole
            position, expected = hole.end_position, max(expected, hole.end_offset)

    def _read(self, position: int, stop: int) -> BatchColumns:
        """The whole batches at ``position``, as far as one read goes, but at least one if there is one."""
        wanted = self._piece_bytes
        data = self.pread(min(wanted, stop - position), position)
        batches = read_batches(data)
        if len(batches) < PIECE_BATCHES and wanted < PIECE_BYTES_MAX and wanted <= stop - position:
            self._piece_bytes = 2 * wanted
        if not len(batches) and len(data) >= HEADER_SIZE:
            header = parse_header(data)
            if why_implausible(header) is None and len(data) < header.size <= stop - position:
                batches = read_batches(self.pread(header.size, position))
        return batches

    def _count_good(self, batches: BatchColumns, expected: int) -> int:
        """How many batches are good before the first that is not."""
        if not len(batches):
            return 0
        good = plausible(batches)
        previous = np.append(expected - 1, batches.last_offset[:-1])
        rises = batches.base_offset > previous
        good &= batches.last_offset < self.next_base
        good &= rises
        good &= intact(batches)
        if good.all():
            return len(good)
        bad = int(np.argmin(good))
        # Checksums leave out the offset. When a batch lies below the one before it, and that one behind a gap, it is
        # that one whose offset is wrong; accepting it would make everything after it look damaged.
        if bad and not rises[bad] and batches.base_offset[bad - 1] > previous[bad - 1] + 1:
            return bad - 1 if batches.base_offset[bad] > previous[bad - 1] else bad
        return bad

    def _measure(self, position: int, expected: int) -> DamagedRange:
        """What is lost from ``position`` to the next good batch; remembered for the next pass."""
        scan = BatchScan(self._file, self.size)
        found = scan.next_batch(position, expected, self.next_base - 1)
        end_offset, end_position = (found.header.base_offset, found.position) if found else (self.next_base, self.size)
        hole = DamagedRange(expected, end_offset, self.base_offset, position, end_position)
        # It reaches over whatever was known behind it before a good batch.
        kept = [known for known in self._damaged if known.end_position > end_position]
        self._damaged = [hole, *kept] if kept else [hole]
        return hole


@contextmanager
def open_source(
    fs: FileSystem, path: str, base_offset: int, next_base: int, damaged: Sequence[DamagedRange], throttle: Throttle
) -> Iterator[SourceFile]:
    """The segment's ``.log``, open within the block."""
    with fs.open(path) as file:
        yield SourceFile(file, base_offset, next_base, damaged, throttle)
