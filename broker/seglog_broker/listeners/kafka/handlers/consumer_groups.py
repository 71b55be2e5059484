"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: groups in which the broker assigns. Source of the rules: KIP-848.

ConsumerGroupHeartbeat
  0   flexible
  1   subscription by regular expression; a member makes its id itself

ConsumerGroupDescribe
  0   flexible
  1   type of a member: classic or consumer
"""

from collections.abc import Iterable
from typing import Final

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_description import ConsumerMemberDescription, PartitionsOfTopic
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import group_failure
from seglog_broker.listeners.kafka.handlers import cluster
from seglog_broker.listeners.kafka.handlers.group_admin import MEMBER_BYTES
from seglog_broker.listeners.kafka.turns import PARTITION_COST, TOPIC_COST, in_turns
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.errors import InvalidRequestError
from seglog_protocol.kafka import messages

NAME_COST: Final = 0.2
"""Names of topics, or numbers of partitions, that cost as much as a part of a response."""


_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1

_Described = messages.ConsumerGroupDescribeResponse.DescribedGroup
_Member = messages.ConsumerGroupDescribeResponse.Member
_Assignment = messages.ConsumerGroupDescribeResponse.Assignment


async def consumer_group_heartbeat(
    context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest
) -> messages.ConsumerGroupHeartbeatResponse:
    """A member joins, stays or leaves, and gets its assignment; answered once its records are durable."""
    owned = request.topic_partitions
    try:
        _check_names(context, request)
        result = await context.groups.consumer_heartbeat(
            request.group_id,
            ConsumerHeartbeat(
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topics=request.subscribed_topic_names,
                regex=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                owned=None if owned is None else await _owned(context, owned),
                client_id=context.client_id or "",
                client_host=context.client_address,
            ),
        )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, why = group_failure(error, "ConsumerGroupHeartbeat")
        return messages.ConsumerGroupHeartbeatResponse(error_code=code, error_message=why)
    response = messages.ConsumerGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
    )
    if result.assignment is not None:
        response.assignment = messages.ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                messages.ConsumerGroupHeartbeatResponse.TopicPartitions(
                    topic_id=topic, partitions=sorted(result.assignment[topic])
                )
                async for topic in in_turns(context, sorted(result.assignment))
            ]
        )
    return response


def _check_names(context: RequestContext, request: messages.ConsumerGroupHeartbeatRequest) -> None:
    if not request.group_id.strip():
        raise InvalidRequestError("group_id must not be empty: set group.id", field="group_id")
    if context.version >= 1 and not request.member_id:
        raise InvalidRequestError("member_id must not be empty: since version 1 members make it", field="member_id")


async def _owned(
    context: RequestContext, topics: Iterable[messages.ConsumerGroupHeartbeatRequest.TopicPartitions]
) -> Assignment:
    owned: dict[bytes, frozenset[int]] = {}
    async for topic in in_turns(context, topics):
        if topic.partitions:
            topic_id = bytes(topic.topic_id)
            owned[topic_id] = owned.get(topic_id, frozenset()) | frozenset(topic.partitions)
    return owned


# --- ConsumerGroupDescribe --------------------------------------------------------------------------------------------


async def consumer_group_describe(
    context: RequestContext, request: messages.ConsumerGroupDescribeRequest
) -> messages.ConsumerGroupDescribeResponse:
    """Groups of the consumer protocol with their members. Any other is GROUP_ID_NOT_FOUND."""
    response = messages.ConsumerGroupDescribeResponse()
    turns = Turns(context.turn)
    for name in dict.fromkeys(request.group_ids):
        await turns.spend(TOPIC_COST)
        described = _Described(group_id=name)
        response.groups.append(described)
        try:
            context.reserve(PART_BYTES + 2 * len(name))
            found = context.groups.describe_consumer(name)
            described.members = [await _member_in_turn(context, turns, member) for member in found.members]
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            described.error_code, described.error_message = group_failure(error, "ConsumerGroupDescribe")
            continue
        described.group_state = found.state
        described.group_epoch = found.group_epoch
        described.assignment_epoch = found.assignment_epoch
        described.assignor_name = found.assignor
        described.authorized_operations = cluster.authorized(
            context, cluster.GROUP_OPERATIONS, asked=request.include_authorized_operations
        )
    return response


async def _member_in_turn(context: RequestContext, turns: Turns, member: ConsumerMemberDescription) -> _Member:
    """A member with its subscription and assignments, which may be very many topics."""
    topics = [*member.assigned, *member.target]
    partitions = sum([len(item.partitions) for item in topics])
    await turns.spend(TOPIC_COST + NAME_COST * (len(member.topics) + partitions) + PARTITION_COST * len(topics))
    context.reserve(
        MEMBER_BYTES + PART_BYTES * (len(member.topics) + 2 * len(topics)) + 2 * PART_BYTES * partitions // 8
    )
    return _member(member)


def _member(member: ConsumerMemberDescription) -> _Member:
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(member.target),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(topics: Iterable[PartitionsOfTopic]) -> _Assignment:
    return _Assignment(
        topic_partitions=[
            messages.ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=item.topic_id, topic_name=item.topic, partitions=list(item.partitions)
            )
            for item in topics
        ]
    )


APIS: Final = (
    Api(68, "ConsumerGroupHeartbeat", range(2), handle=consumer_group_heartbeat),
    Api(69, "ConsumerGroupDescribe", range(2), handle=consumer_group_describe),
)
