"""Offsets, asked of the broker: the ends of partitions, where to start and stop, how far a reader is behind."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from seglog.core import moments
from seglog.core.conversations import Conversation, ask, check, pages, when_recovered
from seglog.core.fetcher import FetchOptions, PartitionPosition, readable_end
from seglog_protocol import errors, messages
from seglog_protocol.isolation import ISOLATIONS, READ_UNCOMMITTED, Isolation

PLACES_PER_REQUEST: Final = 1_000

Place = int | str | datetime | Mapping[int, int] | Mapping[str, int] | moments.Moment
"""An offset for every partition, text for ``parse_moment``, an aware datetime, or {partition: offset}.

Partitions may be text, as after a JSON round trip.
"""


class PartitionOffsets(NamedTuple):
    """The ends of a partition: [``earliest``, ``latest``) can be read, records below ``durable`` survive power loss.

    ``last_stable`` is where the first open transaction begins, else the log end; at isolation "read_committed" it is
    ``latest``, too. None: the broker did not send it.
    ``offset`` and ``timestamp`` are of the first record at or after the requested time; None without such a record or
    without a requested time.
    """

    topic: str
    partition: int
    earliest: int
    latest: int
    durable: int
    leader_epoch: int
    offset: int | None = None
    timestamp: int | None = None
    last_stable: int | None = None

    def end(self, isolation: Isolation, *, durable_only: bool = False) -> int:
        """The end of what a reader gets."""
        return readable_end(self.latest, self.last_stable, self.durable if durable_only else None, isolation)


class PartitionLag(NamedTuple):
    """Lag of one partition at a position, and when its records are deleted; timestamps are epoch ms.

    [``earliest``, ``latest``) can be read; with ``durable_only``, ``latest`` is the end that survives power loss, and
    at isolation "read_committed" at most the last stable offset.
    ``timestamp`` is that of the first record in the batch to be read next (None: no timestamp or no record), so that
    ``seconds`` is never too small; ``newest_timestamp`` is the largest near the end, ``now_ms`` the broker's time.

    Retention deletes the records at the position between ``loss_from_ms`` and ``loss_by_ms``, or sooner, when
    ``bytes_to_loss`` more bytes are appended, by ``retention.bytes``; None: they are kept as things stand. ``why`` is
    the broker's explanation, as in ``explain segments``. ``last_stable`` is where the first open transaction begins,
    else the log end; None: the broker did not send it.
    """

    topic: str
    partition: int
    position: int
    earliest: int
    latest: int
    now_ms: int
    timestamp: int | None = None
    newest_timestamp: int | None = None
    loss_from_ms: int | None = None
    loss_by_ms: int | None = None
    bytes_to_loss: int | None = None
    why: str | None = None
    earliest_reason: str | None = None
    last_stable: int | None = None

    @property
    def records(self) -> int:
        """Offsets left to read."""
        return max(0, self.latest - max(self.position, self.earliest))

    @property
    def unstable(self) -> int:
        """Of ``records`` those at or behind the first open transaction, which readers at "read_committed" wait for."""
        return 0 if self.last_stable is None else max(0, self.latest - max(self.position, self.last_stable))

    @property
    def seconds(self) -> float | None:
        """Age of the next record; 0 at the end, None if it has no timestamp."""
        if not self.records:
            return 0.0
        return None if self.timestamp is None else max(0, self.now_ms - self.timestamp) / 1000

    @property
    def seconds_to_loss(self) -> float | None:
        """Seconds until retention by time may delete the next record; None: it is kept as things stand."""
        return None if self.loss_from_ms is None else max(0, self.loss_from_ms - self.now_ms) / 1000

    @property
    def lost(self) -> int:
        """Offsets between the position and ``earliest``, whose records have been deleted."""
        return max(0, self.earliest - self.position)

    @property
    def is_beyond_end(self) -> bool:
        """Whether the position is above ``latest``, so that it cannot be one of this log."""
        return self.position > self.latest


def to_moment(place: int | str | datetime | moments.Moment, examples: str = moments.EXAMPLES) -> moments.Moment:
    """``place`` as a Moment. Raises ValueError for anything else, with ``examples`` of what can be written."""
    if isinstance(place, moments.Edge | moments.AtOffset | moments.AtTime):
        return place
    if isinstance(place, str):
        return moments.parse_moment(place, now_ms=time.time_ns() // 1_000_000, examples=examples)
    if isinstance(place, datetime):
        return moments.AtTime(max(0, moments.to_epoch_ms(place, round_up=True)))
    if type(place) is int and place >= 0:  # excludes True
        return moments.AtOffset(moments.to_offset(place))
    raise ValueError(f"{place!r} is not a place in a log; give an offset, a time or {{partition: offset}}")


def check_isolation(value: object) -> None:
    """Raises ValueError for what is no isolation."""
    if value not in ISOLATIONS:
        raise ValueError(f"isolation is {' or '.join(map(repr, ISOLATIONS))}, not {value!r}")


def offsets_at(
    topic: str,
    at: str | datetime | moments.Moment | None,
    partitions: Sequence[int] | None,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Conversation[list[PartitionOffsets]]:
    """As ``Client.offsets``. Raises ValueError for an ``at`` that is not a time, and an unknown ``isolation``."""
    check_isolation(isolation)
    moment = None if at is None else to_moment(at)
    if moment is not None and not isinstance(moment, moments.AtTime):
        raise ValueError(f"{at!r} is not a time; to find a record by time write for example -1h or 2019-01-01")
    found, _ = yield from look_up(topic, partitions, None if moment is None else moment.timestamp, isolation)
    return [offsets._replace(latest=offsets.end(isolation)) for offsets in found]


def look_up(
    topic: str,
    partitions: Sequence[int] | None,
    timestamp: int | None,
    isolation: Isolation = READ_UNCOMMITTED,
    *,
    after_seconds: float = 0.0,
) -> Conversation[tuple[list[PartitionOffsets], str]]:
    """The ends of partitions (None: all), ordered by partition, and the topic's id, "" if the broker sends none.

    Raises the first partition's error.
    """
    asked = [
        messages.OffsetsPartition(topic, partition, timestamp)
        for partition in ([None] if partitions is None else sorted(set(map(moments.to_partition, partitions))))
    ]
    request = messages.OffsetsRequest(asked, isolation=None if isolation == READ_UNCOMMITTED else isolation)
    reply, _ = yield from ask(request, messages.OffsetsReply, is_repeatable=True, after_seconds=after_seconds)
    check(reply.partitions)
    found = sorted(map(_offsets, reply.partitions), key=lambda offsets: offsets.partition)
    return found, (reply.topic_ids or {}).get(topic, "")


def _offsets(result: messages.OffsetsResult) -> PartitionOffsets:
    latest = result.latest or 0
    return PartitionOffsets(
        result.topic,
        result.partition or 0,
        result.earliest or 0,
        latest,
        latest if result.durable is None else result.durable,
        -1 if result.leader_epoch is None else result.leader_epoch,
        result.offset,
        result.timestamp,
        result.last_stable_offset,
    )


def begin(
    topic: str, partitions: Sequence[int] | None, start: Place, until: Place | None, options: FetchOptions
) -> Conversation[list[PartitionPosition]]:
    """States of the partitions to read, each with its start and end, from one request.

    Partitions missing in a mapping begin at the earliest offset: they were added after the positions were saved.
    ``partitions`` limits which are read. Waits for partitions in recovery.
    """
    starts = moments.to_positions(start) if isinstance(start, Mapping) else to_moment(start)
    stops = moments.to_positions(until) if isinstance(until, Mapping) else None if until is None else to_moment(until)
    timestamp = starts.timestamp if isinstance(starts, moments.AtTime) else None
    found, topic_id = yield from when_recovered(
        lambda pause: look_up(topic, partitions, timestamp, options.isolation, after_seconds=pause)
    )
    states: list[PartitionPosition] = []
    for offsets in found:
        end = offsets.end(options.isolation, durable_only=options.durable_only)
        state = PartitionPosition(
            offsets.partition,
            _start(starts, offsets, end),
            earliest=offsets.earliest,
            latest=offsets.latest,
            durable=offsets.durable,
            last_stable=offsets.last_stable,
            leader_epoch=offsets.leader_epoch,
            topic_id=topic_id,
        )
        if not options.follow:
            state.end = end
        _stop_at(state, stops, offsets, end)
        if state.end is not None and not offsets.earliest <= state.position <= offsets.latest:
            state.end = max(state.end, state.position + 1)  # so that a fetch reports it as out of range
        states.append(state)
    wanted = starts if partitions is None and isinstance(starts, Mapping) else partitions
    missing = set(wanted or ()) - {state.partition for state in states}
    if missing:
        raise errors.UnknownPartitionError(
            f"{topic} has no partition {min(missing)}", topic=topic, partition=min(missing), partitions=-1
        )
    return states


def _start(starts: Mapping[int, int] | moments.Moment, offsets: PartitionOffsets, end: int) -> int:
    if isinstance(starts, moments.AtOffset):
        return starts.offset
    if isinstance(starts, moments.AtTime):
        return end if offsets.offset is None else offsets.offset
    if isinstance(starts, moments.Edge):
        return offsets.earliest if starts is moments.Edge.EARLIEST else end
    return starts.get(offsets.partition, offsets.earliest)


def _stop_at(
    state: PartitionPosition, stops: Mapping[int, int] | moments.Moment | None, offsets: PartitionOffsets, end: int
) -> None:
    if stops is None:
        return
    if isinstance(stops, moments.AtTime):
        state.until_ms = stops.timestamp
        return
    if isinstance(stops, moments.Edge):
        stop: int | None = offsets.earliest if stops is moments.Edge.EARLIEST else end
    elif isinstance(stops, moments.AtOffset):
        stop = stops.offset
    else:
        stop = stops.get(state.partition)
    if stop is not None:
        state.end = stop if state.end is None else min(state.end, stop)


# --- Lag --------------------------------------------------------------------------------------------------------------


def look_up_lag(
    topic: str,
    positions: Mapping[int, int] | Mapping[str, int],
    *,
    durable_only: bool = False,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Conversation[dict[int, PartitionLag]]:
    """As ``Client.lag``; raises the first partition's error."""
    check_isolation(isolation)
    found: dict[int, PartitionLag] = {}
    places = sorted(moments.to_positions(positions).items())
    for some in pages(places, PLACES_PER_REQUEST):
        request = messages.LagRequest([messages.LagPartition(topic, partition, offset) for partition, offset in some])
        reply, _ = yield from ask(request, messages.LagReply, is_repeatable=True)
        check(reply.partitions)
        for (partition, offset), result in zip(some, reply.partitions, strict=True):
            found[partition] = partition_lag(
                result, offset, reply.now_ms, durable_only=durable_only, isolation=isolation
            )
    return found


def partition_lag(
    result: messages.LagResult,
    position: int,
    now_ms: int,
    *,
    durable_only: bool = False,
    isolation: Isolation = READ_UNCOMMITTED,
) -> PartitionLag:
    """The lag of a position, from the broker's answer for it, which is not an error."""
    latest = result.latest or 0
    end = readable_end(latest, result.last_stable_offset, result.durable if durable_only else None, isolation)
    end = max(end, min(position, latest))  # a reader that has read further is at the end, not beyond it
    return PartitionLag(
        result.topic,
        result.partition,
        position,
        result.earliest or 0,
        end,
        now_ms,
        result.timestamp,
        result.newest_timestamp,
        result.lost_from_ms,
        result.lost_by_ms,
        result.bytes_to_come,
        result.why,
        result.earliest_reason,
        result.last_stable_offset,
    )
