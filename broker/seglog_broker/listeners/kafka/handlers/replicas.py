"""Where replicas are, with one node and one log directory; and what seglog does not have: delegation tokens.

Tokens are answered as Kafka does where there are none.

AlterReplicaLogDirs
  1   throttle time
  2   flexible

DescribeLogDirs
  1   throttle time
  2   flexible
  3   an error of the whole response
  4   bytes of the disk, in all and usable
  5   whether a directory is cordoned

ElectLeaders
  0   of preferred leaders
  1   election type, an error of the whole response
  2   flexible

AlterPartitionReassignments
  0   flexible
  1   whether the number of replicas may change

ListPartitionReassignments
  0   flexible

CreateDelegationToken, DescribeDelegationToken
  2   flexible
  3   owner, and who asked for it

RenewDelegationToken, ExpireDelegationToken
  2   flexible
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.error_responses import error_response
from seglog_broker.listeners.kafka.errors import Refused
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime import budget
from seglog_broker.security.principals import ANONYMOUS
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
from seglog_protocol.access import CLUSTER, Kind, Operation
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Response

PARTITIONS_A_TURN: Final = budget.items_of(30)
"""Partitions that are looked at before other tasks run."""

_NOT_KNOWN: Final = -1

_Directory = messages.DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = messages.DescribeLogDirsResponse.DescribeLogDirsTopic
_Partition = messages.DescribeLogDirsResponse.DescribeLogDirsPartition

log = get_logger()


async def describe_log_dirs(
    context: RequestContext, request: messages.DescribeLogDirsRequest
) -> messages.DescribeLogDirsResponse:
    """The log directory with the sizes (bytes) of the partitions asked for, of all if none are named."""
    code = context.code_for(Operation.DESCRIBE, Kind.CLUSTER, CLUSTER)
    if code:
        return messages.DescribeLogDirsResponse(error_code=code)
    space = context.broker.directory.space
    directory = _Directory(log_dir=_path(context), total_bytes=space.total, usable_bytes=_NOT_KNOWN, topics=[])
    try:
        directory.usable_bytes = (await context.broker.offload.maintenance(space.measure)).free
    except OSError as error:
        log.warning("disk_not_measured", path=directory.log_dir, reason=str(error))
    topics: dict[str, _Topic] = {}
    for number, partition in enumerate(_wanted(context, request)):
        if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
            await context.turn()
        if partition is None:
            continue
        await context.broker.learn_sizes([partition.log])
        try:
            size = partition.log.size
        except (OSError, SeglogError) as error:  # deleted since, or its files cannot be read
            log.debug("size_not_known", topic=partition.topic, partition=partition.number, reason=str(error))
            continue
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = _Topic(name=partition.topic, partitions=[])
            directory.topics.append(topic)
        topic.partitions.append(_Partition(partition_index=partition.number, partition_size=size))
    return messages.DescribeLogDirsResponse(results=[directory])


def _wanted(context: RequestContext, request: messages.DescribeLogDirsRequest) -> Iterator[Partition | None]:
    """The partitions asked for, each once; None for one that is not in service."""
    table = context.broker.partitions
    if request.topics is None:
        for name, topic in list(context.topics.items()):
            for number in range(topic.partitions):
                yield table.find_readable(name, number)
        return
    seen: set[tuple[str, int]] = set()
    for asked in request.topics:
        for number in asked.partitions:
            partition = table.find_readable(asked.topic, number)
            if partition is None or (asked.topic, number) in seen:
                yield None
            else:
                seen.add((asked.topic, number))
                yield partition


async def alter_replica_log_dirs(
    context: RequestContext, request: messages.AlterReplicaLogDirsRequest
) -> messages.AlterReplicaLogDirsResponse:
    """Partitions are moved to the directory where they are; there is no other one."""
    cls = messages.AlterReplicaLogDirsResponse
    topics: dict[str, messages.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = {}
    path = _path(context)
    for directory in request.dirs:
        for topic in directory.topics:
            fresh = cls.AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[])
            result = topics.setdefault(topic.name, fresh)
            async for number in in_turns(context, topic.partitions):
                if directory.path != path:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif context.broker.partitions.find_readable(topic.name, number) is None:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    code = ErrorCode.NONE
                moved = cls.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                result.partitions.append(moved)
    return cls(results=list(topics.values()))


def _path(context: RequestContext) -> str:
    return str(Path(context.broker.directory.path).absolute())


_ELECTION_TYPES: Final = (0, 1)  # of preferred leaders, and unclean

_Elected = messages.ElectLeadersResponse.PartitionResult


async def elect_leaders(
    context: RequestContext, request: messages.ElectLeadersRequest
) -> messages.ElectLeadersResponse:
    """Every partition has its only leader already."""
    response = messages.ElectLeadersResponse()
    topics = context.topics
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
        await context.turn()
        result = messages.ElectLeadersResponse.ReplicaElectionResult(topic=wanted.topic, partition_result=[])
        response.replica_election_results.append(result)
        topic = topics.get(wanted.topic)
        shown = wanted.topic[:TOPIC_NAME_MAX]
        async for number in in_turns(context, wanted.partitions):
            if unknown_type is not None:
                code, why = ErrorCode.INVALID_REQUEST, unknown_type
            elif topic is None:
                code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {shown}"
            elif not 0 <= number < topic.partitions:
                code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {shown}-{number}"
            else:
                code, why = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
            result.partition_result.append(_Elected(partition_id=number, error_code=code, error_message=why))
    return response


async def alter_partition_reassignments(
    context: RequestContext, request: messages.AlterPartitionReassignmentsRequest
) -> messages.AlterPartitionReassignmentsResponse:
    """Replicas can only be where they are."""
    cls = messages.AlterPartitionReassignmentsResponse
    response = cls(allow_replication_factor_change=request.allow_replication_factor_change, error_message=None)
    for topic in request.topics:
        await context.turn()
        answered = cls.ReassignableTopicResponse(name=topic.name, partitions=[])
        response.responses.append(answered)
        async for item in in_turns(context, topic.partitions):
            result = cls.ReassignablePartitionResponse(partition_index=item.partition_index, error_message=None)
            answered.partitions.append(result)
            try:
                _reassign(context, topic.name, item.partition_index, item.replicas)
            except Refused as refused:
                result.error_code, result.error_message = refused.failure
    return response


def _reassign(context: RequestContext, topic: str, partition: int, replicas: list[int] | None) -> None:
    known = context.topics.get(topic)
    if known is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    if not 0 <= partition < known.partitions:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{partition}.")
    if replicas is None:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    check_replicas(replicas, context.node_id)


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
    context: RequestContext, request: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    """None is ever under way."""
    del context, request
    return messages.ListPartitionReassignmentsResponse(error_message=None)


def _without_token(context: RequestContext, request: Request) -> Response:
    """Kafka's error for whoever may have no token, or its error where the configuration has no secret for them."""
    code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if context.session.principal == ANONYMOUS:
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return error_response(request, context.version, code, "")


