"""Positions of the last batches of the active segment, in memory: a read at the end needs no look-up in files.

Most fetches are for records that were just appended, and a hundred of them may be woken by one append. With the offset
index each would read up to ``index.interval.bytes`` of headers; here a look-up is two bisections. It is only a cache:
other batches are looked up in the ordinary way.

It has only batches that this process appended, as one run without a hole. A change of the segment other than an append
clears it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

BATCHES_MIN: Final = 256
"""The number of batches kept; beyond twice that the older ones are dropped. At most 8 KiB a partition."""


class TailRange(NamedTuple):
    """Whole batches: bytes [position, end) of the ``.log``, the first with base ``start_offset``."""

    position: int
    end: int
    start_offset: int


class TailCache:
    """The newest batches of one segment, in their order."""

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
