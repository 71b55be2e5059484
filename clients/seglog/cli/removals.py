"""When a segment leaves the log and the disk, as exactly as the times of retention checks tell it.

A broker says between which times that is. Checks come at fixed times: the first one after a segment is due removes it,
unless something may hold that up.
"""

from seglog_protocol.messages import ExplainedSegment, ExplainSegmentsReply

Interval = tuple[int | None, int | None]
"""From when to when, epoch ms: one moment, if a check whose time is known lies between; None if it is not known."""


def leaves_log(segment: ExplainedSegment, log: ExplainSegmentsReply) -> Interval:
    """When its offsets become out of range."""
    return _narrowed(log, segment.leaves_from_ms, segment.leaves_by_ms, 0)


def leaves_disk(segment: ExplainedSegment, log: ExplainSegmentsReply) -> Interval:
    """When its files are gone: so much later as they wait."""
    first, leaves = segment.gone_from_ms, segment.leaves_from_ms
    if first is None or leaves is None:
        return first, segment.gone_by_ms
    return _narrowed(log, first, segment.gone_by_ms, first - leaves)


def _narrowed(log: ExplainSegmentsReply, first: int | None, last: int | None, delay_ms: int) -> Interval:
    is_running = log.next_check_ms <= log.now_ms
    if first is None or last is None or is_running or log.doubts or log.problems or log.check_interval_ms <= 0:
        return first, last
    checks = max(0, -((log.next_check_ms + delay_ms - first) // log.check_interval_ms))
    check = log.next_check_ms + delay_ms + checks * log.check_interval_ms
    return (check, check) if first <= check <= last else (first, last)
