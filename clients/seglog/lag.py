"""How far a reader is behind: in records, in seconds, and how long until retention reaches its position."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.argument_checks import check_isolation
from seglog.conversations import Conversation, ask, pages
from seglog.fetching import readable_end
from seglog.moments import to_positions
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation
from seglog_protocol.messages import LagPartition, LagReply, LagRequest, LagResult

PLACES_PER_REQUEST: Final = 1_000


class PartitionLag(NamedTuple):
    """Lag of one partition at a position, and when its records are deleted; timestamps are epoch ms.

    [``earliest``, ``latest``) can be read; with ``durable_only``, ``latest`` is the end that survives power loss, and
    at isolation "read_committed" at most the last stable offset.
    ``timestamp`` is that of the first record in the batch to be read next (None: no timestamp or no record), so that
    ``seconds`` is never too small; ``newest_timestamp`` is the largest near the end, ``now_ms`` the broker's time.

    Retention deletes the records at the position between ``loss_from_ms`` and ``loss_by_ms``, or sooner, when
    ``bytes_to_loss`` more bytes are appended, by ``retention.bytes``; None: they are kept as things stand. ``why`` is
    the broker's explanation, as in ``explain segments``.
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

    @property
    def records(self) -> int:
        """Offsets left to read."""
        return max(0, self.latest - max(self.position, self.earliest))

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
    places = sorted(to_positions(positions).items())
    for some in pages(places, PLACES_PER_REQUEST):
        request = LagRequest([LagPartition(topic, partition, offset) for partition, offset in some])
        reply, _ = yield from ask(request, LagReply, is_repeatable=True)
        for (partition, offset), result in zip(some, reply.partitions, strict=True):
            if result.error is not None:
                raise result.error
            found[partition] = partition_lag(
                result, offset, reply.now_ms, durable_only=durable_only, isolation=isolation
            )
    return found


def partition_lag(
    result: LagResult,
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
    )
