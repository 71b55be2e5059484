"""How much of a request is served before other requests have their turn."""

from typing import Final

from seglog_broker.partitions.cold_reads import Steps
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.io.handle_pool import ColdReadError, TurnWantedError
from seglog_protocol.errors import SeglogError

EFFORT_A_TURN: Final = 64
"""What one request does on the loop before others get their turn, in partitions looked at, or in what costs as much."""

SEGMENTS_AN_EFFORT: Final = 200
"""Segments passed over by a look-up by timestamp, which cost as much as everything else about a partition."""

BYTES_AN_EFFORT: Final = 64 * 1024
"""Bytes of a batch whose checksum and writing cost as much as everything else about a partition."""

RESULTS_MAX: Final = 10_000
"""Partitions that the reply to one request is about, whatever the request."""


def effort_of(partition: Partition | None, timestamp: int | None) -> int:
    """Of a look at a partition; one by timestamp passes over segments one by one."""
    if partition is None or timestamp is None:
        return 1
    return 1 + len(partition.log.segments) // SEGMENTS_AN_EFFORT


def bring_in_times(partition: Partition | None) -> Steps[None]:
    """Have the largest timestamps of all segments in memory, some of them a turn: a look-up asks for each."""
    if partition is None:
        return
    segments = partition.log.segments
    for done, base in enumerate(segments.bases_of_unknown_time, start=1):
        if done % EFFORT_A_TURN == 0:
            yield None
        segment = segments.at(base)
        while segment is not None and not segment.is_time_known:  # else it is gone meanwhile, or known
            try:
                segment.indexes.find_max_timestamp()
            except ColdReadError as cold:
                yield cold
            except TurnWantedError:
                yield None
            except (OSError, SeglogError):
                return  # the look-up meets it, too, and says so; or the segment is gone
