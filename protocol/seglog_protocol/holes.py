"""Reasons for offsets without a record: one rule, for broker and client.

A hole is a range of offsets between two batches that do not follow each other. Its reason is never found by walking
batches, but from a few recorded ranges and the offset below which the log was compacted.
"""

from collections.abc import Iterable

from seglog_protocol.messages import Gap


def name_hole(start: int, end: int, named: Iterable[Gap], compacted_before: int) -> list[Gap]:
    """The gaps that cover offsets ``start`` to ``end`` (exclusive), in order, each with its reason.

    Ranges in ``named`` (ordered by start) keep their reason; the rest is "compacted" below ``compacted_before`` and
    "missing" from there on.
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
