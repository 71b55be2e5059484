"""How far places in partitions are behind their ends, and when retention reaches them.

When a place is lost is what ``explain`` tells of the segment that holds it: the verdicts of the code that deletes, and
the schedule it keeps. What is told of the future holds as things stand, see there.
"""

from functools import partial
from typing import Final

import trio

from seglog_broker.api.explain import ExplainContext, Holders, explain_holders
from seglog_broker.api.result_errors import as_result
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.errors import CorruptRecordError, InvalidRequestError, SeglogError
from seglog_protocol.messages import LagReply, LagRequest, LagResult
from seglog_protocol.record_batch import NO_TIMESTAMP

LAG_PARTITIONS_MAX: Final = 1_000
"""Places in one request."""


async def tell_lag(context: ExplainContext, table: PartitionTable, request: LagRequest) -> LagReply:
    """One result for each place asked for. A partition is looked at once, and others get their turn meanwhile.

    InvalidRequestError for more than LAG_PARTITIONS_MAX places.
    """
    if len(request.partitions) > LAG_PARTITIONS_MAX:
        raise InvalidRequestError(f"at most {LAG_PARTITIONS_MAX} partitions in one request", field="partitions")
    asked: dict[tuple[str, int], set[int]] = {}
    for item in request.partitions:
        asked.setdefault((item.topic, item.partition), set()).add(item.offset)
    told: dict[tuple[str, int], dict[int, LagResult]] = {}
    for (topic, number), offsets in asked.items():
        await trio.lowlevel.checkpoint()
        try:
            partition = table.partition(topic, number)
            try:
                told[topic, number] = await _tell_places(context, partition, offsets)
            except SeglogError as error:
                raise partition.with_partition(error) from error
        except SeglogError as error:
            told[topic, number] = dict.fromkeys(offsets, LagResult(topic, number, error=as_result(error)))
    results = [told[item.topic, item.partition][item.offset] for item in request.partitions]
    return LagReply(results, context.clock.now_ms())


async def _tell_places(context: ExplainContext, partition: Partition, offsets: set[int]) -> dict[int, LagResult]:
    start = partition.log.log_start_offset
    try:
        holders = await explain_holders(context, partition, {max(offset, start) for offset in offsets})
    except OSError as error:
        raise storage_error(f"its segments could not be looked into: {why(error)}; ask again", error) from error
    told: dict[int, LagResult] = {}
    for offset in sorted(offsets):
        await trio.lowlevel.checkpoint()
        told[offset] = await context.reads.retry_after_cold_read(partial(_tell_place, partition, offset, holders))
    return told


def _tell_place(partition: Partition, offset: int, holders: Holders) -> LagResult:
    log = partition.log
    start, end = log.log_start_offset, log.log_end_offset
    place = max(offset, start)  # one below the start has lost what lay there; it can still lose what is first now
    holder = holders.get(place) if place < end else None
    return LagResult(
        partition.topic,
        partition.number,
        earliest=start,
        latest=end,
        durable=log.durable_end_offset,
        timestamp=_timestamp_at(log, place) if place < end else None,
        newest_timestamp=_newest_timestamp(log),
        earliest_reason=log.state.log_start_reason,
        segment=None if holder is None else holder.base_offset,
        lost_from_ms=None if holder is None else holder.leaves_from_ms,
        lost_by_ms=None if holder is None else holder.leaves_by_ms,
        bytes_to_come=None if holder is None else holder.bytes_to_come,
        why=None if holder is None else holder.why,
    )


def _timestamp_at(log: PartitionLog, offset: int) -> int | None:
    """The timestamp (ms) of the first record in the batch that holds or follows ``offset``; None: it has none.

    Records are not opened, so that of the very record may be later. None also where the place cannot be read.
    """
    try:
        place = log.seek(offset)
    except CorruptRecordError:
        return None
    if place is None:
        return None
    header = place[1].header
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp
    return None if timestamp <= NO_TIMESTAMP else timestamp


def _newest_timestamp(log: PartitionLog) -> int | None:
    """The largest timestamp (ms) of the newest segment that has one, of the last two; None for none."""
    for segment in reversed(log.segments[-2:]):
        if segment.largest_timestamp != NO_TIMESTAMP:
            return segment.largest_timestamp
    return None
