"""How old what readers have not read yet is, and how long it is kept: measured in the background, in turns."""

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from seglog_broker.api.lag import LAG_PARTITIONS_MAX
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.messages import LagPartition, LagReply, LagRequest

MeasureLag = Callable[[LagRequest], Awaitable[LagReply]]


class Place(NamedTuple):
    """The next offset that a group has not done with, in a partition that can be read."""

    group: str
    partition: Partition
    offset: int

    @property
    def lag(self) -> int:
        """Offsets up to the log end."""
        return max(0, self.partition.log.log_end_offset - self.offset)

    @property
    def key(self) -> tuple[str, str, int]:
        """Group, topic and partition."""
        return self.group, self.partition.topic, self.partition.number


class Measured(NamedTuple):
    """What was found of the record at an offset, at ``at_ms``; all times are ms of the wall clock."""

    offset: int
    at_ms: int
    timestamp: int | None
    lost_from_ms: int | None
    """When retention may delete it; None: time does not."""


class Lags:
    """Keeps what the last measurement found of each place; ages go on from there."""

    def __init__(self, clock: Clock, measure_lag: MeasureLag) -> None:
        self._clock: Final = clock
        self._measure_lag: Final = measure_lag
        self._measured: dict[tuple[str, str, int], Measured] = {}

    async def measure(self, places: Iterable[Place]) -> None:
        """Measure those that are behind."""
        behind = [place for place in places if place.lag]
        behind.sort(key=lambda place: place.key[1:])  # those of a partition are measured together
        measured: dict[tuple[str, str, int], Measured] = {}
        for begin in range(0, len(behind), LAG_PARTITIONS_MAX):
            some = behind[begin : begin + LAG_PARTITIONS_MAX]
            asked = [LagPartition(place.partition.topic, place.partition.number, place.offset) for place in some]
            reply = await self._measure_lag(LagRequest(asked))
            for place, found in zip(some, reply.partitions, strict=True):
                if found.error is None:
                    measured[place.key] = Measured(place.offset, reply.now_ms, found.timestamp, found.lost_from_ms)
        self._measured = measured

    def seconds(self, place: Place) -> float | None:
        """The age of the record at a place that is behind."""
        found = self._measured.get(place.key)
        if found is None or found.timestamp is None:
            return None
        now_ms = self._clock.now_ms() if found.offset == place.offset else found.at_ms
        return max(0, now_ms - found.timestamp) / 1000

    def time_to_loss(self, place: Place) -> float | None:
        """Seconds until retention deletes the record at a place that is behind; 0 if it is gone, infinite if never."""
        if place.offset < place.partition.log.log_start_offset:
            return 0.0
        found = self._measured.get(place.key)
        if found is None:
            return None
        if found.lost_from_ms is None:
            return math.inf
        return max(0, found.lost_from_ms - self._clock.now_ms()) / 1000
