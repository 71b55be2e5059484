"""The lag of readers: the distance of an offset from the log end, and when retention will delete its record.

The latter is the prediction of ``explain segments`` for the segment with that offset, with the same caveats.
"""

from functools import partial
from typing import Final

import trio

from seglog_broker.api.explain import ExplainContext, Holders, explain_holders
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.errors import (
    CorruptRecordError,
    InvalidRequestError,
    SeglogError,
    SegmentAwaitedError,
    without_frames,
)
from seglog_protocol.messages import LagReply, LagRequest, LagResult
from seglog_protocol.record_batch import NO_TIMESTAMP

LAG_PARTITIONS_MAX: Final = 1_000
"""The most offsets in one request."""


async def measure_lag(context: ExplainContext, request: LagRequest) -> LagReply:
    """One result for each offset in the request; those of a partition are computed together, between other tasks.

    Raises InvalidRequestError for more than LAG_PARTITIONS_MAX offsets.
    """
    if len(request.partitions) > LAG_PARTITIONS_MAX:
        raise InvalidRequestError(f"at most {LAG_PARTITIONS_MAX} partitions in one request", field="partitions")
    wanted: dict[tuple[str, int], set[int]] = {}
    for item in request.partitions:
        wanted.setdefault((item.topic, item.partition), set()).add(item.offset)
    found: dict[tuple[str, int], dict[int, LagResult]] = {}
    for (topic, number), offsets in wanted.items():
        await trio.lowlevel.checkpoint()
        try:
            partition = context.common.table.partition(topic, number)
            try:
                found[topic, number] = await _measure_partition(context, partition, offsets)
            except SeglogError as error:
                raise partition.with_partition(error) from error
        except SeglogError as error:
            found[topic, number] = dict.fromkeys(offsets, LagResult(topic, number, error=without_frames(error)))
    results = [found[item.topic, item.partition][item.offset] for item in request.partitions]
    return LagReply(results, context.common.clock.now_ms())


async def _measure_partition(context: ExplainContext, partition: Partition, offsets: set[int]) -> dict[int, LagResult]:
    start = partition.log.log_start_offset
    try:
        holders = await explain_holders(context, partition, {max(offset, start) for offset in offsets})
    except OSError as error:
        raise storage_error(f"its segments could not be read: {why(error)}; try again", error) from error
    found: dict[int, LagResult] = {}
    for offset in sorted(offsets):
        await trio.lowlevel.checkpoint()
        found[offset] = await context.common.scheduler.retry_after_cold_read(
            partial(_measure, partition, offset, holders)
        )
    return found


def _measure(partition: Partition, offset: int, holders: Holders) -> LagResult:
    log = partition.log
    start, end = log.log_start_offset, log.log_end_offset
    next_offset = max(offset, start)  # records below the log start are lost already
    holder = holders.get(next_offset) if next_offset < end else None
    return LagResult(
        partition.topic,
        partition.number,
        earliest=start,
        latest=end,
        durable=log.durable_end_offset,
        timestamp=_timestamp_at(log, next_offset) if next_offset < end else None,
        newest_timestamp=_newest_timestamp(log),
        earliest_reason=log.state.log_start_reason,
        segment=None if holder is None else holder.base_offset,
        lost_from_ms=None if holder is None else holder.leaves_from_ms,
        lost_by_ms=None if holder is None else holder.leaves_by_ms,
        bytes_to_come=None if holder is None else holder.bytes_to_come,
        why=None if holder is None else holder.why,
        last_stable_offset=log.last_stable_offset,
    )


def _timestamp_at(log: PartitionLog, offset: int) -> int | None:
    """The timestamp (ms) of the first record in the batch with ``offset``, or the next one; None if it has none.

    Records are not opened, so the timestamp of the record itself may be later. None also if the batch is damaged, or
    still to come from a backup.
    """
    try:
        found = log.seek(offset)
    except (CorruptRecordError, SegmentAwaitedError):
        return None
    if found is None:
        return None
    header = found[1].header
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp
    return None if timestamp <= NO_TIMESTAMP else timestamp


def _newest_timestamp(log: PartitionLog) -> int | None:
    """The largest timestamp (ms) of the last segment, or of the one before if it has none; None if both have none."""
    for segment in reversed(log.segments[-2:]):
        if segment.largest_timestamp != NO_TIMESTAMP:
            return segment.largest_timestamp
    return None
