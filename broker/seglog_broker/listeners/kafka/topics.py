"""Topics and their partitions: described, created, deleted, enlarged."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from seglog_broker.listeners.kafka.cluster import AUTHORIZED_OPERATIONS_NOT_ASKED
from seglog_broker.listeners.kafka.door import LEADER_EPOCH, Caller
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX, error_code, error_message
from seglog_broker.listeners.kafka.topic_ids import id_bytes, topic_with_id
from seglog_broker.listeners.replies import as_seglog_error
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.errors import SeglogError, TopicExistsError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import (
    AlterTopicRequest,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicRequest,
)

DEFAULT_COUNT: Final = -1
"""Stands for the broker's default number of partitions or replicas."""

EFFORT_A_TURN: Final = 500
"""Partitions that are described, or topics named, before other tasks run; a topic counts as ten."""

_EFFORT_OF_TOPIC: Final = 10
_EFFORT_OF_CHANGE: Final = 100
"""Of a topic that is created or enlarged, or refused: its name is compared with all others."""

PARTITIONS_PER_PAGE: Final = 2_000
"""The most partitions in a response to DescribeTopicPartitions. Source: Kafka's max.request.partition.size.limit."""

_NO_ID: Final = bytes(16)
_NO_LEADER: Final = -1
_DELETE_BY_ID_VERSION_MIN: Final = 6
_METADATA_BY_ID_VERSION_MIN: Final = 12

_MetadataTopic = messages.MetadataResponse.MetadataResponseTopic
_MetadataPartition = messages.MetadataResponse.MetadataResponsePartition
_DescribedTopic = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_DescribedPartition = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


# --- Described --------------------------------------------------------------------------------------------------------


async def metadata(caller: Caller, request: messages.MetadataRequest, version: int) -> messages.MetadataResponse:
    """The broker, and topics with the leaders of their partitions; missing topics are created, if both sides allow."""
    response = messages.MetadataResponse(
        brokers=[
            messages.MetadataResponse.MetadataResponseBroker(
                node_id=caller.node_id, host=caller.endpoint.host, port=caller.endpoint.port
            )
        ],
        cluster_id=caller.engine.directory.cluster_id,
        controller_id=caller.node_id,
        cluster_authorized_operations=AUTHORIZED_OPERATIONS_NOT_ASKED,
    )
    topics = caller.engine.directory.registry.topics
    turns = _Turns(caller)
    if request.topics is None or (version == 0 and not request.topics):
        for name in sorted(topics):
            topic = topics.get(name)
            await turns.work(1 if topic is None else topic.partitions)
            if topic is not None:  # else it was deleted meanwhile
                response.topics.append(_described(caller, topic))
        return response
    if version < _METADATA_BY_ID_VERSION_MIN and any(
        item.name is None or item.topic_id != _NO_ID for item in request.topics
    ):
        response.topics = [
            _MetadataTopic(error_code=ErrorCode.INVALID_REQUEST, name=item.name or "", topic_id=item.topic_id)
            for item in request.topics
        ]
        return response
    may_create = caller.config.auto_create_topics_enable and request.allow_auto_topic_creation
    for item in {(item.name, item.topic_id): item for item in request.topics}.values():  # each once, as in Kafka
        known = topics.get(item.name) if item.name is not None else topic_with_id(topics, item.topic_id)
        await turns.work(1 if known is None else known.partitions)
        if item.name is None:
            found = topic_with_id(topics, item.topic_id)
            if found is None:
                described = _MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=item.topic_id)
            else:
                described = _described(caller, found)
        elif item.name in topics:
            described = _described(caller, topics[item.name])
        elif why_invalid_topic(item.name) is not None:
            described = _MetadataTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=item.name)
        elif not may_create:
            described = _MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=item.name)
        else:
            described = await _created(caller, item.name)
        described.topic_authorized_operations = AUTHORIZED_OPERATIONS_NOT_ASKED
        response.topics.append(described)
    return response


class _Turns:
    """Lets other tasks run between the parts of a request with much work."""

    def __init__(self, caller: Caller) -> None:
        self._engine = caller.engine
        self._effort = 0

    async def work(self, effort: int) -> None:
        """Wait for a turn, if what was done in this one would become too much with ``effort`` more."""
        effort += _EFFORT_OF_TOPIC
        self._effort += effort
        if self._effort > EFFORT_A_TURN:
            self._effort = effort
            await self._engine.turn()


async def _created(caller: Caller, name: str) -> _MetadataTopic:
    try:
        await caller.engine.answer(CreateTopicRequest(name))
    except TopicExistsError:
        pass  # another connection was first
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return _MetadataTopic(error_code=error_code(as_seglog_error(error, "Metadata")), name=name)
    topic = caller.engine.directory.registry.topics.get(name)
    if topic is None:
        return _MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    return _described(caller, topic)


