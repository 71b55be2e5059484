"""Offsets that hold no record, named: one rule, for the broker that knows and for the client that meets them.

A hole is what lies between two batches that do not follow each other. Nobody walks batches to find out about one: what
is known are a few ranges with their reasons, and the offset below which compaction has been at work.
"""

from collections.abc import Iterable

from seglog_protocol.messages import Gap


def name_hole(start: int, end: int, named: Iterable[Gap], compacted_before: int) -> list[Gap]:
    """Offsets ``start`` to ``end`` (exclusive), none of which holds a record, in order and in as many pieces as needed.

    What ``named`` (ordered by their start) cover keeps their reason; of the rest, what lies below ``compacted_before``
    is "compacted", and what nobody explains is "missing".
    """
    pieces: list[Gap] = []
    at = start
    for gap in named:
        first, last = max(at, gap.start), min(gap.end, end)
        if first < last:
            pieces += _unnamed(at, first, compacted_before)
            pieces.append(Gap(first, last, gap.reason))
            at = last
    return pieces + _unnamed(at, end, compacted_before)


def _unnamed(start: int, end: int, compacted_before: int) -> list[Gap]:
    middle = min(max(start, compacted_before), end)
    pieces = (Gap(start, middle, "compacted"), Gap(middle, end, "missing"))
    return [gap for gap in pieces if gap.start < gap.end]
