"""Searches each log once after a start for closed segments that are missing between others.

A start does not read closed segments, only their names. So here the end of each is compared with the base offset of the
next, in a thread: with the last entry of its index and the few headers after it, a few reads whatever its size, and no
file stays open. Otherwise only a reader or the scrub would find the hole, some time later; they find the damage of
segments that are inconsistent, which are left out here.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import save_state
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Common
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.header_scan import HeaderScan

log = get_logger()

SEGMENTS_AT_A_TIME: Final = 25
"""Segments that a thread checks at a time, which takes some milliseconds."""

HEADERS_MAX: Final = 200
"""The most headers read after the last entry of an index. There are more only if the index is wrong."""

_RECOVERY_SECONDS: Final = 0.5
"""Time between checks for partitions whose recovery has finished."""


class SegmentHole(NamedTuple):
    """Offsets [start, end) that lie between the end of a closed segment and the base offset of the next."""

    segment: int
    start: int
    end: int


async def run_hole_search(common: Common) -> None:
    """Search each partition once, those that are being recovered afterwards; then return."""
    boundary = TaskBoundary("hole search")
    seen: set[Partition] = set()

    async def search(partition: Partition) -> None:
        pairs = list(pairwise(partition.log.segments.bases))
        found = False
        for start in range(0, len(pairs), SEGMENTS_AT_A_TIME):
            some = pairs[start : start + SEGMENTS_AT_A_TIME]
            for hole in await common.offload.maintenance(holes_between, common.fs, partition.log.directory, some):
                if partition.is_deleted:
                    return
                found |= _record(partition, hole)
        if found:
            await save_state(partition, common.offload)

    while True:
        for partition in list(common.table.values()):
            if partition not in seen and len(partition.log.segments) > 1:
                await boundary.run(partition, search)
            seen.add(partition)
        if not common.recoveries:
            return
        await trio.sleep(_RECOVERY_SECONDS)


def _record(partition: Partition, hole: SegmentHole) -> bool:
    """Record and log a hole, so that readers skip it. False if it is explained or known: then nothing is done."""
    state, bases = partition.log.state, partition.log.segments.bases
    start = max(hole.start, state.compacted_before, partition.log.log_start_offset)
    is_there = hole.segment in bases and hole.end in bases  # else deleted or compacted meanwhile
    if not is_there or start >= hole.end or "compact" in partition.log.config.cleanup_policy:
        return False
    if any(d.start_offset <= start and hole.end <= d.end_offset for d in state.damaged):
        return False
    partition.log.note_damage([DamagedRange(start, hole.end, hole.end, 0, 0, reason="missing")])
    log.error(
        "offsets_missing", topic=partition.topic, partition=partition.number, start_offset=start, end_offset=hole.end
    )
    return True


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
