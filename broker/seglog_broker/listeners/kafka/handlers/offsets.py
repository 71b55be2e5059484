"""OffsetForLeaderEpoch and DeleteRecords: the ends of partitions, looked up and moved; and ListOffsets that waits.

DeleteRecords
  2   flexible

OffsetForLeaderEpoch
  2   current leader epoch, throttle time
  3   id of a replica that asks
  4   flexible
"""

from typing import Final

from seglog_broker.listeners.kafka.context import Api, Repeats, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, error_code, error_message
from seglog_broker.listeners.kafka.handlers.fetch import epoch_error
from seglog_broker.listeners.kafka.handlers.list_offsets import ListOffsets, list_offsets
from seglog_broker.listeners.kafka.turns import PARTITION_COST
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.runtime.budget import Turns
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import OffsetsReply, TruncatePartition, TruncateReply, TruncateRequest
from seglog_protocol.steps import in_turns_of

_HIGH_WATERMARK: Final = -1
_NO_OFFSET: Final = -1


async def list_offsets_slowly(
    context: RequestContext, request: messages.ListOffsetsRequest
) -> messages.ListOffsetsResponse:
    """As ``list_offsets``, as long as it takes."""
    asked = ListOffsets(context, request)
    await in_turns_of(asked.read(), context.turn)
    if asked.request is not None:
        try:
            reply, _ = await context.broker.answer(asked.request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            asked.fail(error)
        else:
            assert isinstance(reply, OffsetsReply)
            asked.note(reply)
    return asked.response


def missing_partition(context: RequestContext, topic: str, number: int) -> Failure | None:
    """The error of a partition that does not exist; None if there is one."""
    try:
        context.broker.partitions.topic_with(topic, number)
    except SeglogError as error:
        return Failure(error_code(error), error_message(error))
    return None


async def offsets_for_leader_epoch(
    context: RequestContext, request: messages.OffsetForLeaderEpochRequest
) -> messages.OffsetForLeaderEpochResponse:
    """Where the leader epochs that clients know end in the log."""
    response = messages.OffsetForLeaderEpochResponse()
    turns = Turns(context.turn)
    sees_all = context.session.sees(Operation.CLUSTER_ACTION, Kind.CLUSTER)
    for topic in request.topics:
        code = ErrorCode.NONE if sees_all else context.code_for(Operation.DESCRIBE, Kind.TOPIC, topic.topic)
        answered = messages.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answered)
        for item in topic.partitions:
            result = messages.OffsetForLeaderEpochResponse.EpochEndOffset(partition=item.partition, error_code=code)
            answered.partitions.append(result)
            await turns.spend(PARTITION_COST)
            if code:
                continue
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
    turns = Turns(context.turn)
    for topic in request.topics:
        code = context.code_for(Operation.DELETE, Kind.TOPIC, topic.name)
        answered = messages.DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(answered)
        for item in topic.partitions:
            place = messages.DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=item.partition_index, low_watermark=_NO_OFFSET, error_code=code
            )
            answered.partitions.append(place)
            await turns.spend(PARTITION_COST)
            if code:
                continue
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


_REPEATS: Final = Repeats(
    ((("topics", "partitions"), "timestamp"),),
    ("topics", "partitions"),
    ("error_code", "timestamp", "offset", "leader_epoch"),
)

APIS: Final = (
    Api(2, "ListOffsets", range(1, 12), list_offsets, list_offsets_slowly, repeats=_REPEATS),
    Api(21, "DeleteRecords", range(3), handle=delete_records, needs=(Operation.DELETE, Kind.TOPIC)),
    Api(23, "OffsetForLeaderEpoch", range(2, 5), handle=offsets_for_leader_epoch),
)
