"""Estimated bytes between two offsets.

An extent is a range of offsets of known size: a segment, or a whole partition. Offsets in an extent are assumed to have
equal sizes. The estimates are used only to divide work.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Extent(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) take ``size`` bytes."""

    start: int
    end: int
    size: int


def bytes_between(extents: Sequence[Extent], start: int, end: int) -> int:
    """The estimated bytes of offsets ``start`` to ``end``; offsets outside all extents count as 0."""
    total = 0
    for extent in extents:
        common = min(end, extent.end) - max(start, extent.start)
        if common > 0:
            total += -(-extent.size * common // (extent.end - extent.start))
    return total


def offset_behind(extents: Sequence[Extent], start: int, size: int, end: int) -> int:
    """The offset ``size`` bytes after ``start``, at most ``end``."""
    for extent in extents:
        first, last = max(start, extent.start), min(end, extent.end)
        if first >= last:
            continue
        needed = bytes_between([extent], first, last)
        if size < needed:
            return first + (last - first) * size // needed
        size -= needed
    return end


def cut(extents: Sequence[Extent], start: int, end: int, pieces: int) -> list[int]:
    """At most ``pieces`` - 1 offsets that split ``start`` to ``end`` into pieces of about equal bytes.

    A cut moves to the start of an extent within a quarter of a piece, where a read needs no search. Without known sizes
    pieces have equal numbers of offsets. Cuts ascend, strictly between ``start`` and ``end``.
    """
    total = bytes_between(extents, start, end)
    edges = [extent.start for extent in extents]
    cuts: list[int] = []
    for number in range(1, pieces):
        if total:
            ideal = offset_behind(extents, start, total * number // pieces, end)
            ideal = _nearest(edges, ideal, slack=(end - start) // (4 * pieces))
        else:
            ideal = start + (end - start) * number // pieces
        if start < ideal < end and (not cuts or ideal > cuts[-1]):
            cuts.append(ideal)
    return cuts


def _nearest(edges: Sequence[int], offset: int, slack: int) -> int:
    at = bisect_right(edges, offset)
    near = min(edges[max(0, at - 1) : at + 1], key=lambda edge: abs(edge - offset), default=offset)
    return near if abs(near - offset) <= slack else offset
