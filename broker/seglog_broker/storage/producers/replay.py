"""The batches of a log as its producers' state wants them: headers, and what control batches say."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from seglog_broker.storage.producers.producer_snapshots import ReplayedBatch
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.records import decode_records
from seglog_protocol.transaction_files import EndMarker, decode_end_marker


def replay(segments: Sequence[Segment], start: int, end: int) -> Iterator[ReplayedBatch]:
    """As ``producer_snapshots.Replay``, over segments that follow each other."""
    next_offset = start
    first = max(0, bisect_right(segments, start, key=attrgetter("base_offset")) - 1)
    for number in range(first, len(segments)):
        segment = segments[number]
        if segment.base_offset >= end:
            return
        for found in segment.log.batches():
            header = found.header
            if next_offset <= header.base_offset and header.last_offset < end:
                next_offset = header.next_offset
                yield replayed(segment, found)


def replayed(segment: Segment, found: LocatedBatch) -> ReplayedBatch:
    """A batch that was found in ``segment``."""
    return ReplayedBatch(found.header, _end_marker(segment, found) if found.header.is_control else None)


def _end_marker(segment: Segment, found: LocatedBatch) -> EndMarker | None:
    """What a control batch says; None when it ends no transaction, or cannot be read."""
    try:
        records = decode_records(found.header, segment.log.read_batch(found))
    except CorruptRecordError:
        return None
    return decode_end_marker(records[0].key, records[0].value) if records else None