def _described(caller: Caller, topic: Topic) -> _MetadataTopic:
    nodes = [caller.node_id]
    partitions = []
    for number in range(topic.partitions):
        epoch = _leader_epoch(caller, topic, number)
        partitions.append(
            _MetadataPartition(
                error_code=ErrorCode.NONE if epoch is not None else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=number,
                leader_id=_NO_LEADER if epoch is None else caller.node_id,
                leader_epoch=LEADER_EPOCH if epoch is None else epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=nodes if epoch is None else [],
            )
        )
    return _MetadataTopic(
        name=topic.name,
        topic_id=id_bytes(topic.id),
        partitions=partitions,
        topic_authorized_operations=AUTHORIZED_OPERATIONS_NOT_ASKED,
    )


def _leader_epoch(caller: Caller, topic: Topic, number: int) -> int | None:
    """The leader epoch of a partition; None while it cannot be read."""
    partition = caller.engine.partitions.find_readable(topic.name, number)
    return None if partition is None else partition.log.leader_epoch


async def describe_topic_partitions(
    caller: Caller, request: messages.DescribeTopicPartitionsRequest, version: int
) -> messages.DescribeTopicPartitionsResponse:
    """Topics by name, in that order, a page of partitions at a time."""
    del version
    response = messages.DescribeTopicPartitionsResponse()
    topics = caller.engine.directory.registry.topics
    names = sorted({topic.name for topic in request.topics} if request.topics else topics)
    room = min(max(1, request.response_partition_limit), PARTITIONS_PER_PAGE)
    first, first_partition = "", 0
    if request.cursor is not None:
        first, first_partition = request.cursor.topic_name, request.cursor.partition_index
    nodes = [caller.node_id]
    turns = _Turns(caller)
    for name in names:
        await turns.work(0)
        if name < first:
            continue
        topic = topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if why_invalid_topic(name) is not None:
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            response.topics.append(_DescribedTopic(error_code=code, name=name, topic_id=_NO_ID))
            continue
        begin = max(0, first_partition) if name == first else 0
        if not room and begin < topic.partitions:
            response.next_cursor = _cursor(name, begin)
            break
        described = _DescribedTopic(
            name=name,
            topic_id=id_bytes(topic.id),
            topic_authorized_operations=AUTHORIZED_OPERATIONS_NOT_ASKED,
        )
        response.topics.append(described)
        end = min(topic.partitions, begin + room)
        for number in range(begin, end):
            epoch = _leader_epoch(caller, topic, number)
            described.partitions.append(
                _DescribedPartition(
                    error_code=ErrorCode.NONE if epoch is not None else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=number,
                    leader_id=_NO_LEADER if epoch is None else caller.node_id,
                    leader_epoch=LEADER_EPOCH if epoch is None else epoch,
                    replica_nodes=nodes,
                    isr_nodes=nodes,
                    eligible_leader_replicas=[],  # not null, which the Java client does not take
                    last_known_elr=[],
                    offline_replicas=nodes if epoch is None else [],
                )
            )
        room -= max(0, end - begin)
        if end < topic.partitions:
            response.next_cursor = _cursor(name, end)
            break
    return response


def _cursor(name: str, partition: int) -> messages.DescribeTopicPartitionsResponse.Cursor:
    return messages.DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


# --- Created ----------------------------------------------------------------------------------------------------------


async def create_topics(
    caller: Caller, request: messages.CreateTopicsRequest, version: int
) -> messages.CreateTopicsResponse:
    """Topics are created, each with its own result."""
    del version
    response = messages.CreateTopicsResponse()
    names = Counter(topic.name for topic in request.topics)
    turns = _Turns(caller)
    for wanted in request.topics:
        await turns.work(_EFFORT_OF_CHANGE)
        result = messages.CreateTopicsResponse.CreatableTopicResult(
            name=wanted.name, num_partitions=-1, replication_factor=-1, configs=[]
        )
        response.topics.append(result)
        try:
            _check_once(wanted.name, names)
            count = _partition_count(caller, wanted)
            await _create(caller, wanted, count, result, validate_only=request.validate_only)
        except _Refused as refused:
            result.error_code, result.error_message = refused.code, refused.why
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            failure = as_seglog_error(error, "CreateTopics")
            result.error_code, result.error_message = error_code(failure), error_message(failure)
    return response


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """A part of a request is refused with a code of Kafka's."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why[:MESSAGE_CHARACTERS_MAX]


def _check_once(name: str, names: Mapping[str, int]) -> None:
    if names[name] > 1:
        raise _Refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def _partition_count(caller: Caller, wanted: messages.CreateTopicsRequest.CreatableTopic) -> int | None:
    """The number of partitions asked for; None for the broker's default."""
    if wanted.assignments:
        if wanted.num_partitions != DEFAULT_COUNT or wanted.replication_factor != DEFAULT_COUNT:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                "a replica assignment goes with num.partitions and replication.factor of -1",
            )
        numbers = sorted(item.partition_index for item in wanted.assignments)
        if numbers != list(range(len(numbers))):
            raise _Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are numbered from 0, without gaps")
        _check_replicas(caller, [item.broker_ids for item in wanted.assignments])
        return len(numbers)
    factor = wanted.replication_factor
    if factor not in (DEFAULT_COUNT, 1) and not (factor > 1 and caller.config.seglog_kafka_replication_factor_lenient):
        raise _Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor}: there is one broker, so it can only be 1"
            if factor > 1
            else "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = wanted.num_partitions
    if count != DEFAULT_COUNT and count <= 0:
        raise _Refused(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    return None if count == DEFAULT_COUNT else count


def _check_replicas(caller: Caller, assignments: list[list[int]]) -> None:
    if any(nodes != [caller.node_id] for nodes in assignments):
        raise _Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {caller.node_id}, with one replica of each"
        )


