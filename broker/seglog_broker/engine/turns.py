"""What the parts of a request cost on the loop, in microseconds (``budget``)."""

from typing import Final

from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime import budget
from seglog_broker.storage.io.pauses import TurnWantedError
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


class SegmentTimes:
    """Loads the largest timestamps of all segments of a partition, which a look-up by timestamp needs."""

    __slots__ = ("_bases", "_done", "_segments")

    def __init__(self, partition: Partition) -> None:
        self._segments = partition.log.segments
        self._bases = self._segments.bases_of_unknown_time
        self._done = 0  # of these

    def load(self) -> None:
        """Load them. Raises ColdReadError and TurnWantedError: called again, it continues."""
        while self._done < len(self._bases):
            segment = self._segments.at(self._bases[self._done])
            while segment is not None and not segment.is_time_known:  # else it was deleted meanwhile, or is known
                try:
                    segment.indexes.find_max_timestamp()
                except (OSError, SeglogError):
                    self._bases = []  # the look-up gets the same error; or the segment was deleted
                    return
            self._done += 1
            if self._done % LOOKUPS_A_TURN == 0:
                raise TurnWantedError
