"""Producers, and transactions: their partitions and offsets, ends and markers, descriptions for administrators.

The rules of TxnOffsetCommit are those of Kafka's KafkaApis and OffsetMetadataManager.

AddPartitionsToTxn
  2   PRODUCER_FENCED
  3   flexible

AddOffsetsToTxn
  2   PRODUCER_FENCED
  3   flexible
  4   TRANSACTION_ABORTABLE

EndTxn
  2   PRODUCER_FENCED
  3   flexible
  4   TRANSACTION_ABORTABLE
  5   the producer id and epoch to go on with: transaction version 2

WriteTxnMarkers
  1   flexible
  2   transaction version

TxnOffsetCommit
  2   leader epoch of the record
  3   flexible; the member of the group
  4   TRANSACTION_ABORTABLE
  5   adds the group's partition to the transaction: transaction version 2
  6   topics by id; STALE_MEMBER_EPOCH

DescribeTransactions
  0   flexible

ListTransactions
  0   flexible
  1   duration
  2   a pattern of transactional ids

InitProducerId
  2   flexible
  3   the id and epoch of a producer that goes on
  4   PRODUCER_FENCED
  5   TRANSACTION_ABORTABLE

DescribeProducers
  0   flexible
"""

from collections.abc import Iterator, Sequence
from typing import Final, cast

from seglog_broker.coordinators.client_patterns import ClientPattern, PatternError
from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import STATES
from seglog_broker.coordinators.transactions.service.service import TransactionFilter
from seglog_broker.listeners.kafka.context import Api, Ask, Repeats, RequestContext
from seglog_broker.listeners.kafka.error_responses import error_response_in_steps
from seglog_broker.listeners.kafka.errors import error_code, failure_of, group_failure, transaction_code
from seglog_broker.listeners.kafka.handlers.group_offsets import answer_commit, offsets_to_commit
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.logger import get_logger
from seglog_broker.runtime import budget
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_protocol import errors
from seglog_protocol.access import CLUSTER, Kind, Operation
from seglog_protocol.internal_topics import is_internal
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import InitProducerReply, InitProducerRequest
from seglog_protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from seglog_protocol.steps import in_turns_of

ADDS_PARTITION_VERSION: Final = 5
"""The first version that adds the group's partition to the transaction; before, AddOffsetsToTxn does that."""

_Topic = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def txn_offset_commit(
    context: RequestContext, request: messages.TxnOffsetCommitRequest
) -> messages.TxnOffsetCommitResponse:
    """Store offsets, each with its own result; answered once they are durable."""
    code = context.code_for(Operation.READ, Kind.GROUP, request.group_id)
    if code:
        refused = await in_turns_of(error_response_in_steps(request, context.version, code, None), context.turn)
        return cast("messages.TxnOffsetCommitResponse", refused)
    response = messages.TxnOffsetCommitResponse()
    kinds = _Topic, _Partition
    wanted, places = await offsets_to_commit(
        context, request.topics, response.topics, kinds, by_id=context.version >= 6
    )
    if wanted:
        await answer_commit(context, places, _commit(context, request, wanted), _code)
    return response


