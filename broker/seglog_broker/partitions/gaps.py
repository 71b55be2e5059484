"""What the answer to a fetch says of offsets that hold no record.

The batches that are sent are not walked: the client sees where two do not follow each other. The reply holds what
it needs to name the hole.
"""

from typing import Final

from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.log_slice import LogSlice
from seglog_protocol.holes import name_hole
from seglog_protocol.messages import Gap

GAPS_TOLD_MAX: Final = 100
"""Of one partition in one answer, so that it fits a header; a hole behind them is "missing" to the client."""


def gaps_to_tell(
    log: PartitionLog, offset: int, found: LogSlice | None, *, min_one: bool
) -> tuple[list[Gap] | None, int | None]:
    """(gaps, offset below which other holes were left by compaction) of a read at ``offset``; None where there is none.

    The gaps are whatever lies between ``offset`` and the first batch found, and the ranges known to be missing behind
    that: these lie between two segments, or inside one when compaction has joined them. Damaged ranges need no word,
    for a slice ends before damaged bytes. When ``min_one`` asked for a batch whatever the limits and there is none, all
    up to the log end is a gap: without a word about it a reader would wait there for ever.
    """
    state = log.state
    first = offset
    if found is not None:
        first = max(offset, found.start_offset)
    elif min_one:
        first = log.log_end_offset
    compacted_before = state.compacted_before
    gaps: list[Gap] = []
    if state.damaged:
        known = [Gap(d.start_offset, d.end_offset, d.reason) for d in state.damaged if d.end_offset > offset]
        known.sort(key=lambda gap: gap.start)
        gaps = name_hole(offset, first, known, compacted_before)
        gaps += [gap for gap in known if gap.start >= first and gap.reason == "missing"]
        if len(gaps) > GAPS_TOLD_MAX:
            compacted_before = min(compacted_before, gaps[GAPS_TOLD_MAX].start)
            del gaps[GAPS_TOLD_MAX:]
    elif first > offset:
        gaps = name_hole(offset, first, (), compacted_before)
    return gaps or None, compacted_before if compacted_before > offset else None
