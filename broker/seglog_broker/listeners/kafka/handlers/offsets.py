"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the ends of partitions, looked up and moved.

ListOffsets
  1   one offset, and the timestamp of its record
  2   isolation level, throttle time
  4   leader epochs
  5   OFFSET_NOT_AVAILABLE
  6   flexible
  7   the largest timestamp (-3)
  8   the earliest local offset (-4)
  9   the latest tiered offset (-5)
  10  a timeout of tiered storage
  11  the earliest offset that waits for its upload (-6)

DeleteRecords
  2   flexible

OffsetForLeaderEpoch
  2   current leader epoch, throttle time
  3   id of a replica that asks
  4   flexible
"""

from collections import Counter
from types import MappingProxyType
from typing import Final

from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, error_code, error_message
from seglog_broker.listeners.kafka.handlers.fetch import epoch_error, isolation_of
from seglog_broker.listeners.kafka.turns import PARTITION_COST, PARTITIONS_A_TURN
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.budget import Turns
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import (
    OffsetsPartition,
    OffsetsReply,
    OffsetsRequest,
    OffsetsResult,
    TruncatePartition,
    TruncateReply,
    TruncateRequest,
)
from seglog_protocol.record_batch import NO_TIMESTAMP

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
"""Moments with a meaning of their own (Kafka's ListOffsetsRequest). Here nothing is tiered, all is local."""

SEGMENT_COST: Final = 0.1
"""Microseconds to compare the largest timestamp of a segment."""

_NEVER: Final = 1 << 15
_VERSIONS_MIN: Final = MappingProxyType(
    {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
)
"""The versions of ListOffsets since which these are known."""

_HIGH_WATERMARK: Final = -1
_NO_OFFSET: Final = -1

_OffsetsPartition = messages.ListOffsetsResponse.ListOffsetsPartitionResponse
_OffsetsTopic = messages.ListOffsetsResponse.ListOffsetsTopicResponse


async def list_offsets(context: RequestContext, request: messages.ListOffsetsRequest) -> messages.ListOffsetsResponse:
    """The offsets at moments: the first record at or after a timestamp (ms), or an end of the log."""
    response = messages.ListOffsetsResponse()
    times = Counter((topic.name, item.partition_index) for topic in request.topics for item in topic.partitions)
    topics: dict[str, _OffsetsTopic] = {}
    wanted: list[OffsetsPartition] = []
    places: list[tuple[_OffsetsPartition, int]] = []
    turns = Turns(context.turn)
    for topic in request.topics:
        answered = topics.get(topic.name)
        if answered is None:
            answered = topics[topic.name] = _OffsetsTopic(name=topic.name)
            response.topics.append(answered)
        for item in topic.partitions:
            place = _OffsetsPartition(partition_index=item.partition_index)
            if times[topic.name, item.partition_index] != 1:
                if times.pop((topic.name, item.partition_index), 0):  # else it was answered
                    place.error_code = ErrorCode.INVALID_REQUEST
                    answered.partitions.append(place)
                continue
            answered.partitions.append(place)
            partition = context.broker.partitions.find_readable(topic.name, item.partition_index)
            segments = 0 if partition is None or item.timestamp != MAX_TIMESTAMP else len(partition.log.segments)
            await turns.spend(PARTITION_COST + SEGMENT_COST * segments)
            if item.timestamp < 0 and context.version < _VERSIONS_MIN.get(item.timestamp, _NEVER):
                place.error_code = ErrorCode.UNSUPPORTED_VERSION
                continue
            if partition is not None:
                refusal = epoch_error(item.current_leader_epoch, partition.log.leader_epoch)
                if refusal is not None:
                    place.error_code = refusal
                    continue
            if item.partition_index < 0:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            moment = item.timestamp if item.timestamp >= 0 else None
            if item.timestamp == MAX_TIMESTAMP and partition is not None:
                moment = _largest_timestamp(partition)
                if moment is None:
                    continue  # an empty log: no record, and no error
            wanted.append(OffsetsPartition(topic.name, item.partition_index, moment))
            places.append((place, item.timestamp))
    if wanted:
        try:
            reply, _ = await context.broker.answer(OffsetsRequest(wanted, isolation_of(request.isolation_level)))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            for place, _ in places:
                place.error_code = error_code(as_seglog_error(error, "ListOffsets"))
            return response
        assert isinstance(reply, OffsetsReply)
        for (place, asked), result in zip(places, reply.partitions, strict=True):
            if result.error is not None:
                place.error_code = error_code(result.error)
                continue
            assert result.earliest is not None
            assert result.latest is not None
            assert result.leader_epoch is not None
            if asked in (EARLIEST, EARLIEST_LOCAL):
                place.offset = result.earliest
            elif asked == LATEST:
                place.offset = result.latest
            elif asked in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
                place.offset = _NO_OFFSET
            elif result.offset is not None:
                place.offset = result.offset
                place.timestamp = _NO_OFFSET if result.timestamp is None else result.timestamp
            if place.offset != _NO_OFFSET:
                place.leader_epoch = (
                    result.leader_epoch if asked == LATEST else _epoch_of(context, result, place.offset)
                )
    return response


def _epoch_of(context: RequestContext, result: OffsetsResult, offset: int) -> int:
    """The leader epoch under which a record was written; that of the end if the partition is gone."""
    assert result.partition is not None
    assert result.leader_epoch is not None
    partition = context.broker.partitions.find_readable(result.topic, result.partition)
    return result.leader_epoch if partition is None else partition.log.epochs.epoch_for(offset)


def missing_partition(context: RequestContext, topic: str, number: int) -> Failure | None:
    """The error of a partition that does not exist; None if there is one."""
    try:
        context.broker.partitions.topic_with(topic, number)
    except SeglogError as error:
        return Failure(error_code(error), error_message(error))
    return None


def _largest_timestamp(partition: Partition) -> int | None:
    """The largest timestamp (ms) of a partition; None if no record has one."""
    largest = max(segment.largest_timestamp for segment in partition.log.segments)
    return None if largest == NO_TIMESTAMP else largest


async def offsets_for_leader_epoch(
    context: RequestContext, request: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    """Where the leader epochs that clients know end in the log."""
    response = messages.OffsetForLeaderEpochResponse()
    count = 0
    for topic in request.topics:
        answered = messages.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answered)
        for item in topic.partitions:
            result = messages.OffsetForLeaderEpochResponse.EpochEndOffset(partition=item.partition)
            answered.partitions.append(result)
            count += 1
            if count % PARTITIONS_A_TURN == 0:
                await context.turn()
            if item.partition < 0:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            try:
                partition = context.broker.partitions.partition(topic.topic, item.partition)
            except SeglogError as error:
                result.error_code = error_code(error)
                continue
            refusal = epoch_error(item.current_leader_epoch, partition.log.leader_epoch)
            if refusal is not None:
                result.error_code = refusal
                continue
            log = partition.log
            result.leader_epoch, result.end_offset = log.epochs.end_offset_for(item.leader_epoch, log.log_end_offset)
    return response


async def delete_records(
    context: RequestContext, request: messages.DeleteRecordsRequest
) -> messages.DeleteRecordsResponse:
    """Records before an offset are deleted; answered when the new log starts survive a power cut."""
    response = messages.DeleteRecordsResponse()
    wanted: list[TruncatePartition] = []
    places: list[messages.DeleteRecordsResponse.DeleteRecordsPartitionResult] = []
    count = 0
    for topic in request.topics:
        answered = messages.DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answered)
        for item in topic.partitions:
            place = messages.DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=item.partition_index, low_watermark=_NO_OFFSET
            )
            answered.partitions.append(place)
            count += 1
            if count % PARTITIONS_A_TURN == 0:
                await context.turn()
            if item.offset < _HIGH_WATERMARK or item.partition_index < 0:
                missing = missing_partition(context, topic.name, item.partition_index)
                place.error_code = ErrorCode.OFFSET_OUT_OF_RANGE if missing is None else missing.code
            else:
                offset = None if item.offset == _HIGH_WATERMARK else item.offset
                wanted.append(TruncatePartition(topic.name, item.partition_index, offset))
                places.append(place)
    if wanted:
        try:
            reply, _ = await context.broker.answer(TruncateRequest(wanted))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            for place in places:
                place.error_code = error_code(as_seglog_error(error, "DeleteRecords"))
            return response
        assert isinstance(reply, TruncateReply)
        for place, result in zip(places, reply.partitions, strict=True):
            if result.error is not None:
                place.error_code = error_code(result.error)
            else:
                assert result.earliest is not None
                place.low_watermark = result.earliest
    return response


APIS: Final = (
    Api(2, "ListOffsets", range(1, 12), handle=list_offsets),
    Api(21, "DeleteRecords", range(3), handle=delete_records),
    Api(23, "OffsetForLeaderEpoch", range(2, 5), handle=offsets_for_leader_epoch),
)
