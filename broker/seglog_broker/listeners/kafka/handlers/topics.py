"""Metadata and DescribeTopicPartitions: topics with the leaders of their partitions.

Metadata
  0   no topic named: all topics
  1   null: all topics, none named: none; racks, controller, internal topics
  2   cluster id
  3   throttle time
  4   whether missing topics may be created
  5   offline replicas
  7   leader epochs
  8   authorized operations of cluster and topics
  9   flexible
  10  topic ids in responses
  11  no operations of the cluster: DescribeCluster has them
  12  topics by id
  13  an error of the whole response

DescribeTopicPartitions
  0   flexible; a page at a time, with a cursor
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

from seglog_broker.coordinators.groups.topics import NO_ID, id_bytes
from seglog_broker.listeners.kafka.context import LEADER_EPOCH, Api, RequestContext
from seglog_broker.listeners.kafka.errors import failure_of
from seglog_broker.listeners.kafka.handlers import cluster
from seglog_broker.listeners.kafka.turns import PARTITION_COST, TOPIC_COST, each_outcome, in_turns
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import TopicExistsError
from seglog_protocol.internal_topics import RESERVED_TOPIC, is_internal
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import CreateTopicRequest

PARTITIONS_PER_PAGE: Final = 2_000
"""The most partitions in a response to DescribeTopicPartitions. Source: Kafka's max.request.partition.size.limit."""

_NO_LEADER: Final = -1
_DESCRIBE: Final = Operation.DESCRIBE  # Python looks long for a member of an enumeration
_TOPIC: Final = Kind.TOPIC
_CLUSTER: Final = Kind.CLUSTER

_NAMELESS: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""Errors of topics without a name, or hidden: for these no operations are named. Those of other absent ones are."""

_MetadataTopic = messages.MetadataResponse.MetadataResponseTopic
_MetadataPartition = messages.MetadataResponse.MetadataResponsePartition
_DescribedTopic = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_DescribedPartition = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
_PartitionT = TypeVar("_PartitionT", _MetadataPartition, _DescribedPartition)


async def metadata(context: RequestContext, request: messages.MetadataRequest) -> messages.MetadataResponse:
    """The broker, and topics with the leaders of their partitions; missing topics are created, if both sides allow."""
    response = messages.MetadataResponse(
        brokers=[
            messages.MetadataResponse.MetadataResponseBroker(
                node_id=context.node_id, host=context.advertised.host, port=context.advertised.port
            )
        ],
        cluster_id=context.broker.directory.cluster_id,
        controller_id=context.node_id,
        cluster_authorized_operations=cluster.authorized(
            context, _CLUSTER, asked=request.include_cluster_authorized_operations
        ),
    )
    topics = context.topics
    if request.topics is None or (context.version == 0 and not request.topics):
        asked: Iterable[Topic | _MetadataTopic] = [
            topic
            async for topic in in_turns(context, sorted(topics.values(), key=attrgetter("name")))
            if _is_shown(context, topic.name)
        ]
    elif context.version < 12 and any(item.name is None or item.topic_id != NO_ID for item in request.topics):
        asked = [
            _MetadataTopic(error_code=ErrorCode.INVALID_REQUEST, name=item.name or "", topic_id=item.topic_id)
            for item in request.topics
        ]
    else:
        asked = _asked(context, request.topics)
    missing: list[str] = []
    turns = Turns(context.turn)
    for item in asked:
        partitions = item.partitions if isinstance(item, Topic) else 1
        await turns.spend(TOPIC_COST + partitions * PARTITION_COST)
        if isinstance(item, Topic) and not context.room.add(PART_BYTES * (2 + item.partitions)):
            response.topics.append(_failed(item.name, ErrorCode.INVALID_REQUEST))
        elif isinstance(item, Topic):
            current = topics.get(item.name)
            if current is not None and current.id == item.id:
                response.topics.append(_described(context, current))
            elif request.topics:  # deleted since
                response.topics.append(_failed(item.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif item.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing.append(item.name or "")
        else:
            response.topics.append(item)
    may_create = context.config.auto_create_topics_enable and request.allow_auto_topic_creation
    failures = await _create(context, missing) if may_create else {}
    for name in missing:
        topic = topics.get(name)
        await turns.spend(TOPIC_COST + PARTITION_COST * (1 if topic is None else topic.partitions))
        response.topics.append(
            _failed(name, failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            if topic is None
            else _described(context, topic)
        )
    is_asked = request.include_topic_authorized_operations
    for described in response.topics:
        if described.error_code not in _NAMELESS:
            name = described.name or ""
            described.topic_authorized_operations = cluster.authorized(context, _TOPIC, name, asked=is_asked)
    return response


def _asked(
    context: RequestContext, named: Sequence[messages.MetadataRequest.MetadataRequestTopic]
) -> Iterator[Topic | _MetadataTopic]:
    """The named topics, each once, or the errors that stand for them; those with ids only, if there are any."""
    topics = context.topics
    seen: set[str | bytes] = set()
    for item in [item for item in named if item.topic_id != NO_ID] or named:
        wanted = item.topic_id if item.topic_id != NO_ID else item.name
        if wanted is None:
            yield _failed("", ErrorCode.INVALID_REQUEST)
        elif wanted in seen:
            continue
        else:
            seen.add(wanted)
            topic = context.topic_with_id(wanted) if isinstance(wanted, bytes) else topics.get(wanted)
            name = wanted if topic is None else topic.name
            if isinstance(name, str) and not context.session.allows(_DESCRIBE, _TOPIC, name):
                hidden = _failed(None if isinstance(wanted, bytes) else wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                hidden.topic_id = item.topic_id
                yield hidden
            elif topic is not None:
                yield topic
            elif isinstance(wanted, bytes):
                failed = _failed(None, ErrorCode.UNKNOWN_TOPIC_ID)
                failed.topic_id = wanted
                yield failed
            elif why_invalid_topic(wanted) is not None:
                yield _failed(wanted, ErrorCode.INVALID_TOPIC_EXCEPTION)
            else:
                yield _failed(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _is_shown(context: RequestContext, topic: str) -> bool:
    return context.session.sees(_DESCRIBE, _TOPIC, topic)


def _failed(name: str | None, code: ErrorCode) -> _MetadataTopic:
    return _MetadataTopic(error_code=code, name=name, is_internal=name is not None and is_internal(name))


async def _create(context: RequestContext, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics with the broker's defaults. Returns name -> error; internal ones will be there when needed."""
    failed: dict[str, ErrorCode] = {}
    if names and not context.session.sees(Operation.CREATE, Kind.CLUSTER):
        async for name in in_turns(context, names):
            if not context.session.allows(Operation.CREATE, Kind.TOPIC, name):
                failed[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    made = (name for name in names if name not in failed)
    wanted = [CreateTopicRequest(name) for name in made if not is_internal(name) and name != RESERVED_TOPIC]
    context.usage.may_change(len(wanted) * context.config.num_partitions)
    outcomes = await each_outcome(context.broker.create_topics(wanted), len(wanted))
    for asked, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, TopicExistsError):
            failed[asked.topic] = failure_of(outcome, "Metadata").code
    return failed


