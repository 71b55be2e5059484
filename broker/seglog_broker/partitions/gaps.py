"""The gaps in the reply to a fetch: offsets without a record, and why.

The broker does not read the batches of the reply. The client sees where one does not follow the other, and the reply
has what it needs to give a reason.
"""

from typing import Final

from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.log_slice import LogSlice
from seglog_protocol.messages import Gap, name_hole

GAPS_MAX: Final = 100
"""The most gaps of one partition in one reply, so that its header fits; further holes are "missing" to the client."""


def gaps_of_read(
    log: PartitionLog, offset: int, found: LogSlice | None, end: int, *, min_one: bool
) -> tuple[list[Gap] | None, int | None]:
    """(gaps, offset below which other holes are from compaction) for a read at ``offset``; either is None if absent.

    The gaps are the offsets between ``offset`` and the first batch found, and later ranges that are recorded as
    missing: between two segments, or inside one that compaction has merged. Later damage is not included, because a
    slice ends before damaged bytes. If the read was for at least one batch (``min_one``) and there is none, all offsets
    up to ``end``, that of the log or of what is read of it, are a gap: otherwise a reader would wait there for ever.
    """
    state = log.state
    first = offset
    if found is not None:
        first = max(offset, found.start_offset)
    elif min_one:
        first = max(offset, end)
    compacted_before = state.compacted_before
    gaps: list[Gap] = []
    if state.damaged:
        known = [Gap(d.start_offset, d.end_offset, d.reason) for d in state.damaged if d.end_offset > offset]
        known.sort(key=lambda gap: gap.start)
        gaps = name_hole(offset, first, known, compacted_before)
        gaps += [gap for gap in known if gap.start >= first and gap.reason == "missing"]
        if len(gaps) > GAPS_MAX:
            compacted_before = min(compacted_before, gaps[GAPS_MAX].start)
            del gaps[GAPS_MAX:]
    elif first > offset:
        gaps = name_hole(offset, first, (), compacted_before)
    return gaps or None, compacted_before if compacted_before > offset else None
