"""Searches each log once after a start for closed segments that are missing between others.

A start does not read closed segments, only their names. So here the end of each is compared with the base offset of the
next, in a thread. Otherwise only a reader or the scrub would find the hole, some time later.
"""

from itertools import pairwise
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import save_state
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Common
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment_ends import SegmentHole, holes_between

log = get_logger()

SEGMENTS_AT_A_TIME: Final = 25
"""Segments that a thread checks at a time, which takes some milliseconds."""

_RECOVERY_SECONDS: Final = 0.5
"""Time between checks for partitions whose recovery has finished."""


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
