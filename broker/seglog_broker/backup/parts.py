"""Which parts of a growing file stay as they are, and which pieces come into an object of the destination together.

Each point adds a part to each file that has grown. Small parts are merged, so that a file has a hundred of them at
most, and each byte is written about twice at most before it lies in a part of PART_BYTES, which is never written again:
a log that gets so much between two points is written once. Parts are sorted by their size into tiers, each
PARTS_A_TIER times the one before; PARTS_A_TIER parts of a tier become one of the next.

An object of the destination can be removed when nothing names it any more. So pieces share one with those that expire
with them: those of one segment, then those of one topic, where these have OBJECT_BYTES. What is left shares one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from seglog_broker.storage.segment.awaited import Part

PARTS_A_TIER: Final = 32
_TIER_BITS: Final = PARTS_A_TIER.bit_length() - 1

PART_BYTES: Final = 1024 * 1024
"""A part of so many bytes is never written again."""

OBJECT_BYTES: Final = 8 * 1024 * 1024
"""Pieces of so many bytes together are worth a request of their own."""

T = TypeVar("T")


def count_kept(parts: Sequence[Part], added: int, *, is_last: bool) -> int:
    """How many of the first ``parts`` stay when ``added`` bytes come behind them; the others become one with those.

    ``is_last``: no more will come, so that the small parts at the end become one whatever their number is.
    """
    kept, size = len(parts), added
    if is_last:
        while kept and parts[kept - 1].size < PART_BYTES:
            kept -= 1
        return len(parts) if not added and len(parts) - kept < 2 else kept
    while 0 < size < PART_BYTES:
        first = kept
        while first and parts[first - 1].size < PART_BYTES and _tier(parts[first - 1].size) <= _tier(size):
            first -= 1
        if kept - first < PARTS_A_TIER - 1:
            break
        size += sum(part.size for part in parts[first:kept])
        kept = first
    return kept


def _tier(size: int) -> int:
    return size.bit_length() // _TIER_BITS


def grouped(
    pieces: Iterable[T], size_of: Callable[[T], int], keys: Sequence[Callable[[T], object]]
) -> Iterator[list[T]]:
    """The pieces of each object.

    ``keys`` say what expires together, the narrowest first; a piece has a size of ``size_of`` bytes.
    """
    rest = list(pieces)
    for key in keys:
        groups: dict[object, list[T]] = {}
        for piece in rest:
            groups.setdefault(key(piece), []).append(piece)
        rest = []
        for group in groups.values():
            if sum(map(size_of, group)) >= OBJECT_BYTES:
                yield group
            else:
                rest += group
    if rest:
        yield rest
