"""How much work one request may do before other tasks run."""

from typing import Final

from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import RequestSteps
from seglog_broker.storage.io.pauses import ColdReadError, TurnWantedError
from seglog_protocol.errors import SeglogError

EFFORT_A_TURN: Final = 64
"""The work of one request on the loop before other tasks run, in look-ups of partitions, or work of the same cost."""

SEGMENTS_AN_EFFORT: Final = 200
"""Segments skipped by a look-up by timestamp, which cost as much as the rest of the work for a partition."""

BYTES_AN_EFFORT: Final = 64 * 1024
"""Bytes of a batch whose checksum and write cost as much as the rest of the work for a partition."""

RESULTS_MAX: Final = 10_000
"""The most partitions in the reply to one request of any kind."""


def effort_of(partition: Partition | None, timestamp: int | None) -> int:
    """The cost of a look-up in a partition; one by timestamp skips segments one by one."""
    if partition is None or timestamp is None:
        return 1
    return 1 + len(partition.log.segments) // SEGMENTS_AN_EFFORT


def bring_in_times(partition: Partition | None) -> RequestSteps[None]:
    """Load the largest timestamps of all segments, which a look-up needs, some of them in a turn of the loop."""
    if partition is None:
        return
    segments = partition.log.segments
    for done, base in enumerate(segments.bases_of_unknown_time, start=1):
        if done % EFFORT_A_TURN == 0:
            yield None
        segment = segments.at(base)
        while segment is not None and not segment.is_time_known:  # else it was deleted meanwhile, or is known
            try:
                segment.indexes.find_max_timestamp()
            except ColdReadError as cold:
                yield cold
            except TurnWantedError:
                yield None
            except (OSError, SeglogError):
                return  # the look-up gets the same error; or the segment was deleted
