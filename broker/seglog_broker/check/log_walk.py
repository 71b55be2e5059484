"""Every batch of a partition's segments, in order, and what stands between them.

The rules are recovery's (``LogRecovery``), so that what a check calls damaged is what a start would call damaged; but
nothing is changed: no index is made, no tail is cut. A test holds the two against each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from seglog_broker.dump.log_file import judge_stretch
from seglog_broker.storage.batch_scan import BatchVerifier, LocatedBatch
from seglog_broker.storage.filesystem import File, FileSystem
from seglog_broker.storage.partition_state import DamagedRange
from seglog_protocol import segment_files as names


class Stretch(NamedTuple):
    """A range that holds no valid batch, and why, as the end of a sentence."""

    range: DamagedRange
    why: str


class LogWalk:
    """One pass over a partition; ask for the segments in the order of their offsets, then ``finish``.

    ``damaged``: bytes with valid batches behind them. ``holes``: offsets that no batch and no damage accounts for.
    ``tails``: bytes at the end of the log, with no valid batch behind them; known only after ``finish``.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self.next_offset: int | None = None
        self.damaged: list[Stretch] = []
        self.holes: list[DamagedRange] = []
        self.tails: list[Stretch] = []
        self._fs = fs
        self._directory = directory
        self._on_spoilt: Callable[[LocatedBatch], None] = _ignore

    def batches(
        self, base_offset: int, highest: int, on_spoilt: Callable[[LocatedBatch], None] | None = None
    ) -> Iterator[LocatedBatch]:
        """The valid batches of a segment whose offsets may reach up to ``highest``. Raises OSError.

        ``on_spoilt`` is told, in its place between them, of each damaged stretch that is one whole batch but for its
        checksum: the indexes may know it from before it was damaged.
        """
        self._on_spoilt = on_spoilt or _ignore
        if self.next_offset is not None and not self.tails and self.next_offset < base_offset:
            self.holes.append(DamagedRange(self.next_offset, base_offset, base_offset, 0, 0, reason="missing"))
        file = self._open(base_offset)
        try:
            yield from self._walk(file, base_offset, highest)
        finally:
            file.close()

    def _walk(self, file: File, base_offset: int, highest: int) -> Iterator[LocatedBatch]:
        size = file.size()
        verifier = BatchVerifier(file, size)
        position = 0
        while position < size:
            lowest = max(base_offset, self.next_offset or 0)
            found = verifier.going_on(position, lowest, highest)
            if found is None:
                lost = DamagedRange(lowest, lowest, base_offset, position, size)
                self.tails.append(Stretch(lost, self._why(file, verifier, lost, highest)))
                return
            first = found.header.base_offset
            if found.position > position:
                lost = DamagedRange(lowest, first, base_offset, position, found.position)
                self.damaged.append(Stretch(lost, self._why(file, verifier, lost, highest)))
            elif first > lowest and not self.tails:
                self.holes.append(DamagedRange(lowest, first, base_offset, position, position, reason="missing"))
            for tail, why in self.tails:  # a valid batch follows: they were none
                self.damaged.append(Stretch(replace(tail, end_offset=first), why))
            self.tails.clear()
            self.next_offset = found.header.next_offset
            yield found
            position = found.end

    def finish(self, last_base: int) -> None:
        """Tell the tails that hold a batch of lower offsets from those that a crash can have left.

        ``last_base`` is the base offset of the last segment: what was handed out below it is not handed out again.
        """
        if self.tails and self.next_offset is not None and self.next_offset < last_base:
            self.holes.append(DamagedRange(self.next_offset, last_base, last_base, 0, 0, reason="missing"))
        tails, self.tails = self.tails, []
        for tail in tails:
            (self.damaged if self._holds_a_batch(tail.range) else self.tails).append(tail)

    def _holds_a_batch(self, tail: DamagedRange) -> bool:
        file = self._open(tail.segment)
        try:
            verifier = BatchVerifier(file, tail.end_position)
            return verifier.next_batch(tail.position, tail.segment, tail.start_offset - 1) is not None
        finally:
            file.close()

    def _why(self, file: File, verifier: BatchVerifier, lost: DamagedRange, highest: int) -> str:
        found = verifier.batch_at(lost.position)
        if found is not None:
            first, last = found.header.base_offset, found.header.last_offset
            return f"a batch with a right checksum says offsets {first} to {last}, but {lost.start_offset} follows here"
        why, header = judge_stretch(file, lost.position, verifier.size)
        if (
            header is not None
            and lost.position + header.size == lost.end_position
            and lost.start_offset <= header.base_offset <= header.last_offset <= highest
        ):
            self._on_spoilt(LocatedBatch(lost.position, header))
        return why

    def _open(self, base_offset: int) -> File:
        return self._fs.open(f"{self._directory}/{names.segment_file_name(base_offset, names.LOG_SUFFIX)}")


def _ignore(_found: LocatedBatch) -> None:
    """Nobody wants to know."""