async def _create(
    caller: Caller,
    wanted: messages.CreateTopicsRequest.CreatableTopic,
    count: int | None,
    result: messages.CreateTopicsResponse.CreatableTopicResult,
    *,
    validate_only: bool,
) -> None:
    config: dict[str, str] = {}
    for item in wanted.configs:
        if item.value is None:
            raise _Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {item.name}")
        config[item.name] = item.value
    topics = caller.engine.directory.registry.topics
    why = why_invalid_topic(wanted.name)
    if why is not None:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    collision = _colliding(wanted.name, topics)
    if collision is not None and wanted.name not in topics:
        raise _Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{wanted.name}' collides with existing topic: {collision}"
        )
    asked = CreateTopicRequest(wanted.name, count, dict(config))
    if validate_only:
        caller.engine.check_new_topic(asked)
    else:
        reply, _ = await caller.engine.answer(asked)
        assert isinstance(reply, CreateTopicReply)
        result.topic_id = id_bytes(reply.topic_id)
        count = reply.partitions
    result.num_partitions = caller.config.num_partitions if count is None else count
    result.replication_factor = 1


def _colliding(name: str, topics: Mapping[str, Topic]) -> str | None:
    """A topic whose name differs from ``name`` in dots and underscores only, which metrics cannot tell apart."""
    if "." not in name and "_" not in name:
        return None
    same = name.replace(".", "_")
    return next((other for other in topics if other.replace(".", "_") == same), None)


# --- Enlarged ---------------------------------------------------------------------------------------------------------


async def create_partitions(
    caller: Caller, request: messages.CreatePartitionsRequest, version: int
) -> messages.CreatePartitionsResponse:
    """Partitions are added to topics, each with its own result."""
    del version
    response = messages.CreatePartitionsResponse()
    names = Counter(topic.name for topic in request.topics)
    turns = _Turns(caller)
    for wanted in request.topics:
        await turns.work(_EFFORT_OF_CHANGE)
        result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult(name=wanted.name)
        response.results.append(result)
        try:
            _check_once(wanted.name, names)
            await _enlarge(caller, wanted, validate_only=request.validate_only)
        except _Refused as refused:
            result.error_code, result.error_message = refused.code, refused.why
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            failure = as_seglog_error(error, "CreatePartitions")
            result.error_code, result.error_message = error_code(failure), error_message(failure)
    return response


async def _enlarge(
    caller: Caller, wanted: messages.CreatePartitionsRequest.CreatePartitionsTopic, *, validate_only: bool
) -> None:
    topic = caller.engine.directory.registry.topics.get(wanted.name)
    if topic is None:
        raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if wanted.count <= topic.partitions:
        same = "already has" if wanted.count == topic.partitions else "currently has"
        raise _Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic {wanted.name} {same} {topic.partitions} partitions, and {wanted.count} were asked for: "
            "partitions can only be added",
        )
    if wanted.assignments is not None:
        if len(wanted.assignments) != wanted.count - topic.partitions:
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{wanted.count - topic.partitions} partitions are added, but {len(wanted.assignments)} assigned",
            )
        _check_replicas(caller, [item.broker_ids for item in wanted.assignments])
    if not validate_only:
        await caller.engine.answer(AlterTopicRequest(wanted.name, partitions=wanted.count))


# --- Deleted ----------------------------------------------------------------------------------------------------------


async def delete_topics(
    caller: Caller, request: messages.DeleteTopicsRequest, version: int
) -> messages.DeleteTopicsResponse:
    """Topics are deleted, by their names or ids, each with its own result."""
    response = messages.DeleteTopicsResponse()
    wanted: list[tuple[str | None, bytes]] = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if version >= _DELETE_BY_ID_VERSION_MIN
        else [(name, _NO_ID) for name in request.topic_names]
    )
    turns = _Turns(caller)
    for name, topic_id in wanted:
        await turns.work(_EFFORT_OF_CHANGE)
        result = messages.DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        response.responses.append(result)
        topics = caller.engine.directory.registry.topics
        topic = topic_with_id(topics, topic_id) if name is None else topics.get(name)
        if name is not None and topic_id != _NO_ID:
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = "You may not specify both topic name and topic id."
        elif topic is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            result.name, result.topic_id = topic.name, id_bytes(topic.id)
            try:
                await caller.engine.answer(DeleteTopicRequest(topic.name))
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                failure: SeglogError = as_seglog_error(error, "DeleteTopics")
                result.error_code, result.error_message = error_code(failure), error_message(failure)
    return response
