"""What the parts of a request cost on the loop, in microseconds (``budget``)."""

from typing import Final

from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import RequestSteps
from seglog_broker.runtime import budget
from seglog_broker.storage.io.pauses import ColdReadError, TurnWantedError
from seglog_protocol.errors import SeglogError

LOOKUPS_A_TURN: Final = budget.items_of(budget.BATCH)
"""Partitions that one request looks up before other tasks run."""

SKIPPED_SEGMENT_COST: Final = 0.15
"""To pass over a segment in a look-up by timestamp."""

RESULTS_MAX: Final = 10_000
"""The most partitions in the reply to one request of any kind."""


def lookup_cost(partition: Partition | None, timestamp: int | None) -> float:
    """The cost of a look-up in a partition; one by timestamp skips segments one by one."""
    if partition is None or timestamp is None:
        return budget.BATCH
    return budget.BATCH + len(partition.log.segments) * SKIPPED_SEGMENT_COST


def bring_in_times(partition: Partition | None) -> RequestSteps[None]:
    """Load the largest timestamps of all segments, which a look-up needs, some of them in a turn of the loop."""
    if partition is None:
        return
    segments = partition.log.segments
    for done, base in enumerate(segments.bases_of_unknown_time, start=1):
        if done % LOOKUPS_A_TURN == 0:
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