def create_token(context: RequestContext, request: messages.CreateDelegationTokenRequest) -> Response:
    """No token, for the owner that was asked for, or for who asks."""
    kind, _, name = context.session.principal.partition(":")
    response = _without_token(context, request)
    assert isinstance(response, messages.CreateDelegationTokenResponse)
    response.principal_type = response.token_requester_principal_type = kind
    response.principal_name = response.token_requester_principal_name = name
    if request.owner_principal_name and request.owner_principal_type is not None:
        response.principal_type, response.principal_name = request.owner_principal_type, request.owner_principal_name
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        session = context.session
        is_known = session.principal not in (ANONYMOUS, owner)
        if is_known and not session.allows(Operation.CREATE_TOKENS, Kind.USER, owner):
            response.error_code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return response


_ALTER: Final = (Operation.ALTER, Kind.CLUSTER)

APIS: Final = (
    Api(34, "AlterReplicaLogDirs", range(1, 3), handle=alter_replica_log_dirs, needs=_ALTER),
    Api(35, "DescribeLogDirs", range(1, 6), handle=describe_log_dirs),
    Api(43, "ElectLeaders", range(3), handle=elect_leaders, needs=_ALTER),
    Api(
        45,
        "AlterPartitionReassignments",
        range(2),
        handle=alter_partition_reassignments,
        needs=_ALTER,
    ),
    Api(46, "ListPartitionReassignments", range(1), list_partition_reassignments, asks=Ask(Operation.DESCRIBE)),
    Api(38, "CreateDelegationToken", range(1, 4), create_token),
    Api(39, "RenewDelegationToken", range(1, 3), _without_token),
    Api(40, "ExpireDelegationToken", range(1, 3), _without_token),
    Api(41, "DescribeDelegationToken", range(1, 4), _without_token),
)
