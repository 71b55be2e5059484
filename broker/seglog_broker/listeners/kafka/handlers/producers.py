"""Producers and transactions: InitProducerId, DescribeProducers, ListTransactions, DescribeTransactions.

InitProducerId
  2   flexible
  3   the id and epoch of a producer that goes on
  4   PRODUCER_FENCED
  5   TRANSACTION_ABORTABLE

DescribeProducers
  0   flexible

DescribeTransactions
  0   flexible

ListTransactions
  0   flexible
  1   duration
  2   a pattern of transactional ids
"""

from collections.abc import Iterator
from typing import Final

from seglog_broker.coordinators.groups.client_patterns import ClientPattern, PatternError
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import error_code, failure_of
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.runtime import budget
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.errors import InvalidTopicError, UnknownPartitionError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import InitProducerReply, InitProducerRequest
from seglog_protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

PRODUCERS_A_TURN: Final = budget.items_of(4)
"""Producers that are described before other tasks run."""

_STATES: Final = frozenset(
    {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    }
)  # fmt: skip

_Partition = messages.DescribeProducersResponse.PartitionResponse
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
            result = _Partition(partition_index=number, active_producers=[])
            answered.partitions.append(result)
            try:
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
        raise InvalidTopicError(f"{topic[:60]!r} cannot be a topic's name: {why}", topic=topic[:60])
    if number < 0:
        raise UnknownPartitionError(f"there is no partition {number}", topic=topic, partition=number)
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


def list_transactions(
    context: RequestContext, request: messages.ListTransactionsRequest
) -> messages.ListTransactionsResponse:
    """There are no transactions."""
    del context
    response = messages.ListTransactionsResponse()
    try:
        ClientPattern(request.transactional_id_pattern or "")
    except PatternError:
        response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
        return response
    response.unknown_state_filters = [state for state in request.state_filters if state not in _STATES]
    return response


async def describe_transactions(
    context: RequestContext, request: messages.DescribeTransactionsRequest
) -> messages.DescribeTransactionsResponse:
    """No transactional id is known."""
    return messages.DescribeTransactionsResponse(
        transaction_states=[
            messages.DescribeTransactionsResponse.TransactionState(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id, topics=[]
            )
            async for transactional_id in in_turns(context, request.transactional_ids)
        ]
    )


async def init_producer_id(
    context: RequestContext, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """A new producer id. Transactional producers are refused: there are no transactions."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return messages.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_PRODUCER_EPOCH)
    if request.transactional_id is not None:
        code = (
            ErrorCode.INVALID_REQUEST
            if not request.transactional_id
            else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # final for every client, unlike other codes
        )
        return messages.InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    try:
        reply, _ = await context.broker.answer(InitProducerRequest())
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code = error_code(as_seglog_error(error, "InitProducerId"))
        return messages.InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    assert isinstance(reply, InitProducerReply)
    return messages.InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)


APIS: Final = (
    Api(22, "InitProducerId", range(6), handle=init_producer_id),
    Api(61, "DescribeProducers", range(1), handle=describe_producers),
    Api(65, "DescribeTransactions", range(1), handle=describe_transactions),
    Api(66, "ListTransactions", range(3), list_transactions),
)
