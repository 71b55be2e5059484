"""CreateTopics, CreatePartitions, DeleteTopics: topics made, enlarged, deleted.

CreateTopics
  2   throttle time
  4   the broker's default numbers of partitions and replicas (-1)
  5   flexible; counts and configuration of the topic that was created
  6   THROTTLING_QUOTA_EXCEEDED
  7   topic id

CreatePartitions
  2   flexible
  3   THROTTLING_QUOTA_EXCEEDED

DeleteTopics
  1   throttle time
  3   TOPIC_DELETION_DISABLED
  4   flexible
  5   error message, THROTTLING_QUOTA_EXCEEDED
  6   topics by id
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NoReturn

from seglog_broker.config.kafka_configs import ConfigEntry, ResourceType
from seglog_broker.coordinators.groups.topics import NO_ID, id_bytes
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import TOPIC_REFUSED, Refused, failure_of
from seglog_broker.listeners.kafka.handlers.replicas import check_replicas
from seglog_broker.listeners.kafka.turns import CHANGE_COST, each_outcome
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import (
    AlterTopicRequest,
    ConfigValue,
    CreateTopicReply,
    CreateTopicRequest,
    DeleteTopicRequest,
)

DEFAULT_COUNT: Final = -1
"""Stands for the broker's default number of partitions or replicas."""

PARTITIONS_MAX: Final = 10_000
"""The most partitions that one request makes, as in Kafka."""

CREATED_BYTES: Final = 50 * PART_BYTES
"""Of a created topic in a response, with all its configuration."""

CHANGES_MAX: Final = 10_000
"""The most topics that one request deletes."""

_ANSWERED: Final = -1

_Created = messages.CreateTopicsResponse.CreatableTopicResult
_Wanted = messages.CreateTopicsRequest.CreatableTopic
_Deleted = messages.DeleteTopicsResponse.DeletableTopicResult


async def create_topics(
    context: RequestContext, request: messages.CreateTopicsRequest
) -> messages.CreateTopicsResponse:
    """Topics are created together, each with its own result."""
    response = messages.CreateTopicsResponse()
    times = Counter(topic.name for topic in request.topics)
    turns = Turns(context.turn)
    wanted_by_default = context.config.num_partitions
    made = (
        len(topic.assignments)
        or (wanted_by_default if topic.num_partitions == DEFAULT_COUNT else max(1, topic.num_partitions))
        for topic in request.topics
    )
    too_many = sum(made) > PARTITIONS_MAX
    planned: list[tuple[_Created, CreateTopicRequest]] = []
    sees, allows = context.session.sees, context.session.allows
    for wanted in request.topics:
        await turns.spend(CHANGE_COST)
        if not times[wanted.name]:
            continue  # it was answered
        result = _Created(name=wanted.name, num_partitions=-1, replication_factor=-1, error_message=None, configs=[])
        response.topics.append(result)
        try:
            _check_once("name", times.pop(wanted.name))
            if not (sees(Operation.CREATE, Kind.CLUSTER) or allows(Operation.CREATE, Kind.TOPIC, wanted.name)):
                _refuse("Authorization failed.")
            _check_amount("Excessively large number of partitions per request.", is_too_much=too_many)
            context.reserve(CREATED_BYTES)
            asked = _checked(context, wanted)
            if wanted.name not in context.topics:
                _check_rate(context, wanted_by_default if asked.partitions is None else asked.partitions, 6)
            planned.append((result, asked))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.error_code, result.error_message = failure_of(error, "CreateTopics")
    work = context.broker.check_new_topics if request.validate_only else context.broker.create_topics
    outcomes = await each_outcome(work([asked for _, asked in planned]), len(planned))
    for (result, asked), outcome in zip(planned, outcomes, strict=True):
        await turns.spend(CHANGE_COST)
        if outcome is None:
            count = context.config.num_partitions if asked.partitions is None else asked.partitions
            _describe(context, result, count, context.broker.configs.describe_new(asked.config))
        elif isinstance(outcome, CreateTopicReply):
            result.topic_id = id_bytes(outcome.topic_id)
            entries = context.broker.configs.describe(ResourceType.TOPIC, asked.topic)
            _describe(context, result, outcome.partitions, entries)
        else:
            result.error_code, result.error_message = failure_of(outcome, "CreateTopics")
    return response


