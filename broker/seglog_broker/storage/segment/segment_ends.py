"""The ends of closed segments, found with the last entry of their index and the few headers after it.

For a search through many segments at once: a few reads each, whatever their size, and no file stays open. Segments that
are inconsistent are left out; readers and the scrub find the damage.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.header_scan import HeaderScan

HEADERS_MAX: Final = 200
"""The most headers read after the last entry of an index. There are more only if the index is wrong."""


class SegmentHole(NamedTuple):
    """Offsets [start, end) that lie between the end of a closed segment and the base offset of the next."""

    segment: int
    start: int
    end: int


def holes_between(fs: FileSystem, directory: str, pairs: Iterable[tuple[int, int]]) -> list[SegmentHole]:
    """The holes after closed segments; ``pairs`` are their base offsets, each with that of the next one."""
    found = []
    for base, following in pairs:
        try:
            end = _end_of(fs, directory, base, following)
        except OSError:
            continue  # deleted meanwhile; else its readers get the error
        if end is not None and end < following:
            found.append(SegmentHole(base, end, following))
    return found


def _end_of(fs: FileSystem, directory: str, base: int, following: int) -> int | None:
    """The offset after the last batch; None if that is not certain, or the segment has no batch."""
    last = _last_entry(fs, f"{directory}/{names.segment_file_name(base, names.OFFSET_INDEX_SUFFIX)}")
    with fs.open(f"{directory}/{names.segment_file_name(base, names.LOG_SUFFIX)}") as file:
        size, position, end = file.size(), last.position, -1
        batch = None
        for count, found in enumerate(HeaderScan(file, position, size)):
            header = found.header
            is_due = header.base_offset == end or (batch is None and header.last_offset == base + last.relative_offset)
            if not (is_due or (batch is None and not position and header.base_offset == base)) or count >= HEADERS_MAX:
                return None
            batch, end = found, header.next_offset
        if batch is None or batch.end != size:
            return None
        if end < following and BatchScan(file, size).batch_at(batch.position) is None:
            return None  # it is damaged, so its last offset may be wrong
        return end


def _last_entry(fs: FileSystem, path: str) -> names.OffsetEntry:
    nothing = names.OffsetEntry(0, 0)
    if not fs.exists(path):
        return nothing
    with fs.open(path) as file:
        size, entry = file.size(), names.OFFSET_ENTRY.size
        return nothing if size < entry or size % entry else names.offset_entry(file.pread(entry, size - entry), 0)
