"""Positions of the last batches of the active segment, in memory: a reader at the end needs no file to find its place.

Most fetches ask for what was appended a moment ago, and a hundred of them may be woken by one append. The offset index
leads each only to within ``index.interval.bytes``, from where headers are read and scanned; here the answer is two
bisections. Nothing depends on it: what is not remembered is looked up the ordinary way.

Only batches that this process appended are remembered, and only as one run without a hole. Whatever changes a segment
in any other way than by appending forgets all of them.
"""

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

BATCHES_MIN: Final = 256
"""Batches remembered once there have been so many; twice that before the older half goes. 8 KiB a partition at most."""


class TailRange(NamedTuple):
    """Whole batches: bytes [position, end) of the ``.log``, the first with base ``start_offset``."""

    position: int
    end: int
    start_offset: int


class Tail:
    """The newest batches of one segment, in their order."""

    __slots__ = ("_bases", "_end", "_next_offset", "_positions", "latest", "latest_asked")

    def __init__(self) -> None:
        self._bases = array("q")  # of each batch its base offset
        self._positions = array("q")  # and where it begins
        self._next_offset = self._end = -1  # after the last batch
        self.latest: TailRange | None = None
        """What was found last, if nothing has changed since; always another object once something has."""
        self.latest_asked = (-1, -1, False)
        """With which arguments of ``find``: one append often wakes many equal readers."""

    def __len__(self) -> int:
        return len(self._bases)

    def note(self, base_offset: int, next_offset: int, position: int, end: int) -> None:
        """A batch was appended: offsets [``base_offset``, ``next_offset``), bytes [``position``, ``end``)."""
        if position != self._end or base_offset != self._next_offset:
            self.forget()  # it does not follow the last one: nothing is known of what lies between
        elif len(self._bases) >= 2 * BATCHES_MIN:
            del self._bases[:BATCHES_MIN], self._positions[:BATCHES_MIN]
        self.latest = None
        self._bases.append(base_offset)
        self._positions.append(position)
        self._next_offset, self._end = next_offset, end

    def forget(self) -> None:
        """Forget all batches: the segment was changed other than by an append."""
        if self._bases:
            self._bases, self._positions = array("q"), array("q")
        self._next_offset = self._end = -1
        self.latest = None

    def find(self, offset: int, bytes_max: int, min_one: bool = True) -> TailRange | None:
        """As many whole batches from the one with ``offset`` on as fit ``bytes_max``; None: not remembered.

        When not even the first one fits it is all of the range with ``min_one``, and else the range is empty.
        """
        bases, positions = self._bases, self._positions
        if not bases or not bases[0] <= offset < self._next_offset:
            return None
        number = bisect_right(bases, offset) - 1
        position, end = positions[number], self._end
        if end - position > bytes_max:
            last = (
                bisect_right(positions, position + bytes_max, lo=number) - 1
            )  # where the first that does not fit begins
            if last > number or not min_one:
                end = positions[last]
            elif number + 1 < len(positions):
                end = positions[number + 1]
        return TailRange(position, end, bases[number])