def _check_once(what: str, times: int) -> None:
    if times > 1:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")


def _refuse(why: str | None) -> NoReturn:
    raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)


def _check_amount(why: str, *, is_too_much: bool) -> None:
    if is_too_much:
        raise Refused(ErrorCode.POLICY_VIOLATION, why)


def _checked(context: RequestContext, wanted: _Wanted) -> CreateTopicRequest:
    """The topic as the broker is asked for it. Raises Refused."""
    count = _partition_count(context, wanted)
    config: dict[str, ConfigValue] = {}
    for item in wanted.configs:
        if item.value is None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {item.name}")
        config[item.name] = item.value
    why = why_invalid_topic(wanted.name)
    if why is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")
    return CreateTopicRequest(wanted.name, count, config)


def _check_rate(context: RequestContext, partitions: int, strict_since: int) -> None:
    """Raise Refused for a client above its quota of partitions; older versions wait after the change instead."""
    if not context.usage.may_change(partitions, is_strict=context.version >= strict_since):
        raise Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)


def _describe(context: RequestContext, result: _Created, count: int, entries: Iterable[ConfigEntry]) -> None:
    if context.version < 5:
        return
    if context.session.sees(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, result.name):
        result.num_partitions, result.replication_factor = count, 1
        result.configs = [_config(entry) for entry in entries]
    else:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@lru_cache(maxsize=256)  # topics have most of their entries in common
def _config(entry: ConfigEntry) -> messages.CreateTopicsResponse.CreatableTopicConfigs:
    return messages.CreateTopicsResponse.CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
    )


def _partition_count(context: RequestContext, wanted: _Wanted) -> int | None:
    """The number of partitions asked for; None for the broker's default."""
    if wanted.assignments:
        return _assigned_partitions(context, wanted)
    factor = wanted.replication_factor
    if factor not in (DEFAULT_COUNT, 1) and not (factor > 1 and context.config.seglog_kafka_replication_factor_lenient):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): there is one broker, so there can only be one "
            "replica; seglog.kafka.replication.factor.lenient takes other numbers for 1."
            if factor > 1
            else "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = wanted.num_partitions
    if count != DEFAULT_COUNT and count <= 0:
        raise Refused(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    return None if count == DEFAULT_COUNT else count


def _assigned_partitions(context: RequestContext, wanted: _Wanted) -> int:
    if wanted.replication_factor != DEFAULT_COUNT:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if wanted.num_partitions != DEFAULT_COUNT:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    numbers = sorted(item.partition_index for item in wanted.assignments)
    if numbers != list(range(len(numbers))):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    for item in wanted.assignments:
        check_replicas(item.broker_ids, context.node_id)
    return len(numbers)


async def create_partitions(
    context: RequestContext, request: messages.CreatePartitionsRequest
) -> messages.CreatePartitionsResponse:
    """Partitions are added to topics, each with its own result."""
    response = messages.CreatePartitionsResponse()
    times = Counter(topic.name for topic in request.topics)
    turns = Turns(context.turn)
    left = PARTITIONS_MAX
    for wanted in request.topics:
        await turns.spend(CHANGE_COST)
        if not times[wanted.name]:
            continue  # it was answered
        result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult(name=wanted.name)
        response.results.append(result)
        try:
            _check_once("name", times.pop(wanted.name))
            if not context.session.allows(Operation.ALTER, Kind.TOPIC, wanted.name):
                _refuse(None)
            left -= (added := _added_partitions(context, wanted))
            _check_amount(f"One request adds at most {PARTITIONS_MAX} partitions.", is_too_much=left < 0)
            _check_rate(context, added, 3)
            if not request.validate_only:
                await context.broker.answer(AlterTopicRequest(wanted.name, partitions=wanted.count))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.error_code, result.error_message = failure_of(error, "CreatePartitions")
    return response


def _added_partitions(context: RequestContext, wanted: messages.CreatePartitionsRequest.CreatePartitionsTopic) -> int:
    """How many are added. Raises Refused where they cannot be."""
    topic = context.topics.get(wanted.name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    added = wanted.count - topic.partitions
    if not added:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.partitions} partition(s).")
    if added < 0:
        raise Refused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {topic.partitions} partition(s); {wanted.count} would not be an "
            "increase.",
        )
    if wanted.assignments is not None:
        if len(wanted.assignments) != added:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) "
                "were specified.",
            )
        for item in wanted.assignments:
            check_replicas(item.broker_ids, context.node_id)
    return added


