"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: how far share groups are.

Source of the rules: Kafka's KafkaApis and GroupCoordinatorService.

DescribeShareGroupOffsets
  0   flexible; null: all partitions that the group reads, or has read
  1   lag

AlterShareGroupOffsets
  0   flexible; of a group without members, which is made where it is not known

DeleteShareGroupOffsets
  0   flexible; of all partitions of topics, in a group without members
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from seglog_broker.coordinators.groups.topics import NO_ID, id_bytes
from seglog_broker.coordinators.share.in_flight import NO_OFFSET
from seglog_broker.coordinators.share.records import NO_COUNT, PartitionKey
from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import GROUP_REFUSED, TOPIC_REFUSED, failure_of, group_failure
from seglog_broker.listeners.kafka.turns import PARTITION_COST, TOPIC_COST, in_turns
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

_Group = messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
_Topic = messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
_Partition = messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
_AskedTopic = messages.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic
_AlteredTopic = messages.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
_AlteredPartition = messages.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition
_DeletedTopic = messages.DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic

_UNKNOWN: Final = "This server does not host this topic-partition."
_NOTHING: Final = "There is no offset information to delete."


# --- DescribeShareGroupOffsets ----------------------------------------------------------------------------------------


async def describe_share_group_offsets(
    context: RequestContext, request: messages.DescribeShareGroupOffsetsRequest
) -> messages.DescribeShareGroupOffsetsResponse:
    """Where share groups are in partitions, and how many records they have not done with."""
    response = messages.DescribeShareGroupOffsetsResponse()
    turns = Turns(context.turn)
    for asked in request.groups:
        await turns.spend(TOPIC_COST)
        group = _Group(group_id=asked.group_id)
        response.groups.append(group)
        group.error_code = context.code_for(Operation.DESCRIBE, Kind.GROUP, asked.group_id)
        if group.error_code:
            continue
        try:
            topics = _all_topics(context, asked.group_id) if asked.topics is None else _by_name(asked.topics)
            context.reserve(PART_BYTES + 2 * len(asked.group_id))
            for name, numbers in topics.items():
                await turns.spend(TOPIC_COST)
                context.reserve(PART_BYTES + 2 * len(name))
                topic = context.topics.get(name)
                found = _Topic(topic_name=name, topic_id=NO_ID if topic is None else id_bytes(topic.id))
                code = context.code_for(Operation.DESCRIBE, Kind.TOPIC, name)
                if code and asked.topics is None:
                    continue
                group.topics.append(found)
                for number in dict.fromkeys(numbers):
                    await turns.spend(PARTITION_COST)
                    context.reserve(PART_BYTES)
                    found.partitions.append(
                        _Partition(partition_index=number, error_code=code, error_message=TOPIC_REFUSED)
                        if code
                        else _described(context, name, PartitionKey(asked.group_id, found.topic_id, number))
                    )
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            group.topics = []
            group.error_code, group.error_message = group_failure(error, "DescribeShareGroupOffsets")
    return response


def _all_topics(context: RequestContext, group: str) -> Mapping[str, Sequence[int]]:
    """The partitions of a group by name, without those of deleted topics. Raises CoordinatorLoadingError."""
    context.broker.share.check_loaded()
    found = {}
    for topic_id, numbers in context.broker.share.partitions_of(group).items():
        topic = context.topic_with_id(topic_id)
        if topic is not None:
            found[topic.name] = numbers
    return found


def _by_name(asked: Iterable[_AskedTopic]) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for topic in asked:
        found.setdefault(topic.topic_name, []).extend(topic.partitions)
    return found


def _described(context: RequestContext, topic: str, key: PartitionKey) -> _Partition:
    found = _Partition(partition_index=key.partition, start_offset=NO_OFFSET)
    machine = context.broker.share.find(key)
    if machine is None:
        return found
    found.start_offset, found.leader_epoch = machine.start_offset, machine.leader_epoch
    if machine.start_offset != NO_OFFSET and machine.finished != NO_COUNT:
        try:
            end = context.broker.partitions.readable(topic, key.partition).log.log_end_offset
        except SeglogError as error:
            code, why = failure_of(error, "DescribeShareGroupOffsets")
            return _Partition(partition_index=key.partition, error_code=code, error_message=why)
        found.lag = end - machine.start_offset - machine.finished
    return found


