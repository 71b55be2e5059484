"""Leaders and replicas where there is one of each: DescribeQuorum, ElectLeaders, reassignments of partitions."""

from collections import Counter
from typing import Final

from seglog_broker.listeners.kafka.door import LEADER_EPOCH, Caller
from seglog_broker.listeners.kafka.errors import Refused
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

METADATA_TOPIC: Final = "__cluster_metadata"
UNKNOWN_PARTITION: Final = "This server does not host this topic-partition."

_ELECTION_TYPES: Final = (0, 1)  # of preferred leaders, and unclean
_NO_DIRECTORY_ID: Final = bytes(16)

_Quorum = messages.DescribeQuorumResponse.PartitionData
_Elected = messages.ElectLeadersResponse.PartitionResult


async def describe_quorum(
    caller: Caller, request: messages.DescribeQuorumRequest, version: int
) -> messages.DescribeQuorumResponse:
    """A quorum of this node alone. It keeps no log of metadata, so its offsets are 0."""
    del version
    now_ms = caller.engine.clock.now_ms()
    response = messages.DescribeQuorumResponse(error_message="")
    for topic in request.topics:
        answered = messages.DescribeQuorumResponse.TopicData(topic_name=topic.topic_name, partitions=[])
        response.topics.append(answered)
        async for item in in_turns(caller, topic.partitions):
            partition = _Quorum(partition_index=item.partition_index, error_message="")
            answered.partitions.append(partition)
            if (topic.topic_name, item.partition_index) != (METADATA_TOPIC, 0):
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partition.error_message = UNKNOWN_PARTITION
                continue
            partition.leader_id = caller.node_id
            partition.leader_epoch = LEADER_EPOCH
            partition.current_voters = [
                messages.DescribeQuorumResponse.ReplicaState(
                    replica_id=caller.node_id,
                    replica_directory_id=_NO_DIRECTORY_ID,
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ]
            response.nodes = [
                messages.DescribeQuorumResponse.Node(
                    node_id=caller.node_id,
                    listeners=[
                        messages.DescribeQuorumResponse.Listener(
                            name="PLAINTEXT", host=caller.endpoint.host, port=caller.endpoint.port
                        )
                    ],
                )
            ]
    return response


async def elect_leaders(
    caller: Caller, request: messages.ElectLeadersRequest, version: int
) -> messages.ElectLeadersResponse:
    """Every partition has its only leader already."""
    del version
    response = messages.ElectLeadersResponse()
    topics = caller.engine.directory.registry.topics
    asked = request.topic_partitions
    unknown_type = None
    if request.election_type not in _ELECTION_TYPES:
        response.error_code = ErrorCode.INVALID_REQUEST
        unknown_type = f"Unknown election type {request.election_type}"
    if asked is None:
        if unknown_type is None:  # partitions that need no election are left out here
            response.replica_election_results = [
                messages.ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=[]) for name in topics
            ]
        return response
    for wanted in asked:
        await caller.turn()
        result = messages.ElectLeadersResponse.ReplicaElectionResult(topic=wanted.topic, partition_result=[])
        response.replica_election_results.append(result)
        topic = topics.get(wanted.topic)
        shown = wanted.topic[:TOPIC_NAME_MAX]
        async for number in in_turns(caller, wanted.partitions):
            place = _Elected(partition_id=number)
            result.partition_result.append(place)
            if unknown_type is not None:
                place.error_code, place.error_message = ErrorCode.INVALID_REQUEST, unknown_type
            elif topic is None:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                place.error_message = f"No such topic as {shown}"
            elif not 0 <= number < topic.partitions:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                place.error_message = f"No such partition as {shown}-{number}"
            else:
                place.error_code = ErrorCode.ELECTION_NOT_NEEDED
                place.error_message = "Leader election not needed for topic partition."
    return response


async def alter_partition_reassignments(
    caller: Caller, request: messages.AlterPartitionReassignmentsRequest, version: int
) -> messages.AlterPartitionReassignmentsResponse:
    """Replicas can only be where they are."""
    del version
    response = messages.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    for topic in request.topics:
        await caller.turn()
        answered = messages.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
            name=topic.name, partitions=[]
        )
        response.responses.append(answered)
        async for item in in_turns(caller, topic.partitions):
            result = messages.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=item.partition_index, error_message=None
            )
            answered.partitions.append(result)
            try:
                _reassign(caller, topic.name, item.partition_index, item.replicas)
            except Refused as refused:
                result.error_code, result.error_message = refused.failure
    return response


def _reassign(caller: Caller, topic: str, partition: int, replicas: list[int] | None) -> None:
    known = caller.engine.directory.registry.topics.get(topic)
    if known is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    if not 0 <= partition < known.partitions:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{partition}.")
    if replicas is None:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    check_replicas(replicas, caller.node_id)


def check_replicas(replicas: list[int], node_id: int) -> None:
    """Raise Refused unless these are replicas that a partition can have: the one on the only node."""
    where = "The manual partition assignment includes"
    if not replicas:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where} an empty replica list.")
    for broker in sorted(set(replicas)):
        if broker != node_id:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where} broker {broker}, but no such broker is registered."
            )
    if Counter(replicas)[node_id] > 1:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{where} the broker {node_id} more than once.")


def list_partition_reassignments(
    caller: Caller, request: messages.ListPartitionReassignmentsRequest, version: int
) -> messages.ListPartitionReassignmentsResponse:
    """None is ever under way."""
    del caller, request, version
    return messages.ListPartitionReassignmentsResponse(error_message=None)