async def delete_topics(
    context: RequestContext, request: messages.DeleteTopicsRequest
) -> messages.DeleteTopicsResponse:
    """Topics are deleted, by their names or ids, each with its own result."""
    response = messages.DeleteTopicsResponse()
    wanted: list[tuple[str | None, bytes]] = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if context.version >= 6
        else [(name, NO_ID) for name in request.topic_names]
    )
    topics = context.topics
    times = Counter(wanted)
    turns = Turns(context.turn)
    found = Counter(
        topic.name
        for name, topic_id in times
        if (topic := context.topic_with_id(topic_id) if name is None else topics.get(name))
    )
    for name, topic_id in wanted:
        await turns.spend(CHANGE_COST)
        if not times[name, topic_id]:
            continue  # it was answered
        topic = context.topic_with_id(topic_id) if name is None else topics.get(name)
        if topic is not None and found[topic.name] == _ANSWERED:
            continue
        result = _Deleted(name=name, topic_id=topic_id)
        response.responses.append(result)
        try:
            _check_deletion(name, topic_id, times.pop((name, topic_id)))
            _check_allowed(context, result, topic)
            if topic is not None and found[topic.name] > 1:
                found[topic.name] = _ANSWERED
                result.name, result.topic_id = topic.name, id_bytes(topic.id)
                _refuse_two_ways()
            _check_amount(
                f"One request deletes at most {CHANGES_MAX} topics.", is_too_much=len(response.responses) > CHANGES_MAX
            )
            await _delete(context, topic, name)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.error_code, result.error_message = failure_of(error, "DeleteTopics")
        else:
            assert topic is not None
            result.name, result.topic_id = topic.name, id_bytes(topic.id)
    return response


def _check_deletion(name: str | None, topic_id: bytes, times: int) -> None:
    if name is not None and topic_id != NO_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id == NO_ID:
        raise Refused(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    _check_once("id" if name is None else "name", times)


def _check_allowed(context: RequestContext, result: _Deleted, topic: Topic | None) -> None:
    """Raise Refused for a topic that the client may not delete; what it may not describe it does not learn of."""
    name = result.name if topic is None else topic.name
    sees = context.session.sees
    if (
        name is None
        or sees(Operation.DELETE, Kind.CLUSTER)
        or context.session.allows(Operation.DELETE, Kind.TOPIC, name)
    ):
        return
    if sees(Operation.DESCRIBE, Kind.TOPIC, name):
        if topic is None:
            return
        result.name = name
    _refuse(TOPIC_REFUSED)


def _refuse_two_ways() -> NoReturn:
    raise Refused(ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")


async def _delete(context: RequestContext, topic: Topic | None, name: str | None) -> None:
    if topic is None and name is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if topic is None or context.topics.get(topic.name) is not topic:  # deleted since
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    _check_rate(context, topic.partitions, 5)
    await context.broker.answer(DeleteTopicRequest(topic.name))


APIS: Final = (
    Api(19, "CreateTopics", range(2, 8), handle=create_topics, needs=(Operation.CREATE, Kind.TOPIC)),
    Api(20, "DeleteTopics", range(1, 7), handle=delete_topics, needs=(Operation.DELETE, Kind.TOPIC)),
    Api(37, "CreatePartitions", range(4), handle=create_partitions, needs=(Operation.ALTER, Kind.TOPIC)),
)