def _described(context: RequestContext, topic: Topic) -> _MetadataTopic:
    return _MetadataTopic(
        name=topic.name,
        topic_id=id_bytes(topic.id),
        is_internal=is_internal(topic.name),
        partitions=_partitions(context, topic, range(topic.partitions), _MetadataPartition),
    )


def _partitions(
    context: RequestContext, topic: Topic, numbers: range, kind: type[_PartitionT], **more: Any
) -> list[_PartitionT]:
    """Partitions of a topic; one without a log in service has no leader."""
    nodes = [context.node_id]
    described = []
    for number in numbers:
        partition = context.broker.partitions.find_readable(topic.name, number)
        described.append(
            kind(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if partition is None else ErrorCode.NONE,
                partition_index=number,
                leader_id=_NO_LEADER if partition is None else context.node_id,
                leader_epoch=LEADER_EPOCH if partition is None else partition.log.leader_epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=nodes if partition is None else [],
                **more,
            )
        )
    return described


async def describe_topic_partitions(
    context: RequestContext, request: messages.DescribeTopicPartitionsRequest
) -> messages.DescribeTopicPartitionsResponse:
    """Topics by name, in that order, a page of partitions at a time."""
    response = messages.DescribeTopicPartitionsResponse()
    topics = context.topics
    named = {topic.name for topic in request.topics}
    room = min(max(1, request.response_partition_limit), PARTITIONS_PER_PAGE)
    first, first_partition = "", 0
    if request.cursor is not None:
        first, first_partition = request.cursor.topic_name, request.cursor.partition_index
        if first_partition < 0 or (named and first not in named):
            response.topics = [
                _DescribedTopic(
                    error_code=ErrorCode.INVALID_REQUEST,
                    name=name,
                    topic_authorized_operations=cluster.AUTHORIZED_OPERATIONS_NOT_ASKED,
                )
                for name in named
            ]
            return response
    turns = Turns(context.turn)
    hidden: list[_DescribedTopic] = []
    for name in sorted(named or topics):
        await turns.spend(TOPIC_COST)
        if name < first:
            continue
        if not _is_shown(context, name):
            if named:
                code, nothing = ErrorCode.TOPIC_AUTHORIZATION_FAILED, cluster.AUTHORIZED_OPERATIONS_NOT_ASKED
                hidden.append(_DescribedTopic(error_code=code, name=name, topic_authorized_operations=nothing))
            continue
        if not room:
            response.next_cursor = _cursor(name, 0)
            break
        topic = topics.get(name)
        if topic is None:
            if named:
                response.topics.append(_undescribed(context, name))
            continue
        begin = first_partition if name == first else 0
        end = min(topic.partitions, begin + room)
        response.topics.append(_described_part(context, topic, range(begin, end)))
        room -= max(0, end - begin)
        if end < topic.partitions:
            response.next_cursor = _cursor(name, end)
            break
    response.topics += hidden
    return response


def _undescribed(context: RequestContext, name: str) -> _DescribedTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if why_invalid_topic(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return _DescribedTopic(
        error_code=code,
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=context.session.operations(Kind.TOPIC, name),
    )


def _described_part(context: RequestContext, topic: Topic, numbers: range) -> _DescribedTopic:
    absent: list[int] = []  # not null, which the Java client does not take
    return _DescribedTopic(
        name=topic.name,
        topic_id=id_bytes(topic.id),
        is_internal=is_internal(topic.name),
        topic_authorized_operations=context.session.operations(Kind.TOPIC, topic.name),
        partitions=_partitions(
            context, topic, numbers, _DescribedPartition, eligible_leader_replicas=absent, last_known_elr=absent
        ),
    )


def _cursor(name: str, partition: int) -> messages.DescribeTopicPartitionsResponse.Cursor:
    return messages.DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


APIS: Final = (
    Api(3, "Metadata", range(14), handle=metadata),
    Api(75, "DescribeTopicPartitions", range(1), handle=describe_topic_partitions),
)