# --- AlterShareGroupOffsets -------------------------------------------------------------------------------------------


async def alter_share_group_offsets(
    context: RequestContext, request: messages.AlterShareGroupOffsetsRequest
) -> messages.AlterShareGroupOffsetsResponse:
    """A group without members reads on from other offsets, whatever it has done with before; -1: by its settings."""
    response = messages.AlterShareGroupOffsetsResponse()
    wanted: dict[bytes, dict[int, int]] = {}
    for asked in request.topics:
        topic = context.topics.get(asked.topic_name)
        topic_id = NO_ID if topic is None else id_bytes(topic.id)
        answered = _AlteredTopic(topic_name=asked.topic_name, topic_id=topic_id)
        response.responses.append(answered)
        code = context.code_for(Operation.READ, Kind.TOPIC, asked.topic_name)
        async for item in in_turns(context, asked.partitions):
            place = _AlteredPartition(partition_index=item.partition_index)
            answered.partitions.append(place)
            if code:
                place.error_code, place.error_message = code, TOPIC_REFUSED
            elif topic is None or not 0 <= item.partition_index < topic.partitions:
                place.error_code, place.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN
            elif item.start_offset < NO_OFFSET:
                place.error_code = ErrorCode.INVALID_REQUEST
                place.error_message = f"{item.start_offset} is no offset"
            else:
                wanted.setdefault(topic_id, {})[item.partition_index] = item.start_offset
    try:
        context.groups.check_named(request.group_id)
        if wanted:
            await context.groups.shares.alter(request.group_id, wanted)
        elif context.groups.has(request.group_id):
            context.groups.shares.find(request.group_id).check_delete()
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, why = group_failure(error, "AlterShareGroupOffsets")
        return messages.AlterShareGroupOffsetsResponse(error_code=code, error_message=why)
    return response


# --- DeleteShareGroupOffsets ------------------------------------------------------------------------------------------


async def delete_share_group_offsets(
    context: RequestContext, request: messages.DeleteShareGroupOffsetsRequest
) -> messages.DeleteShareGroupOffsetsResponse:
    """A group without members forgets topics: where it is in them, and what it has done with there."""
    response = messages.DeleteShareGroupOffsetsResponse()
    names = list(dict.fromkeys(asked.topic_name for asked in request.topics))
    wanted: set[bytes] = set()
    try:
        context.groups.check_named(request.group_id)
        shared = context.groups.shares.find(request.group_id).shared
        async for name in in_turns(context, names):
            answered = _DeletedTopic(topic_name=name)
            response.responses.append(answered)
            topic = context.topics.get(name)
            code = context.code_for(Operation.READ, Kind.TOPIC, name)
            if code:
                answered.error_code, answered.error_message = code, TOPIC_REFUSED
            elif topic is not None and any(id_bytes(topic.id) in known for known in shared):
                answered.topic_id = id_bytes(topic.id)
                wanted.add(answered.topic_id)
            else:
                answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answered.error_message = _UNKNOWN if topic is None else _NOTHING
        await context.groups.shares.forget(request.group_id, wanted)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, why = group_failure(error, "DeleteShareGroupOffsets")
        return messages.DeleteShareGroupOffsetsResponse(error_code=code, error_message=why)
    return response


_READ: Final = Operation.READ, Kind.GROUP
_DELETE: Final = Operation.DELETE, Kind.GROUP

APIS: Final = (
    Api(90, "DescribeShareGroupOffsets", range(2), handle=describe_share_group_offsets, is_carried=True),
    Api(
        91,
        "AlterShareGroupOffsets",
        range(1),
        handle=alter_share_group_offsets,
        asks=Ask(*_READ, "group_id", GROUP_REFUSED),
        needs=_READ,
        is_carried=True,
    ),
    Api(
        92,
        "DeleteShareGroupOffsets",
        range(1),
        handle=delete_share_group_offsets,
        asks=Ask(*_DELETE, "group_id", GROUP_REFUSED),
        needs=_DELETE,
        is_carried=True,
    ),
)