async def _commit(
    context: RequestContext, request: messages.TxnOffsetCommitRequest, wanted: Sequence[OffsetToCommit]
) -> Sequence[errors.SeglogError | None]:
    committer = Committer(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
    transaction = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    context.groups.check_named(request.group_id)
    if context.version >= ADDS_PARTITION_VERSION:
        await context.transactions.add_offsets(request.transactional_id, transaction, request.group_id, version=2)
    else:
        context.transactions.check_producer(request.transactional_id, transaction)
    return await context.groups.commit(request.group_id, committer, wanted, transaction)


def _code(context: RequestContext, error: Exception | None) -> ErrorCode:
    """The code for ``error`` that clients of the request's version know."""
    if isinstance(error, errors.StaleMemberEpochError) and context.version < 6:
        return ErrorCode.ILLEGAL_GENERATION
    if isinstance(error, errors.InvalidTransactionStateError) and context.version >= 4:
        return ErrorCode.TRANSACTION_ABORTABLE
    if isinstance(error, errors.CoordinatorLoadingError) and context.version < 2:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # producers before Kafka 2.0 do not know the other code
    return ErrorCode.NONE if error is None else transaction_code(error, "TxnOffsetCommit", context.version)


_REPEATS: Final = Repeats(((("topics", "partitions"), "committed_offset"),), ("topics", "partitions"))


ENDS_BY_VERSION_2: Final = 5
"""The first version of EndTxn by which the epoch rises with the end of each transaction."""

_AddedPartition = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_AddedTopic = messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult


async def add_partitions(
    context: RequestContext, request: messages.AddPartitionsToTxnRequest
) -> messages.AddPartitionsToTxnResponse:
    """All partitions of a request, or none of them, become part of the transaction."""
    partitions = [(topic.name, number) for topic in request.v3_and_below_topics for number in topic.partitions]
    refused: dict[tuple[str, int], ErrorCode] = {}
    barred = {  # the broker's own for everyone: as in Kafka
        topic.name
        for topic in request.v3_and_below_topics
        if is_internal(topic.name) or not context.session.allows(Operation.WRITE, Kind.TOPIC, topic.name)
    }
    async for key in in_turns(context, partitions):
        if key[0] in barred:
            refused[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            continue
        try:
            context.broker.partitions.topic_with(*key)
        except (errors.UnknownTopicError, errors.UnknownPartitionError):
            refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    code = ErrorCode.OPERATION_NOT_ATTEMPTED
    if not refused:
        producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        try:
            await context.transactions.add_partitions(
                request.v3_and_below_transactional_id, producer, partitions, version=1
            )
            code = ErrorCode.NONE
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            code = transaction_code(error, "AddPartitionsToTxn", context.version)
    response = messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[])
    answered = {
        topic.name: _AddedTopic(name=topic.name, results_by_partition=[])
        for topic in request.v3_and_below_topics
        if topic.partitions or not refused  # as in Kafka
    }
    response.results_by_topic_v3_and_below = list(answered.values())
    async for topic, number in in_turns(context, dict.fromkeys(partitions)):
        answered[topic].results_by_partition.append(
            _AddedPartition(partition_index=number, partition_error_code=refused.get((topic, number), code))
        )
    return response


async def add_offsets(
    context: RequestContext, request: messages.AddOffsetsToTxnRequest
) -> messages.AddOffsetsToTxnResponse:
    """What a group commits in the transaction will be part of it."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        context.check(Operation.READ, Kind.GROUP, request.group_id)
        await context.transactions.add_offsets(request.transactional_id, producer, request.group_id, version=1)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return messages.AddOffsetsToTxnResponse(error_code=transaction_code(error, "AddOffsetsToTxn", context.version))
    return messages.AddOffsetsToTxnResponse()


async def end(context: RequestContext, request: messages.EndTxnRequest) -> messages.EndTxnResponse:
    """A transaction is committed or aborted: the outcome is durable, its markers follow."""
    try:
        producer = await context.transactions.end(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            version=2 if context.version >= ENDS_BY_VERSION_2 else 1,
        )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return messages.EndTxnResponse(
            error_code=transaction_code(error, "EndTxn", context.version),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return messages.EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


_Marked = messages.WriteTxnMarkersResponse.WritableTxnMarkerResult
_MarkedTopic = messages.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_MarkedPartition = messages.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def write_markers(
    context: RequestContext, request: messages.WriteTxnMarkersRequest
) -> messages.WriteTxnMarkersResponse:
    """Markers of an operator, who ends a transaction that hangs: ``kafka-transactions abort``."""
    if not context.session.sees(Operation.ALTER, Kind.CLUSTER):
        code = context.code_for(Operation.CLUSTER_ACTION, Kind.CLUSTER, CLUSTER)
        if code:
            refused = await in_turns_of(error_response_in_steps(request, context.version, code, None), context.turn)
            return cast("messages.WriteTxnMarkersResponse", refused)
    response = messages.WriteTxnMarkersResponse(markers=[])
    is_refused = False
    without_partitions: list[_Marked] = []
    for marker in request.markers:
        wanted = TransactionEnd(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            max(1, marker.transaction_version),
        )
        keys = [(topic.name, number) for topic in marker.topics for number in topic.partition_indexes]
        if not keys:
            without_partitions.append(_Marked(producer_id=marker.producer_id, topics=[]))
            continue  # it has no answer, as in Kafka
        failed = await context.transactions.markers.write(wanted, keys)
        is_refused = is_refused or any(isinstance(error, errors.InvalidRequestError) for error in failed.values())
        result = _Marked(producer_id=marker.producer_id, topics=[])
        response.markers.append(result)
        for topic in marker.topics:
            if not topic.partition_indexes:
                continue
            marked = _MarkedTopic(name=topic.name, partitions=[])
            result.topics.append(marked)
            async for number in in_turns(context, topic.partition_indexes):
                error = failed.get((topic.name, number))
                code = ErrorCode.NONE if error is None else transaction_code(error, "WriteTxnMarkers", context.version)
                marked.partitions.append(_MarkedPartition(partition_index=number, error_code=code))
    if is_refused:  # as in Kafka, which answers all markers then, and no partition otherwise
        response.markers += without_partitions
        for result in response.markers:
            async for each in in_turns(context, [each for topic in result.topics for each in topic.partitions]):
                each.error_code = ErrorCode.INVALID_REQUEST
    return response


async def describe(
    context: RequestContext, request: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    """What is known of transactional ids."""
    response = messages.DescribeTransactionsResponse()
    turns = budget.Turns(context.turn)
    async for transactional_id in in_turns(context, request.transactional_ids):
        result = messages.DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id, topics=[])
        response.transaction_states.append(result)
        result.error_code = context.code_for(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, transactional_id)
        if result.error_code:
            continue
        try:
            described = context.transactions.describe(transactional_id)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.error_code = transaction_code(error, "DescribeTransactions", context.version)
            continue
        facts = described.facts
        result.transaction_state = facts.state.title
        result.transaction_timeout_ms = facts.timeout_ms
        result.transaction_start_time_ms = facts.start_ms
        result.producer_id, result.producer_epoch = facts.producer
        for topic, numbers in facts.partitions.items():
            await turns.spend(len(numbers))
            if not context.session.sees(Operation.DESCRIBE, Kind.TOPIC, topic):
                continue
            context.reserve(PART_BYTES + 4 * len(numbers))
            result.topics.append(
                messages.DescribeTransactionsResponse.TopicData(topic=topic, partitions=sorted(numbers))
            )
    return response


async def list_all(
    context: RequestContext, request: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    """The transactional ids that pass the filters of the request."""
    response = messages.ListTransactionsResponse()
    response.unknown_state_filters = [state for state in request.state_filters if state not in STATES]
    states = [STATES[state] for state in request.state_filters if state in STATES]
    if request.state_filters and not states:
        return response
    wanted = TransactionFilter(
        states,
        frozenset(request.producer_id_filters),
        request.duration_filter if request.duration_filter >= 0 else None,
    )
    try:
        pattern = ClientPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        found = await context.transactions.list_all(wanted, pattern)
    except PatternError:
        response.unknown_state_filters = []
        response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
        return response
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        response.unknown_state_filters = []
        response.error_code = group_failure(error, "ListTransactions").code
        return response
    async for each in in_turns(context, found):
        if not context.session.sees(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, each.transactional_id):
            continue
        context.reserve(PART_BYTES)
        response.transaction_states.append(
            messages.ListTransactionsResponse.TransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.facts.producer_id,
                transaction_state=each.facts.state.title,
            )
        )
    return response


PRODUCERS_A_TURN: Final = budget.items_of(4)
"""Producers that are described before other tasks run."""

log = get_logger()

_ProducersOfPartition = messages.DescribeProducersResponse.PartitionResponse
_Producer = messages.DescribeProducersResponse.ProducerState


async def describe_producers(
    context: RequestContext, request: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """The producers that partitions know, each partition once."""
    response = messages.DescribeProducersResponse()
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        answered = messages.DescribeProducersResponse.TopicResponse(name=topic.name, partitions=[])
        response.topics.append(answered)
        for number in topic.partition_indexes:
            if (topic.name, number) in seen:
                continue
            seen.add((topic.name, number))
            await context.turn()
            result = _ProducersOfPartition(partition_index=number, active_producers=[])
            answered.partitions.append(result)
            try:
                context.check(Operation.READ, Kind.TOPIC, topic.name)
                for producer in _producers(context, topic.name, number):
                    if len(result.active_producers) % PRODUCERS_A_TURN == PRODUCERS_A_TURN - 1:
                        await context.turn()
                    result.active_producers.append(producer)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                result.active_producers = []
                result.error_code, result.error_message = failure_of(error, "DescribeProducers")
    return response


def _producers(context: RequestContext, topic: str, number: int) -> Iterator[_Producer]:
    why = why_invalid_topic(topic)
    if why is not None:
        raise errors.InvalidTopicError(f"{topic[:60]!r} cannot be a topic's name: {why}", topic=topic[:60])
    if number < 0:
        raise errors.UnknownPartitionError(f"there is no partition {number}", topic=topic, partition=number)
    log = context.broker.partitions.readable(topic, number).log
    for entry in list(log.producers.entries()):
        context.reserve(PART_BYTES)
        yield _Producer(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.current_txn_first_offset,
        )


def _may_produce(context: RequestContext, transactional_id: str | None) -> ErrorCode:
    """The code for who may not use a transactional id, or has none and may write nowhere; NONE for others."""
    if transactional_id is not None:
        return context.code_for(Operation.WRITE, Kind.TRANSACTIONAL_ID, transactional_id)
    if context.session.sees(Operation.WRITE, Kind.TOPIC, None):
        return ErrorCode.NONE
    return context.code_for(Operation.IDEMPOTENT_WRITE, Kind.CLUSTER, CLUSTER)


async def init_producer_id(
    context: RequestContext, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """A producer id: a new one, or for a transactional producer its own, with an epoch that fences those before it."""
    code = _may_produce(context, request.transactional_id)
    if code:
        return messages.InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return messages.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_PRODUCER_EPOCH)
    producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    try:
        if request.transactional_id is None:
            reply, _ = await context.broker.answer(InitProducerRequest())
            assert isinstance(reply, InitProducerReply)
            producer_id, epoch = reply.producer_id, reply.producer_epoch
        else:
            expected = None
            if request.producer_id != NO_PRODUCER_ID:
                expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            producer_id, epoch = await context.transactions.init_producer(
                request.transactional_id, request.transaction_timeout_ms, expected
            )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        if request.transactional_id is None:
            code = error_code(as_seglog_error(error, "InitProducerId"))
        else:
            code = transaction_code(error, "InitProducerId", context.version)
            if isinstance(error, errors.InvalidRequestError | errors.InvalidTransactionTimeoutError):
                # The response has a code alone, and the client ends by it: what it is to do stands here.
                log.warning(
                    "transactional_producer_refused",
                    transactional_id=request.transactional_id[:100],
                    error=code.name,
                    reason=error.message,
                )
    return messages.InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)


_WRITE: Final = Ask(Operation.WRITE, Kind.TRANSACTIONAL_ID, "transactional_id")
_WRITE_EARLY: Final = _WRITE._replace(field="v3_and_below_transactional_id")

APIS: Final = (
    Api(22, "InitProducerId", range(6), handle=init_producer_id),
    Api(24, "AddPartitionsToTxn", range(4), handle=add_partitions, begins=True, asks=_WRITE_EARLY),
    Api(25, "AddOffsetsToTxn", range(5), handle=add_offsets, begins=True, asks=_WRITE),
    Api(26, "EndTxn", range(6), handle=end, begins=True, asks=_WRITE),
    Api(27, "WriteTxnMarkers", range(1, 3), handle=write_markers),
    Api(28, "TxnOffsetCommit", range(7), handle=txn_offset_commit, begins=True, asks=_WRITE, repeats=_REPEATS),
    Api(65, "DescribeTransactions", range(1), handle=describe),
    Api(66, "ListTransactions", range(3), handle=list_all),
    Api(61, "DescribeProducers", range(1), handle=describe_producers),
)
