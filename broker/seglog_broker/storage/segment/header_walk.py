"""A walk over the headers of one ``.log`` that steps over the bytes which are known to be damaged."""

from collections.abc import Generator, Iterable

from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_protocol.header_scan import LocatedBatch, Readable, scan_headers


def next_damage(damaged: Iterable[DamagedRange], position: int) -> DamagedRange | None:
    """The damaged bytes that ``position`` lies in, else the next ones behind it. ``damaged`` is sorted by position."""
    return next((hole for hole in damaged if position < hole.end_position > hole.position), None)


def walk_headers(
    file: Readable, position: int, end: int, damaged: Iterable[DamagedRange], expected: int = -1
) -> Generator[LocatedBatch, None, tuple[int, int]]:
    """The batches in [position, end) by their headers; checksums are not looked at.

    Returns where the walk has ended and the offset that is due there: it is short of ``end`` where bytes that are not
    known to be damaged form no batch. ``expected`` is the offset due at ``position``, -1 when it is not known.
    """
    while position < end:
        hole = next_damage(damaged, position)
        stop = end if hole is None else max(position, min(hole.position, end))
        last: LocatedBatch | None = None
        for last in scan_headers(file, position, stop):
            yield last
        if last is not None:  # not for each batch: look-ups leave a walk after a few
            position, expected = last.end, last.header.next_offset
        if position < stop:
            break
        if hole is None or hole.position >= end:
            break
        position, expected = hole.end_position, max(expected, hole.end_offset)
    return position, expected
